#!/usr/bin/env python3
"""Checks that each test named in docs/SCENARIOS.md stands in the file named before it. Prints what does not; exit
code 1 if there is anything."""
import pathlib
import re
import sys

NAMED = re.compile(r"`([\w/.]+\.(?:cc|py))` `(\w+)`")


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    named = NAMED.findall((root / "docs/SCENARIOS.md").read_text(encoding="utf-8"))
    missing = [f"docs/SCENARIOS.md: {path} has no test {name}" for path, name in named
               if not (root / path).is_file() or not re.search(rf"\b{name}\b", (root / path).read_text(encoding="utf-8"))]
    if not named:
        missing.append("docs/SCENARIOS.md names no test")
    print("\n".join(missing), end="\n" if missing else "", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
