"""Reward functions: from what the agent wrote and the right answer to a number between 0 and 1.

Each is a pure function of texts and returns 1.0 or 0.0 (unit_tests: the fraction that passed). The built-in environment
"dataset" grades by the same rules (docs/environments.md); both are tested against tests/goldens/rewards.json.

    reward = {"correct": rewards.numeric_match(action, "42", extract="boxed"),
              "format": 0.1 * rewards.format_match(action, "think_answer")}
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    from .sandbox import Outcome, Sandbox

Answer = Union[str, int, float, Sequence[Union[str, int, float]]]

_SPACE = " \t\n\r\f\v"
# Digits in groups of three or not, a decimal part, an exponent, or a fraction of two whole numbers.
_NUMBER = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:/[0-9]+)?")
_DIGITS_MAX = 100  # of a number; what is longer is none
_FORMS = {
    "bare_number": r"\s*[-+]?(?:[0-9]+(?:\.[0-9]+)?)\s*",
    "think_answer": r"\s*<think>(?:(?!</?think>|</?answer>)[\s\S])*</think>\s*<answer>(?:(?!</?think>|</?answer>)[\s\S])*</answer>\s*",
    "code_block": r"[\s\S]*```[A-Za-z0-9_+-]*[ \t]*\n(?:(?!```)[\s\S])*```[\s\S]*",
}
EXTRACTS = ("all", "last_line", "after_think", "hashes", "answer_tag", "boxed")
FORMS = (*_FORMS, "boxed", "json")


def extract(text: str, how: str = "all") -> Optional[str]:
    """The part of the text that is the answer, or None if there is none.

    how: all: the whole text; last_line: its last line that is not empty; after_think: what follows the last </think>
    (the whole text without one); hashes: what follows the last "####"; answer_tag: the last <answer>...</answer>; boxed:
    the last \\boxed{...}; "regex:PATTERN": the last match, of its first group if it has one.
    """
    if how == "all":
        return text
    if how == "last_line":
        lines = [line for line in text.split("\n") if line.strip(_SPACE)]
        return lines[-1] if lines else None
    if how == "after_think":
        return text.rpartition("</think>")[2]
    if how == "hashes":
        return text.rpartition("####")[2] if "####" in text else None
    if how == "answer_tag":
        end = text.rfind("</answer>")
        begin = text.rfind("<answer>", 0, end) if end >= 0 else -1
        return text[begin + len("<answer>"):end] if begin >= 0 else None
    if how == "boxed":
        return _boxed(text)
    if how.startswith("regex:"):
        last = None
        for last in re.finditer(how[len("regex:"):], text):
            pass
        if last is None:
            return None
        return last.group(1 if last.re.groups else 0)
    raise ValueError(f"extract is one of {', '.join(EXTRACTS)} or regex:PATTERN, not {how!r}")


def numbers(text: str) -> List[float]:
    """The numbers in the text: in "3 - 5 = -2, that is -1/2 of 4" they are 3, 5, -2, -0.5, 4. A minus is a sign unless it
    stands between two things."""
    found = []
    for match in _NUMBER.finditer(text):
        value = _value(match.group())
        if value is not None:
            found.append(-value if _negative(text, match.start()) else value)
    return found


def exact_match(text: str, answer: Answer, *, extract: str = "all", fold: bool = True) -> float:
    """Whether the text is the answer, or one of several. fold: case (of ASCII), spaces and one full stop at the end do
    not count."""
    found = _extract(text, extract)
    if found is None:
        return 0.0
    return float(any(_folded(found, fold) == _folded(_text(one), fold) for one in _answers(answer)))


def numeric_match(text: str, answer: Answer, *, extract: str = "all", tolerance: float = 1e-6) -> float:
    """Whether the last number in the text is (the last number of) the answer, or of one of several: |a - b| <= tolerance *
    max(1, |b|)."""
    expected = [numbers(_text(one)) for one in _answers(answer)]
    for one, values in zip(_answers(answer), expected):
        if not values:
            raise ValueError(f"the answer has no number: {_text(one)[:80]!r}")
    found = numbers(_extract(text, extract) or "")
    if not found:
        return 0.0
    return float(any(abs(found[-1] - values[-1]) <= tolerance * max(1.0, abs(values[-1])) for values in expected))


def regex_match(text: str, pattern: str, *, extract: str = "all") -> float:
    """Whether the pattern is found anywhere in the text."""
    found = _extract(text, extract)
    return float(found is not None and re.search(pattern, found) is not None)


def format_match(text: str, form: str) -> float:
    """Whether the whole text has a form: bare_number, think_answer (<think>...</think><answer>...</answer> and nothing
    else), boxed (has a \\boxed{...}), json (one JSON object), code_block (has a fenced block), or "regex:PATTERN"."""
    if form == "boxed":
        return float(_boxed(text) is not None)
    if form == "json":
        try:
            return float(isinstance(json.loads(text, parse_constant=_no_constant), dict))
        except (ValueError, RecursionError):
            return 0.0
    if form.startswith("regex:"):
        return float(re.fullmatch(form[len("regex:"):], text) is not None)
    if form not in _FORMS:
        raise ValueError(f"a format is one of {', '.join(FORMS)} or regex:PATTERN, not {form!r}")
    return float(re.fullmatch(_FORMS[form], text, re.ASCII) is not None)


def code_block(text: str) -> Optional[str]:
    """The last fenced block of Python (or of no named language); None if there is none."""
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", text, re.DOTALL | re.IGNORECASE)
    return blocks[-1] if blocks else None


def unit_tests(text: str, function: str, tests: Sequence[Tuple[List[Any], Any]], sandbox: "Sandbox") -> float:
    """The fraction of tests, each the arguments and the result of a call, that the code in the text passes, run in the
    sandbox. Raises GraderError when the sandbox fails: that says nothing about the code."""
    return sum(passed for passed, _ in run_tests(text, function, tests, sandbox)) / max(1, len(tests))


def run_tests(text: str, function: str, tests: Sequence[Tuple[List[Any], Any]],
              sandbox: "Sandbox") -> "List[Tuple[bool, Outcome]]":
    """Of each test, whether it passed and what came of the call; text without a code block fails them all."""
    from .sandbox import Outcome

    code = code_block(text)
    if code is None:
        return [(False, Outcome(error="there is no ```python code block"))] * len(tests)
    outcomes = sandbox.run(code, function, [arguments for arguments, _ in tests])
    return [(not o.error and same(o.value, expected), o) for o, (_, expected) in zip(outcomes, tests)]


def same(value: Any, expected: Any) -> bool:
    """Equal, and of the same kind: True is not 1, 1.0 is 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        return isinstance(value, (int, float)) and isinstance(expected, (int, float)) and math.isclose(value, expected)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and value == expected


