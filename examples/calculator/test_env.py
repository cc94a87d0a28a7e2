"""Goal: the calculator answers calls, the reward is for the product alone, and the splits are disjoint."""

import re
import unittest

import env


def call(a: object, b: object) -> str:
    return '<tool_call>{"name": "calculate", "arguments": {"a": %s, "b": %s}}</tool_call>' % (a, b)


class CalculatorTest(unittest.TestCase):
    def begin(self, task: int = 0, split: str = "train") -> "tuple[env.Calculator, int, int]":
        e = env.Calculator(3)
        system, user = e.reset(task, split, 1)
        self.assertIn('"calculate"', system.content)
        a, b = map(int, re.fullmatch(r"What is (\d+) \* (\d+)\?", user.content).groups())
        return e, a, b

    def test_an_episode(self) -> None:
        e, a, b = self.begin()
        step = e.step(call(a, b))
        self.assertEqual((step.observation[0].role, float(step.observation[0].content)), ("tool", a * b))
        self.assertEqual((step.reward, step.done, step.tool), ({"called": 0.2}, False, "calculate"))
        self.assertEqual(e.step(call(a, b)).reward, {"called": 0.0})  # only once
        step = e.step(f"It is {a * b:,}.")
        self.assertEqual((step.reward, step.done), ({"correct": 1.0}, True))

    def test_demonstrations_are_right(self) -> None:
        system, *shown, asked = env.Calculator(2, demonstrations=3).reset(5, "train", 1)
        self.assertEqual((system.role, len(shown), asked.role), ("system", 12, "user"))
        self.assertNotIn("tools", system.content)
        for question, call, result, answer in zip(*[iter(shown)] * 4):
            e = env.Calculator(2)
            e.reset(0, "train", 1)
            step = e.step(call.content)
            self.assertEqual(step.observation, [result])
            self.assertEqual(answer.content, result.content)
            self.assertEqual([question.role, call.role, result.role, answer.role], ["user", "assistant", "tool", "assistant"])
            self.assertNotEqual(question.content, asked.content)

    def test_mistakes(self) -> None:
        e, a, b = self.begin()
        step = e.step(call('"x"', 1))
        self.assertTrue(step.observation[0].content.startswith("error: "))
        self.assertEqual(step.reward, {"called": 0.0})
        self.assertEqual(e.step(str(a * b + 1)).reward, {"correct": 0.0})
        for a, b, operation, result in ((6, 3, "divide", 2), (6, 3, "add", 9), (6, 3, "subtract", 3)):
            self.assertEqual(env.calculate(a, b, operation), result)
        with self.assertRaises(ValueError):
            env.calculate(1, 2, "power")

    def test_tasks(self) -> None:
        self.assertEqual(self.begin(4)[1:], self.begin(4)[1:])
        train = {self.begin(task)[1:] for task in range(300)}
        held_out = {self.begin(task, "eval")[1:] for task in range(300)}
        self.assertGreater(len(train), 250)
        self.assertFalse(train & held_out)


if __name__ == "__main__":
    unittest.main()
