"""Tools for agents: Python functions that the agent calls by name, as JSON in its text.

    class Calculator(ToolEnvironment):
        def begin(self, task, split, seed):
            self.tools = [Tool(multiply)]
            return "What is 12 * 34?"

        def finish(self, answer):
            return Step(reward=numeric_match(answer, 408), done=True)

A wrong call is the agent's mistake: it is told so and may go on.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from .environment import Environment, Message, Observation, Step

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_RESULT_CHARS_MAX = 16000
_NAME_CHARS_MAX = 128


@dataclasses.dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Dict[str, Any]


class ToolCallError(ValueError):
    """What the agent wrote looks like a call and is none; the text says why."""


class Tool:
    """A function with a schema made from its signature and docstring.

    Parameters are annotated with str, int, float, bool, list, dict, Optional of one, or Literal; what has no annotation
    takes anything. An exception in the function is told to the agent: raise one for what the agent got wrong.
    """

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        self.function = function
        self.name = name or function.__name__
        self.description = description or inspect.getdoc(function) or ""
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", self.name):
            raise ValueError(f"a tool's name has 1 to 128 letters, digits, '_', '-' or '.', not {self.name!r:.200}")
        hints = typing.get_type_hints(function)
        self._parameters: Dict[str, Dict[str, Any]] = {}
        self._required: List[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ValueError(f"tool {self.name}: parameter {parameter.name} must have a name that the agent can give")
            self._parameters[parameter.name] = _schema(hints.get(parameter.name, Any))
            if parameter.default is parameter.empty:
                self._required.append(parameter.name)

    def schema(self) -> Dict[str, Any]:
        """As chat templates and OpenAI's API want it."""
        return {"type": "function",
                "function": {"name": self.name, "description": self.description,
                             "parameters": {"type": "object", "properties": self._parameters, "required": self._required}}}

    def call(self, arguments: Dict[str, Any]) -> Any:
        """Raises ToolCallError when the arguments do not fit the schema."""
        for name in self._required:
            if name not in arguments:
                raise ToolCallError(f"{self.name} needs the argument {name}")
        for name, value in arguments.items():
            schema = self._parameters.get(name)
            if schema is None:
                raise ToolCallError(f"{self.name} has no argument {name!r:.80}; it has: {', '.join(self._parameters) or 'none'}")
            if value is None and name not in self._required:
                continue
            if not _fits(value, schema):
                wanted = schema.get("type") or f"one of {schema['enum']}"
                raise ToolCallError(f"{self.name}: {name} must be {wanted}, not {json.dumps(value)[:80]}")
        return self.function(**arguments)


def parse_calls(text: str) -> List[ToolCall]:
    """The calls in what an agent wrote, in order; [] if there are none.

    Read are <tool_call>{"name": ..., "arguments": {...}}</tool_call>, a ```json block that holds such an object or a
    list of them, and a text that is nothing but such an object ("parameters" will do for "arguments"). Raises
    ToolCallError for a <tool_call> that is broken or not closed. What stands in <think>...</think> at the start is not read.
    """
    text = re.sub(r"^\s*<think>.*?(?:</think>|$)", "", text, flags=re.DOTALL)
    calls = []
    if "<tool_call>" in text:
        for part in text.split("<tool_call>")[1:]:
            body, closed, _ = part.partition("</tool_call>")
            if not closed:
                raise ToolCallError("a <tool_call> has no </tool_call>")
            calls.append(_call(_json(body), strict=True))
        return [call for call in calls if call]
    blocks = re.findall(r"```([A-Za-z]*)[ \t]*\n(.*?)```", text, re.DOTALL)
    for block in [block for language, block in blocks if language in ("", "json")] if blocks else [text]:
        try:
            value = _json(block)
        except ToolCallError:
            continue
        for one in value if isinstance(value, list) else [value]:
            call = _call(one, strict=False)
            if call:
                calls.append(call)
    return calls


def describe(tools: Sequence[Tool]) -> str:
    """A system message that lists the tools and says how to call them, in the form that Hermes and Qwen models know."""
    listed = "\n".join(json.dumps(tool.schema()) for tool in tools)
    return ("You may call these functions:\n<tools>\n" + listed + "\n</tools>\nTo call one, write a JSON object with its name and "
            'arguments:\n<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>')


