"""Environments of gymnasium: text or discrete actions, with hooks for what the agent sees and how its text becomes an action.

    serve(lambda: GymnasiumEnvironment(lambda: gymnasium.make("FrozenLake-v1", render_mode="ansi"),
                                       actions=["left", "down", "right", "up"], prompt="Reach G. Do not step on H."))
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional, Sequence

from ..environment import Environment, Observation, Step
from ._common import need, pick, task_seed

gymnasium = need("gymnasium", "gymnasium")

class InvalidAction(ValueError):
    """Raised by a parse hook for text that is no action; its text is told to the agent."""


class GymnasiumEnvironment(Environment):
    """One episode of an environment of gymnasium.

    make: makes it. A task is a seed for its reset.
    prompt: put in front of the first observation, in the episode's first message.
    actions: names of the actions 0, 1, ... of a Discrete space; the last one that the agent mentions is taken.
    render: (env, observation, info) -> what the agent sees; by default env.render() where that is a text, else the observation.
    parse: (text, env) -> action; raises InvalidAction. By default `actions` or numbers for a Discrete space, else the text.
    invalid_max: texts that are no action, after which the episode ends; each earns invalid_reward.
    """

    def __init__(self, make: Callable[[], Any], *, prompt: str = "", actions: Optional[Sequence[str]] = None,
                 render: Optional[Callable[[Any, Any, Any], Observation]] = None,
                 parse: Optional[Callable[[str, Any], Any]] = None, invalid_max: int = 3, invalid_reward: float = 0.0) -> None:
        self._env = make()
        self._prompt = prompt
        self._render = render or render_default
        self._invalid_left = invalid_max
        self._invalid_reward = invalid_reward
        space = self._env.action_space
        if parse is not None:
            self._parse = parse
        elif isinstance(space, gymnasium.spaces.Discrete):
            first = int(space.start)
            names = list(actions) if actions else [str(first + i) for i in range(int(space.n))]
            if len(names) != int(space.n):
                raise ValueError(f"{len(names)} names are given for {int(space.n)} actions")
            self._parse = lambda text, env: first + _index(text, names)
            self._prompt += f"\nAnswer with one of: {', '.join(names)}." if actions else f"\nAnswer with a number from {names[0]} to {names[-1]}."
        elif isinstance(space, gymnasium.spaces.Text):
            self._parse = lambda text, env: text
        else:
            raise ValueError(f"actions are of {space}: give a parse hook that makes one from the agent's text")

    def reset(self, task: int, split: str, seed: int) -> Observation:
        observation, info = self._env.reset(seed=task_seed(split, task))
        first = self._render(self._env, observation, info)
        return f"{self._prompt.strip()}\n\n{first}" if self._prompt and isinstance(first, str) else first

    def step(self, action: str) -> Step:
        try:
            parsed = self._parse(action, self._env)
        except InvalidAction as error:
            self._invalid_left -= 1
            return Step(str(error), {"reward": self._invalid_reward}, done=self._invalid_left <= 0)
        observation, reward, terminated, truncated, info = self._env.step(parsed)
        done = bool(terminated or truncated)
        return Step(None if done else self._render(self._env, observation, info), {"reward": float(reward)}, done, tool="gymnasium")

    def close(self) -> None:
        if getattr(self, "_env", None) is not None:  # a subclass may make it late
            self._env.close()


def render_default(env: Any, observation: Any, info: Any) -> str:
    """The text that the environment renders, else its observation as text."""
    if isinstance(observation, str):
        return observation
    if env.render_mode == "ansi":
        return plain(env.render()).strip("\n")
    return f"Observation: {observation}"


def plain(text: str) -> str:
    """Without the codes of a terminal; what was highlighted stands in brackets."""
    text = re.sub(r"\x1b\[(?:4[0-7]|7)m(.*?)\x1b\[0m", r"[\1]", text, flags=re.DOTALL)
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def _index(text: str, names: Sequence[str]) -> int:
    index = pick(text, names)
    if index is None:
        raise InvalidAction(f"Answer with one of: {', '.join(names)}.")
    return index
