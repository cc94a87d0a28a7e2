"""Writing small Python functions, tested in a sandbox: an environment whose tool is a real program.

    python3 env.py [--tries 3] [--parallel 2] [--wall-s 10] [--python /usr/bin/python3]

Reward: `tests`, the fraction of tests that the last try passed. Between tries the agent sees the first test that failed.
Needs bubblewrap (`bwrap`); says so when it starts.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import Any, List, Optional

from forebay import Environment, Step, grading, serve
from sandbox import Limits, Outcome, Sandbox, SandboxError
from tasks import EVAL, TRAIN

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def code_of(text: str) -> Optional[str]:
    """The last fenced block; None if there is none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else None


def same(value: Any, expected: Any) -> bool:
    """Equal, and of the same kind: True is not 1, 1.0 is 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        return isinstance(value, (int, float)) and isinstance(expected, (int, float)) and math.isclose(value, expected)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and value == expected


def short(value: Any, chars_max: int = 60) -> str:
    try:
        text = repr(value)
    except RecursionError:  # deeply nested on purpose
        return "..."
    return text if len(text) <= chars_max else text[:chars_max] + "..."


class CodeSandbox(Environment):
    def __init__(self, sandbox: Sandbox, tries_max: int) -> None:
        self._sandbox = sandbox
        self._tries_left = tries_max

    def reset(self, task: int, split: str, seed: int) -> str:
        tasks = {"train": TRAIN, "eval": EVAL}[split]
        self._task = tasks[task % len(tasks)]
        return (f"Write a Python function {self._task.signature} that returns {self._task.meaning}. "
                "Answer with one ```python code block.")

    def step(self, action: str) -> Step:
        self._tries_left -= 1
        code = code_of(action)
        if code is None:
            passed, problem, tool = 0.0, "There is no ```python code block.", ""
        else:
            with grading():
                passed, problem = self._grade(code)
            tool = "bwrap"
        if passed == 1.0 or self._tries_left <= 0:
            return Step(reward={"tests": passed}, done=True, tool=tool)
        return Step(observation=f"{problem} Try again.", reward={"tests": 0.0}, tool=tool)

    def _grade(self, code: str) -> "tuple[float, str]":
        tests = self._task.tests
        outcomes = self._sandbox.run(code, self._task.function, [arguments for arguments, _ in tests])
        right = [not o.error and same(o.value, expected) for o, (_, expected) in zip(outcomes, tests)]
        if all(right):
            return 1.0, ""
        failed = right.index(False)
        return sum(right) / len(right), self._describe(tests[failed][0], outcomes[failed], tests[failed][1])

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
    options = parser.parse_args()
    if options.tries < 1 or options.parallel < 0 or options.wall_s <= 0:
        parser.error("--tries must be 1 or more, --parallel 0 or more, --wall-s above 0")
    sandbox = Sandbox(Limits(wall_s=options.wall_s), options.parallel, options.python)
    try:
        sandbox.check()
    except SandboxError as error:
        sys.exit(f"code_sandbox: {error}")
    serve(lambda: CodeSandbox(sandbox, options.tries), name="code_sandbox")


if __name__ == "__main__":
    main()