_extract = extract  # parameters have its name


def _boxed(text: str) -> Optional[str]:
    """Of the last \\boxed{ whose braces close."""
    last, opened = None, []
    for brace in re.finditer(r"[{}]", text):
        if brace.group() == "{":
            opened.append(brace.end())
        elif opened:
            begin = opened.pop()
            if text.endswith("\\boxed{", 0, begin) and (last is None or begin > last[0]):
                last = (begin, brace.start())
    return text[last[0]:last[1]] if last else None


def _value(text: str) -> Optional[float]:
    if len(text) > _DIGITS_MAX:
        return None
    above, _, below = text.replace(",", "").partition("/")
    value = float(above)
    if below:
        if float(below) == 0:
            return None
        value /= float(below)
    return value if math.isfinite(value) else None


def _negative(text: str, at: int) -> bool:
    if at == 0 or text[at - 1] not in "-\u2212":
        return False
    before = text[max(0, at - 33):at - 1]
    if before and (before[-1].isascii() and before[-1].isalnum()):
        return False
    before = before.rstrip(" \t")
    return not (before and before[-1] in "0123456789)")


def _folded(text: str, fold: bool) -> str:
    if not fold:
        return text
    words = " ".join(word for word in re.split(f"[{_SPACE}]+", text) if word)
    words = words[:-1] if words.endswith(".") else words
    return words.translate(_LOWER)


_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _answers(answer: Answer) -> Iterable[Union[str, int, float]]:
    return answer if isinstance(answer, (list, tuple)) else [answer]  # type: ignore[list-item]


def _text(answer: Union[str, int, float]) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
