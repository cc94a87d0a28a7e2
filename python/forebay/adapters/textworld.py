"""Text adventures of textworld: games that tw-make has built.

    games = sorted(glob.glob("games/*.z8"))
    serve(lambda: TextWorldEnvironment(games[4:], held_out=games[:4]))
"""

from __future__ import annotations

import re
import threading
from typing import Sequence

from ..environment import Environment, Message, Observation, Step
from ._common import need

textworld = need("textworld", "textworld")

# Games share a parser, which breaks when two threads use it. What they do is Python code that computes, so that little is lost.
_LOCK = threading.Lock()
_COMMAND_CHARS_MAX = 100  # the games' interpreters are in C, with buffers of about 200


class TextWorldEnvironment(Environment):
    """One game; a task is a game's index (modulo their number), of `held_out` in the split eval.

    hints: tells the agent the commands that are possible, which a small model needs.
    demonstrations: messages in front of the game that show how an agent answers.
    possible_reward: for a command that was possible, whatever came of it: a slope towards the score for a model that begins with prose.
    Rewards: `score`, what the step earned of the game's points, which add up to 1; `won`, 1 when the quest is done; `possible`, if
    it has a reward.
    """

    def __init__(self, games: Sequence[str], held_out: Sequence[str] = (), *, hints: bool = True,
                 demonstrations: Sequence[Message] = (), possible_reward: float = 0.0) -> None:
        if not games:
            raise ValueError("no game files are given: build some with tw-make")
        self._games = {"train": list(games), "eval": list(held_out or games)}
        self._hints = hints
        self._demonstrations = list(demonstrations)
        self._possible_reward = possible_reward
        self._env = None
        self._score = 0

    def reset(self, task: int, split: str, seed: int) -> Observation:
        games = self._games[split]
        infos = textworld.EnvInfos(feedback=True, objective=True, description=True, admissible_commands=True, won=True, lost=True,
                                   score=True, max_score=True)
        with _LOCK:
            self._env = textworld.start(games[task % len(games)], infos)
            state = self._env.reset()
        self._max_score = max(1, int(state.max_score or 1))
        told = self._told(f"{state.objective.strip()}\n\n{_clean(state.description)}", state) + "\nAnswer with one command."
        return [*self._demonstrations, Message("user", told)] if self._demonstrations else told

    def step(self, action: str) -> Step:
        command = command_of(action)
        possible = command.lower() in self._possible
        with _LOCK:
            state, _, done = self._env.step(command)
        score = int(state.score or 0)
        earned, self._score = (score - self._score) / self._max_score, score
        done = bool(done or state.won or state.lost)
        observation = None if done else self._told(_clean(state.feedback), state)
        reward = {"score": earned, "won": float(bool(state.won))}
        if self._possible_reward:
            reward["possible"] = self._possible_reward * possible
        return Step(observation, reward, done, tool="textworld")

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _told(self, text: str, state: "textworld.GameState") -> str:
        self._possible = list(state.admissible_commands or [])
        return f"{text}\nPossible commands: {', '.join(self._possible)}." if self._hints else text


def command_of(text: str) -> str:
    """The first line with a letter in it, without marks around it; "look" if there is none."""
    for line in text.split("\n"):
        command = " ".join(re.sub(r"[^ -~]", " ", line).split()).strip("> .`*\"'")[:_COMMAND_CHARS_MAX]
        if re.search("[A-Za-z]", command):
            return command
    return "look"


def _clean(text: str) -> str:
    """Without the prompt and the status line behind it, and runs of empty lines."""
    text = re.sub(r"\n>[^\n]*\Z", "", text.rstrip())
    return re.sub(r"\n\s*\n+", "\n", text).strip()
