#!/usr/bin/env python3
"""Checks the include rules of docs/ARCHITECTURE.md: which room may include which, and that a room's sub-folders
stay private to it. Prints each offence with its line; exit code 1 if there is one."""
import pathlib
import re
import sys

MAY_INCLUDE = {
    "base": set(),
    "xla": {"base"},
    "trajectory": {"base"},
    "tokenizer": {"base"},
    "weights": {"base", "xla"},
    "models": {"base", "xla", "weights"},
    "env": {"base", "trajectory"},
    "buffer": {"base", "trajectory"},
    "rollout": {"base", "xla", "trajectory", "tokenizer", "weights", "models", "env", "buffer"},
    "learner": {"base", "xla", "trajectory", "weights", "models", "buffer"},
    "control": {"base", "trajectory", "buffer"},
    "dashboard": {"base", "control"},
}
INCLUDE = re.compile(r'^\s*#include "forebay/([a-z_]+)/([^"]+)"')


def offences(root: pathlib.Path):
    for path in sorted((root / "forebay").rglob("*")):
        if path.suffix not in (".h", ".cc") or path.stem.endswith(("_test", "_testing")):
            continue  # a test may bring another room to check its own against
        room = path.relative_to(root / "forebay").parts[0]
        if room not in MAY_INCLUDE:
            yield f"{path}: '{room}' is not a room of docs/ARCHITECTURE.md"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            other, rest = match.groups()
            where = f"{path.relative_to(root)}:{number}"
            if other == room:
                continue
            if other not in MAY_INCLUDE[room]:
                yield f"{where}: room '{room}' may not include room '{other}'"
            elif "/" in rest:
                yield f"{where}: '{other}/{rest}' is private to room '{other}'"


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    found = list(offences(root))
    for offence in found:
        print(offence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
