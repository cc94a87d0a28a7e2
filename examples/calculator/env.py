"""Products of large numbers, with a calculator as the agent's tool.

    python3 calculator/env.py [--digits 2] [--demonstrations 2]

The first messages show how the tool is called, which SmolLM2 needs: told of it in words only, it never calls it. A model that was
trained to use tools needs no demonstration: `--demonstrations 0` describes the tool by its schema instead.

Rewards: `correct` 1 for the right product; `called` 0.2 for the first call that the calculator understood, which is what a
model must learn first. Tasks of train and eval share no pair of operands.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Dict, List, Optional, Tuple

from forebay import Message, Step, serve
from forebay.rewards import numeric_match
from forebay.tools import Tool, ToolCall, ToolEnvironment


def calculate(a: float, b: float, operation: str = "multiply") -> float:
    """Adds, subtracts, multiplies or divides two numbers."""
    if operation not in ("add", "subtract", "multiply", "divide"):
        raise ValueError("operation is one of add, subtract, multiply, divide")
    if operation == "divide":
        return a / b
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[operation]


SHOWN = ((31, 48), (76, 20), (95, 62))  # what the demonstrations multiply: no task asks for these


def demonstrations(count: int) -> List[Message]:
    """Whole episodes: question, call, result, answer."""
    messages = []
    for a, b in SHOWN[:count]:
        call = json.dumps({"name": "calculate", "arguments": {"a": a, "b": b}})
        messages += [Message("user", f"What is {a} * {b}?"), Message("assistant", f"<tool_call>{call}</tool_call>"),
                     Message("tool", str(a * b)), Message("assistant", str(a * b))]
    return messages


class Calculator(ToolEnvironment):
    tools = [Tool(calculate)]

    def __init__(self, digits: int, demonstrations: int = 0) -> None:
        self._digits = digits
        self._demonstrations = demonstrations
        if demonstrations:
            self.instructions = "You call calculate, then you answer with the number only."
        self._has_called = False

    def begin(self, task: int, split: str, seed: int) -> List[Message]:
        rng = random.Random(f"{split} {task}")
        while True:
            a, b = (rng.randrange(10 ** (self._digits - 1), 10**self._digits) for _ in range(2))
            if ((a + b) % 5 == 0) == (split == "eval") and (a, b) not in SHOWN:
                break
        self._answer = a * b
        return demonstrations(self._demonstrations) + [Message("user", f"What is {a} * {b}?")]

    def called(self, results: List[Tuple[Optional[ToolCall], str]]) -> Dict[str, float]:
        first = not self._has_called and any(not result.startswith("error:") for _, result in results)
        self._has_called = self._has_called or first
        return {"called": 0.2 if first else 0.0}

    def finish(self, answer: str) -> Step:
        return Step(None, {"correct": numeric_match(answer, self._answer)}, done=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--digits", type=int, default=2, choices=range(2, 7), help="of each operand")
    parser.add_argument("--demonstrations", type=int, default=2, choices=range(len(SHOWN) + 1))
    options = parser.parse_args()
    serve(lambda: Calculator(options.digits, options.demonstrations), name="calculator")


if __name__ == "__main__":
    main()
