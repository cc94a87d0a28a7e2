"""What the adapters share."""

from __future__ import annotations

import hashlib
import importlib
import re
from typing import Any, Optional, Sequence


def need(module: str, package: str) -> Any:
    """The module, or an ImportError that says which package is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise  # it is there, but something that it needs is not
        raise ImportError(f"forebay.adapters.{module} needs the package {package}: pip install {package}") from None


def task_seed(split: str, task: int, below: int = 2**31) -> int:
    """A seed for a task; the splits share none (but by a chance of about one in `below` for each pair)."""
    digest = hashlib.sha256(f"{split}/{task}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % below


def pick(text: str, names: Sequence[str]) -> Optional[int]:
    """The index of the name that the text mentions last, as a word, whatever its case; a number counts as an index if no name
    is found. None if there is neither."""
    best, best_at = None, (-1, -1)
    for index, name in enumerate(names):
        for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE):
            at = (match.end(), len(name))  # "turn left" rather than the "left" in it
            if at > best_at:
                best, best_at = index, at
    if best is not None:
        return best
    numbers = re.findall(r"(?<![\w.-])[0-9]{1,9}(?![\w-])(?!\.[0-9])", text)
    return int(numbers[-1]) if numbers and int(numbers[-1]) < len(names) else None
