"""Sums for the two agents: the question of a task, the calculator, and what an answer is worth."""
from __future__ import annotations

import ast
import json
import operator
import os
import random
import re

SYSTEM = "You call the calculator, then you answer with the number only."
TOOLS = [{"type": "function", "function": {
    "name": "calculator", "description": "the value of an expression such as 12 * (3 + 4)",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}]
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def demonstration(number: int, expression: str) -> list[dict]:
    """A question with its call, result and answer. The call stands in the text: SmolLM2's chat template writes no `tool_calls`."""
    call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    result = calculate(expression)
    return [{"role": "user", "content": f"What is {expression}?"},
            {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
            {"role": "tool", "tool_call_id": f"shown_{number}", "content": result}, {"role": "assistant", "content": result}]


def opening(asked: str) -> list[dict]:
    """The first messages: what SmolLM2-135M needs to be shown is left out for a model that was trained to use tools."""
    return [{"role": "system", "content": SYSTEM}, *demonstration(1, "31 + 48"), *demonstration(2, "76 + 20"),
            {"role": "user", "content": asked}]


def question() -> tuple[str, int]:
    """The same for all samples of a task; what is asked in evaluations is never asked in training."""
    held_out = os.environ.get("FOREBAY_SPLIT") == "eval"
    pairs = [(a, b) for a in range(11, 100) for b in range(11, 100) if ((3 * a + b) % 5 == 0) == held_out]
    a, b = random.Random(int(os.environ.get("FOREBAY_TASK_ID", "0"))).choice(pairs)
    return f"What is {a} + {b}?", a + b


def calculate(expression: str) -> str:
    """What the tool answers; an error is an answer, too."""
    def value(node: ast.AST):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and abs(node.value) < 1e9:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("numbers, +, - and * are all there is")
    try:
        return str(value(ast.parse(expression[:200], mode="eval").body))
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"error: {error}"


def rewards(answer: str, right: int) -> dict[str, float]:
    numbers = re.findall(r"-?\d+", answer)
    return {"correct": float(bool(numbers) and int(numbers[-1][:20]) == right),
            "format": 0.1 * bool(re.fullmatch(r"\s*-?\d+\s*", answer))}
