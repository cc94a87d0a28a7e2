"""Products of large numbers, with a calculator as the agent's tool.

    python3 calculator/env.py [--digits 3]

Rewards: `correct` 1 for the right product; `called` 0.2 for the first call that the calculator understood, which is what a
model must learn first. Tasks of train and eval share no pair of operands.
"""

from __future__ import annotations

import argparse
import random
from typing import Dict, List, Optional, Tuple

from forebay import Step, serve
from forebay.rewards import numeric_match
from forebay.tools import Tool, ToolCall, ToolEnvironment


def calculate(a: float, b: float, operation: str = "multiply") -> float:
    """Adds, subtracts, multiplies or divides two numbers."""
    if operation not in ("add", "subtract", "multiply", "divide"):
        raise ValueError("operation is one of add, subtract, multiply, divide")
    if operation == "divide":
        return a / b
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[operation]


class Calculator(ToolEnvironment):
    tools = [Tool(calculate)]

    def __init__(self, digits: int) -> None:
        self._digits = digits
        self._has_called = False

    def begin(self, task: int, split: str, seed: int) -> str:
        rng = random.Random(f"{split} {task}")
        while True:
            a, b = (rng.randrange(10 ** (self._digits - 1), 10**self._digits) for _ in range(2))
            if ((a + b) % 5 == 0) == (split == "eval"):
                break
        self._answer = a * b
        return f"What is {a} * {b}? Use calculate, then answer with the number only."

    def called(self, results: List[Tuple[Optional[ToolCall], str]]) -> Dict[str, float]:
        first = not self._has_called and any(not result.startswith("error:") for _, result in results)
        self._has_called = self._has_called or first
        return {"called": 0.2 if first else 0.0}

    def finish(self, answer: str) -> Step:
        return Step(None, {"correct": numeric_match(answer, self._answer)}, done=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--digits", type=int, default=3, choices=range(1, 7), help="of each operand")
    options = parser.parse_args()
    serve(lambda: Calculator(options.digits), name="calculator")


if __name__ == "__main__":
    main()
