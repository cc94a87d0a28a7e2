"""Goal: rewards say what their rules say, the same as the built-in environment, and never fail on what an agent wrote."""

import json
import pathlib
import random
import unittest
from typing import Any, Dict

from forebay import GraderError, rewards
from forebay.sandbox import Outcome, Sandbox, SandboxError

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "tests/goldens/rewards.json"


def grade(spec: Dict[str, Any], text: str, answer: Any) -> float:
    options = {key: value for key, value in spec.items() if key in ("extract", "fold", "tolerance")}
    if spec["kind"] == "exact":
        return rewards.exact_match(text, answer, **options)
    if spec["kind"] == "numeric":
        return rewards.numeric_match(text, answer, **options)
    if spec["kind"] == "regex":
        return rewards.regex_match(text, spec.get("pattern", answer), **options)
    return rewards.format_match(text, spec["form"])


class GoldenTest(unittest.TestCase):
    def test_every_case(self) -> None:
        cases = json.loads(GOLDENS.read_text("utf-8"))
        self.assertGreater(len(cases), 100)
        for case in cases:
            with self.subTest(case):
                self.assertEqual(grade(case["grader"], case["text"], case["answer"]), case["score"])

    def test_nothing_that_an_agent_writes_fails(self) -> None:
        rng = random.Random(1)
        alphabet = ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "{", "####", "```", "\n", "-", "1", ",", "/", ".",
                    "e9", "\u2212", "\u00e9", "\x00", " ", "(", ")", "\ud800"]
        specs = [{"kind": "exact", "extract": how} for how in rewards.EXTRACTS]
        specs += [{"kind": "numeric", "extract": how} for how in rewards.EXTRACTS]
        specs += [{"kind": "format", "form": form} for form in rewards.FORMS]
        for _ in range(500):
            text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(40)))
            for spec in specs:
                self.assertIn(grade(spec, text, "5"), (0.0, 1.0), (spec, text))
        for text in ("9" * 100000, "{" * 100000, "\\boxed{" * 20000, "<think>" * 10000, "1," * 20000, "- " * 20000):
            for spec in specs:
                self.assertIn(grade(spec, text, "5"), (0.0, 1.0), (spec, text[:20]))


class UserErrorTest(unittest.TestCase):
    def test_what_is_no_rule_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "extract is one of all, .*, not 'box'"):
            rewards.exact_match("a", "a", extract="box")
        with self.assertRaisesRegex(ValueError, "a format is one of bare_number"):
            rewards.format_match("a", "xml")
        with self.assertRaisesRegex(ValueError, "no number: 'none'"):
            rewards.numeric_match("5", "none")


class UnitTestsTest(unittest.TestCase):
    """With a sandbox that answers by a table; the real one has tests of its own."""

    class Table(Sandbox):
        def run(self, code, function, calls):
            if "boom" in code:
                raise SandboxError("no sandbox")
            return [Outcome(arguments[0] * 2) if arguments[0] != 3 else Outcome(error="it failed") for arguments in calls]

    TESTS = [([1], 2), ([2], 4), ([3], 6), ([4], 7)]

    def test_the_fraction_that_passed(self) -> None:
        self.assertEqual(rewards.unit_tests("```python\ndef f(x): ...\n```", "f", self.TESTS, self.Table()), 0.5)
        self.assertEqual(rewards.unit_tests("def f(x): ...", "f", self.TESTS, self.Table()), 0.0)

    def test_B2_a_sandbox_that_fails_is_no_reward(self) -> None:
        with self.assertRaises(GraderError):
            rewards.unit_tests("```\nboom\n```", "f", self.TESTS, self.Table())

    def test_code_is_found(self) -> None:
        self.assertEqual(rewards.code_block("Here:\n```python\nx = 1\n```\n"), "x = 1\n")
        self.assertEqual(rewards.code_block("```\na\n```\n```py\nb\n```"), "b\n")
        for text in ("", "def f(): pass", "```python\nnever closed", "``` ```"):
            self.assertIsNone(rewards.code_block(text), text)

    def test_values_are_compared_by_kind(self) -> None:
        for a, b in ((1, 1), (1.0, 1), (0.1 + 0.2, 0.3), ([1, [2]], [1, [2]]), (None, None), ("a", "a"), (True, True)):
            self.assertTrue(rewards.same(a, b), (a, b))
        for a, b in ((1, True), (0, False), ("1", 1), ([1], [1, 2]), (None, 0), ({}, []), (float("nan"), 1.0), (2, 1)):
            self.assertFalse(rewards.same(a, b), (a, b))


if __name__ == "__main__":
    unittest.main()
