"""Addition with a slow checker: the environment of the quickstart.

The agent is asked for a sum, and a checker tells it, seconds later, whether its answer is right; a wrong answer may
be tried again. The checker stands for any slow tool (a compiler, a browser, a judge): its latency is log-normal, so
that most answers come soon and a few come late, which is what stalls a synchronous loop.

    python3 env.py [--tries 3] [--digits 1] [--operations +] [--latency-p50-s 2] [--latency-p99-s 6]

Rewards: `correct` 1 at the first try, 1/2 at the second, 1/3 at the third; `format` 0.1 when the answer was the bare
number. Tasks: of all pairs of operands every fifth, by a hash, belongs to `eval`, the others to `train`; a task number
picks one of its split's pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import re
import time
from typing import List, NamedTuple, Optional

from forebay import Environment, Step, grading, serve

_Z99 = 2.3263478740408408  # the 99th percentile of a standard normal


class Problem(NamedTuple):
    a: int
    operation: str
    b: int

    @property
    def answer(self) -> int:
        return self.a + self.b if self.operation == "+" else self.a - self.b

    def __str__(self) -> str:
        return f"{self.a}{self.operation}{self.b}"


def problems(digits: int, operations: str, split: str) -> List[Problem]:
    """All problems of a split, in an order that never changes. The two splits share none."""
    if split not in ("train", "eval"):
        raise ValueError(f"split is train or eval, not {split!r}")
    below = 10**digits
    every = [Problem(a, op, b) for op in operations for a in range(below) for b in range(below)]
    every.sort(key=lambda p: hashlib.sha256(str(p).encode()).digest())
    held_out = len(every) // 5
    return every[:held_out] if split == "eval" else every[held_out:]


def latency_s(rng: random.Random, p50_s: float, p99_s: float) -> float:
    """A log-normal latency with these percentiles, cut at four times the 99th."""
    if p50_s <= 0:
        return 0.0
    sigma = math.log(max(p99_s, p50_s) / p50_s) / _Z99
    return min(p50_s * math.exp(sigma * rng.gauss(0.0, 1.0)), 4 * max(p99_s, p50_s))


def read_answer(text: str) -> Optional[int]:
    """The last whole number in the text: after "3+5=8" it is 8."""
    numbers = re.findall(r"-?[0-9]+", re.sub(r"(?<=[0-9])\s*-", " - ", text))
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 20 else None


class Arithmetic(Environment):
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._tries = 0

    def reset(self, task: int, split: str, seed: int) -> str:
        choices = self._options.problems[split]
        self._problem = choices[task % len(choices)]
        self._rng = random.Random(seed)
        return f"{self._problem}=? Answer with the number only."

    def step(self, action: str) -> Step:
        self._tries += 1
        time.sleep(latency_s(self._rng, self._options.latency_p50_s, self._options.latency_p99_s))
        with grading():
            right = read_answer(action) == self._problem.answer
            bare = re.fullmatch(r"\s*-?[0-9]{1,9}\s*", action) is not None
        done = right or self._tries >= self._options.tries
        reward = {"correct": 1.0 / self._tries if right else 0.0}
        if done:
            reward["format"] = 0.1 if bare else 0.0
        return Step(observation=None if done else "Wrong. Try again.", reward=reward, done=done, tool="checker")


def parse_options(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--digits", type=int, default=1, choices=(1, 2))
    parser.add_argument("--operations", default="+", choices=("+", "-", "+-"))
    parser.add_argument("--latency-p50-s", type=float, default=2.0)
    parser.add_argument("--latency-p99-s", type=float, default=6.0)
    options = parser.parse_args(arguments)
    if options.tries < 1:
        parser.error("--tries must be 1 or more")
    if options.latency_p50_s < 0 or 0 < options.latency_p50_s > options.latency_p99_s:
        parser.error("--latency-p50-s must be 0 (no latency) or more, and --latency-p99-s not below it")
    options.problems = {split: problems(options.digits, options.operations, split) for split in ("train", "eval")}
    return options


if __name__ == "__main__":
    OPTIONS = parse_options()
    serve(lambda: Arithmetic(OPTIONS), name="arithmetic")
