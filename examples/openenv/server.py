"""A small OpenEnv server: guess a number between 1 and 20; each answer says whether it is higher or lower.

Reward: 0.1 for each guess that the hints so far allow, 1 for the number; who finds it early gets the rest of the tenths, too.

    examples/setup.sh openenv
    examples/in_venv.sh openenv examples/openenv/server.py            # listens on 127.0.0.1:8010
"""

import argparse
import random
import re

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

TRIES = 4


class Guess(Action):
    message: str


class Hint(Observation):
    text: str


class GuessTheNumber(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.secret = random.Random(seed).randint(1, 20)
        self.low, self.high = 1, 20  # what the hints leave
        self._state = State(episode_id=episode_id, step_count=0)
        return Hint(text=f"Guess a number between 1 and 20. You have {TRIES} tries. Answer with the number only.")

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        numbers = re.findall(r"\d+", action.message[:200])
        last = self._state.step_count >= TRIES
        if not numbers:
            return Hint(text="Answer with a number.", reward=0.0, done=last)
        guess = int(numbers[-1])
        if guess == self.secret:
            return Hint(text="Right.", reward=1.0 + 0.1 * (TRIES - self._state.step_count), done=True)
        allowed = self.low <= guess <= self.high
        if guess < self.secret:
            word, self.low = "higher", max(self.low, guess + 1)
        else:
            word, self.high = "lower", min(self.high, guess - 1)
        return Hint(text=f"It is {word} than {guess}.", reward=0.1 if allowed else 0.0, done=last)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8010)
    parser.add_argument("--sessions", type=int, default=64)
    arguments = parser.parse_args()
    app = create_fastapi_app(GuessTheNumber, Guess, Hint, max_concurrent_envs=arguments.sessions)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")
