"""Writing small Python functions, tested in a sandbox: an environment whose tool is a real program.

    python3 env.py [--tries 3] [--parallel 2] [--wall-s 10] [--python /usr/bin/python3] [--undemonstrated]

A demonstration in front of each task shows the form of an answer; a larger model does without (--undemonstrated).
Reward: `tests`, the fraction of tests that the last try passed. Between tries the agent sees the first test that failed.
Needs bubblewrap (`bwrap`); says so when it starts.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, List

from forebay import Environment, Message, Step, grading, serve
from forebay.rewards import code_block, run_tests
from forebay.sandbox import Limits, Outcome, Sandbox, SandboxError
from tasks import EVAL, TRAIN


def short(value: Any, chars_max: int = 60) -> str:
    try:
        text = repr(value)
    except RecursionError:  # deeply nested on purpose
        return "..."
    return text if len(text) <= chars_max else text[:chars_max] + "..."


def question(signature: str, meaning: str) -> str:
    return f"Write a Python function {signature} that returns {meaning}. Answer with one ```python code block."


DEMONSTRATION = [Message("user", question("triple(x)", "three times the number")),
                 Message("assistant", "```python\ndef triple(x):\n    return 3 * x\n```")]


class CodeSandbox(Environment):
    def __init__(self, sandbox: Sandbox, tries_max: int, demonstrated: bool = False) -> None:
        self._sandbox = sandbox
        self._tries_left = tries_max
        self._demonstrated = demonstrated

    def reset(self, task: int, split: str, seed: int) -> List[Message]:
        tasks = {"train": TRAIN, "eval": EVAL}[split]
        self._task = tasks[task % len(tasks)]
        asked = Message("user", question(self._task.signature, self._task.meaning))
        return [*(DEMONSTRATION if self._demonstrated else []), asked]

    def step(self, action: str) -> Step:
        self._tries_left -= 1
        if code_block(action) is None:
            passed, problem, tool = 0.0, "There is no ```python code block.", ""
        else:
            with grading():
                passed, problem = self._grade(action)
            tool = "bwrap"
        if passed == 1.0 or self._tries_left <= 0:
            return Step(reward={"tests": passed}, done=True, tool=tool)
        return Step(observation=f"{problem} Try again.", reward={"tests": 0.0}, tool=tool)

    def _grade(self, action: str) -> "tuple[float, str]":
        tests = self._task.tests
        results = run_tests(action, self._task.function, tests, self._sandbox)
        for (passed, outcome), (arguments, expected) in zip(results, tests):
            if not passed:
                return sum(passed for passed, _ in results) / len(tests), self._describe(arguments, outcome, expected)
        return 1.0, ""

    def _describe(self, arguments: List[Any], outcome: Outcome, expected: Any) -> str:
        call = f"{self._task.function}({', '.join(short(a) for a in arguments)})"
        if outcome.error:
            return f"{call} failed: {outcome.error}."
        return f"{call} returned {short(outcome.value)}, not {short(expected)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=0, help="sandboxes at once; 0: one for each processor")
    parser.add_argument("--wall-s", type=float, default=10.0, help="of one run")
    parser.add_argument("--python", default="/usr/bin/python3", help="runs the code; must be under /usr")
    parser.add_argument("--undemonstrated", action="store_true", help="show no demonstration")
    options = parser.parse_args()
    if options.tries < 1 or options.parallel < 0 or options.wall_s <= 0:
        parser.error("--tries must be 1 or more, --parallel 0 or more, --wall-s above 0")
    sandbox = Sandbox(Limits(wall_s=options.wall_s), options.parallel, options.python)
    try:
        sandbox.check()
    except SandboxError as error:
        sys.exit(f"code_sandbox: {error}")
    serve(lambda: CodeSandbox(sandbox, options.tries, not options.undemonstrated), name="code_sandbox")


if __name__ == "__main__":
    main()