class ToolEnvironment(Environment):
    """An environment whose agent has tools.

    A subclass sets `tools` (at the latest in begin) and defines begin and finish. An action with calls is answered with one
    message of role "tool" for each; one without calls goes to finish. calls_max: of an action; more are refused.
    instructions: what the agent is told of its tools, as system message; empty: describe(tools), which small models find long.
    """

    tools: Sequence[Tool] = ()
    instructions = ""
    calls_max = 8

    def begin(self, task: int, split: str, seed: int) -> Observation:
        """As Environment.reset; the description of the tools is put in front. Demonstrations, messages with calls by the role
        assistant, teach a small model more than any description."""
        raise NotImplementedError

    def finish(self, answer: str) -> Step:
        """Takes an action without calls: usually grades it and ends the episode."""
        raise NotImplementedError

    def called(self, results: List[Tuple[Optional[ToolCall], str]]) -> Union[float, Dict[str, float]]:
        """The reward of an action with calls, given each with its result; the call is None if it was broken. 0 unless a
        subclass says otherwise."""
        return 0.0

    def reset(self, task: int, split: str, seed: int) -> Observation:
        first = self.begin(task, split, seed)
        messages = [] if first is None else [Message("user", first)] if isinstance(first, str) else first
        messages = list(messages) if isinstance(messages, (list, tuple)) else [messages]
        system = self.instructions or describe(self.tools)
        if messages and messages[0].role == "system":  # many chat templates take only one
            return [Message("system", messages[0].content + "\n\n" + system), *messages[1:]]
        return [Message("system", system), *messages]

    def step(self, action: str) -> Step:
        try:
            calls = parse_calls(action)
        except ToolCallError as error:
            result = f"error: {error}"
            return Step([Message("tool", result)], self.called([(None, result)]))
        if not calls:
            return self.finish(action)
        if len(calls) > self.calls_max:
            result = f"error: {len(calls)} calls at once; at most {self.calls_max} are allowed"
            return Step([Message("tool", result)], self.called([(None, result)]))
        results: List[Tuple[Optional[ToolCall], str]] = [(call, self._run(call)) for call in calls]
        names = {tool.name for tool in self.tools}  # what the agent makes up is no tool that answered
        answered = next((call.name for call in calls if call.name in names), "")
        return Step([Message("tool", result) for _, result in results], self.called(results), tool=answered)

    def _run(self, call: ToolCall) -> str:
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None:
            return f"error: there is no function {call.name!r}; there is: {', '.join(t.name for t in self.tools)}"
        try:
            result = tool.call(call.arguments)
            text = result if isinstance(result, str) else json.dumps(result)
        except Exception as error:
            text = f"error: {error if isinstance(error, ToolCallError) else f'{type(error).__name__}: {error}'}"
        return text if len(text) <= _RESULT_CHARS_MAX else text[:_RESULT_CHARS_MAX] + " ... (cut)"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolCallError(f"the call is no JSON: {error}") from None


def _call(value: Any, strict: bool) -> Optional[ToolCall]:
    """strict: raises for what is no call; else None."""
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments", value.get("parameters")) if isinstance(value, dict) else None
    if strict and isinstance(value, dict) and arguments is None:
        arguments = {}
    if isinstance(arguments, str):  # as OpenAI's API has them
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            pass
    if isinstance(name, str) and 0 < len(name) <= _NAME_CHARS_MAX and isinstance(arguments, dict):
        return ToolCall(name, arguments)
    if strict:
        raise ToolCallError('a call is an object with "name", a text, and "arguments", an object')
    return None


def _schema(hint: Any) -> Dict[str, Any]:
    if typing.get_origin(hint) is Union:  # Optional
        inner = [one for one in typing.get_args(hint) if one is not type(None)]
        return _schema(inner[0]) if len(inner) == 1 else {}
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    hint = typing.get_origin(hint) or hint
    return {"type": _JSON_TYPES[hint]} if hint in _JSON_TYPES else {}


def _fits(value: Any, schema: Dict[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    kind = kinds.get(schema.get("type", ""))
    if kind is None:
        return True
    return isinstance(value, kind) and not (isinstance(value, bool) and schema["type"] != "boolean")
