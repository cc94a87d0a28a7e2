"""Data sets of reasoning-gym, mixed: questions made by a program, with a grader for each.

    serve(Mix({"chain_sum": {"weight": 2, "max_terms": 3}, "leg_counting": {}}).make)
"""

from __future__ import annotations

import bisect
import itertools
import threading
from typing import Any, Dict, List, Mapping

from .. import rewards
from ..environment import Environment, GraderError, Step, grading
from ._common import need, task_seed

reasoning_gym = need("reasoning_gym", "reasoning-gym")

_SIZE = 1_000_000_000  # items are made when they are asked for


class Mix:
    """A mix of data sets, shared by all episodes.

    datasets: by name, the options of each (as reasoning_gym.create_dataset takes them) and `weight`, its share of the tasks (1).
    extract: which part of the agent's text is the answer (rewards.extract).
    instruction: put after each question.
    tries: answers that an episode may have; the last one's score counts.
    format: a form of the whole text (rewards.format_match) that earns format_reward.
    """

    def __init__(self, datasets: Mapping[str, Mapping[str, Any]], *, extract: str = "all", instruction: str = "", tries: int = 1,
                 format: str = "", format_reward: float = 0.1) -> None:
        if not datasets:
            raise ValueError("name at least one data set")
        rewards.extract("", extract)  # refuses a wrong name now
        self.extract, self.instruction, self.tries = extract, instruction, tries
        self.format, self.format_reward = format, format_reward
        self._names = list(datasets)
        weights = [float(options.get("weight", 1.0)) for options in datasets.values()]
        if min(weights) < 0 or sum(weights) <= 0:
            raise ValueError("weights are 0 or more, and one of them is above 0")
        self._shares = [share / sum(weights) for share in itertools.accumulate(weights)]
        self._lock = threading.Lock()  # data sets promise nothing about threads
        self._datasets: Dict[str, List[Any]] = {}
        for name, options in datasets.items():
            config = {"size": _SIZE, "seed": 1, **{key: value for key, value in options.items() if key != "weight"}}
            self._datasets[name] = [reasoning_gym.create_dataset(name, **config), int(config["size"])]

    def make(self) -> "ReasoningGymEnvironment":
        return ReasoningGymEnvironment(self)

    def entry(self, task: int, split: str) -> "tuple[str, Dict[str, Any]]":
        """The data set's name and the item of a task. Nine tenths of each data set's items are for training."""
        share = task_seed(split, task) / 2**31
        name = self._names[bisect.bisect_right(self._shares, share) if share < self._shares[-1] else -1]
        dataset, size = self._datasets[name]
        held_out = max(1, size // 10) if size > 1 else 0
        first, count = (size - held_out, held_out) if split == "eval" and held_out else (0, size - held_out)
        with self._lock:
            return name, dataset[first + task_seed(split, task, 2**62) % count]

    def score(self, name: str, answer: str, entry: Dict[str, Any]) -> float:
        """Between 0 and 1. Raises GraderError when the data set cannot grade even its own answer."""
        dataset = self._datasets[name][0]
        with self._lock:
            try:
                return float(dataset.score_answer(answer, entry))
            except Exception as error:
                # Some graders raise on text that they cannot read. That is the agent's fault if the right answer is graded.
                try:
                    dataset.score_answer(entry["answer"], entry)
                except Exception:
                    raise GraderError(f"{name} cannot grade: {type(error).__name__}: {error}") from error
                return 0.0


class ReasoningGymEnvironment(Environment):
    """One question. Rewards: `correct`, and `format` if the mix has one."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._tries_left = mix.tries

    def reset(self, task: int, split: str, seed: int) -> str:
        self._name, self._entry = self._mix.entry(task, split)
        return f"{self._entry['question']}\n{self._mix.instruction}".strip()

    def step(self, action: str) -> Step:
        self._tries_left -= 1
        with grading():
            answer = rewards.extract(action, self._mix.extract)
            score = self._mix.score(self._name, answer.strip(), self._entry) if answer and answer.strip() else 0.0
        done = score >= 1.0 or self._tries_left <= 0
        if not done:
            return Step("That is not right. Try again.", {"correct": 0.0}, tool=self._name)
        reward = {"correct": score}
        if self._mix.format:
            reward["format"] = self._mix.format_reward * rewards.format_match(action, self._mix.format)
        return Step(None, reward, done=True, tool=self._name)
