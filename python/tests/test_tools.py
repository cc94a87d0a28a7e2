"""Goal: an agent's calls reach the functions they name, and whatever else it writes is its mistake, not ours."""

import unittest
from typing import List, Literal, Optional

from forebay import Message, Step
from forebay.tools import Tool, ToolCall, ToolCallError, ToolEnvironment, describe, parse_calls


def multiply(a: float, b: float, unit: Optional[str] = None) -> str:
    """Multiplies two numbers."""
    return f"{a * b:g}{unit or ''}"


def order(items: List[str], direction: Literal["up", "down"] = "up", loud: bool = False):
    return sorted(items, reverse=direction == "down")


def fail(n: int):
    raise RuntimeError("it broke")


class Desk(ToolEnvironment):
    tools = [Tool(multiply), Tool(order), Tool(fail), Tool(lambda: "x" * 20000, name="long")]
    calls_max = 2

    def begin(self, task, split, seed):
        return [Message("system", "Be brief."), Message("user", "Go.")] if task else "Go."

    def finish(self, answer):
        return Step(reward=1.0, done=True)


class SchemaTest(unittest.TestCase):
    def test_from_the_signature(self) -> None:
        function = Tool(order).schema()["function"]
        self.assertEqual(function["parameters"], {
            "type": "object", "required": ["items"],
            "properties": {"items": {"type": "array"}, "direction": {"enum": ["up", "down"]}, "loud": {"type": "boolean"}}})
        function = Tool(multiply).schema()["function"]
        self.assertEqual((function["name"], function["description"]), ("multiply", "Multiplies two numbers."))
        self.assertEqual(function["parameters"]["properties"]["unit"], {"type": "string"})
        self.assertIn('"multiply"', describe([Tool(multiply)]))

    def test_what_cannot_be_called_by_name_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "args"):
            Tool(lambda *args: 0, name="f")
        with self.assertRaisesRegex(ValueError, "name"):
            Tool(lambda: 0)  # <lambda>


class ParseTest(unittest.TestCase):
    def test_calls_are_found(self) -> None:
        one = ToolCall("f", {"a": 1})
        for text in ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
                     'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> done',
                     '```json\n{"name": "f", "arguments": {"a": 1}}\n```', '```\n[{"name": "f", "parameters": {"a": 1}}]\n```',
                     ' {"name": "f", "parameters": {"a": 1}} ', '{"name": "f", "arguments": "{\\"a\\": 1}"}',
                     '<think><tool_call>{</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "```python\nx\n```\n```json\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```"):
            self.assertEqual(parse_calls(text), [one], text)
        self.assertEqual(parse_calls('<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>'),
                         [ToolCall("f", {}), ToolCall("g", {})])

    def test_other_text_has_none(self) -> None:
        for text in ("", "hello", "{", "<think><tool_call>{", '{"name": "f"}', '{"name": 3, "arguments": {}}', "[1]", "```json\n{\n```", "```json\nnull\n```",
                     '{"name": "' + "f" * 200 + '", "arguments": {}}', "[" * 5000):
            self.assertEqual(parse_calls(text), [], text[:50])

    def test_broken_calls_say_why(self) -> None:
        for text, why in (("<tool_call>{", "no </tool_call>"), ("<tool_call>x</tool_call>", "no JSON"),
                          ('<tool_call>[]</tool_call>', '"name"'), ('<tool_call>{"name": "f", "arguments": 3}</tool_call>', '"arguments"')):
            with self.assertRaisesRegex(ToolCallError, why):
                parse_calls(text)


class EnvironmentTest(unittest.TestCase):
    def step(self, action: str) -> List[str]:
        step = Desk().step(action)
        self.assertFalse(step.done)
        self.assertEqual({message.role for message in step.observation}, {"tool"})
        return [message.content for message in step.observation]

    def call(self, name: str, arguments: str) -> str:
        return self.step('<tool_call>{"name": "%s", "arguments": %s}</tool_call>' % (name, arguments))[0]

    def test_the_tools_are_described_first(self) -> None:
        system, user = Desk().reset(0, "train", 0)
        self.assertEqual((system.role, user), ("system", Message("user", "Go.")))
        self.assertIn("<tools>", system.content)
        system, user = Desk().reset(1, "train", 0)
        self.assertTrue(system.content.startswith("Be brief.\n\nYou may call"))

    def test_results(self) -> None:
        self.assertEqual(self.call("multiply", '{"a": 6, "b": 7}'), "42")
        self.assertEqual(self.call("multiply", '{"a": 6, "b": 7, "unit": "m"}'), "42m")
        self.assertEqual(self.call("multiply", '{"a": 6, "b": 7, "unit": null}'), "42")
        self.assertEqual(self.call("order", '{"items": ["a", "b"], "direction": "down"}'), '["b", "a"]')
        self.assertEqual(len(self.call("long", "{}")), 16000 + len(" ... (cut)"))

    def test_mistakes_are_told(self) -> None:
        for name, arguments, text in (("divide", "{}", "no function 'divide'; there is: multiply, order"),
                                      ("multiply", '{"a": 1}', "needs the argument b"),
                                      ("multiply", '{"a": 1, "b": "2"}', "b must be number, not \"2\""),
                                      ("multiply", '{"a": 1, "b": true}', "b must be number"),
                                      ("multiply", '{"a": 1, "b": 2, "c": 3}', "has no argument 'c'"),
                                      ("order", '{"items": [], "direction": "left"}', "one of ['up', 'down']"),
                                      ("order", '{"items": [1, "a"]}', "TypeError"), ("fail", '{"n": 1}', "RuntimeError: it broke")):
            result = self.call(name, arguments)
            self.assertTrue(result.startswith("error: "), result)
            self.assertIn(text, result)
        self.assertIn("no </tool_call>", self.step("<tool_call>{")[0])
        self.assertIn("at most 2", self.step('<tool_call>{"name": "long"}</tool_call>' * 3)[0])

    def test_only_tools_that_exist_are_named_as_who_answered(self) -> None:
        made_up = '<tool_call>{"name": "divide", "arguments": {}}</tool_call>'
        real = '<tool_call>{"name": "multiply", "arguments": {"a": 1, "b": 2}}</tool_call>'
        self.assertEqual([Desk().step(text).tool for text in (made_up, made_up + real)], ["", "multiply"])

    def test_text_without_a_call_is_the_answer(self) -> None:
        self.assertTrue(Desk().step("It is 42.").done)


if __name__ == "__main__":
    unittest.main()
