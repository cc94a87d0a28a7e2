#!/usr/bin/env python3
"""Checks what the table of rooms in docs/ARCHITECTURE.md promises: which room may include which (as includes and as libraries
that CMake links), that a room's sub-folders stay private to it, that nothing includes apps/, and that the front headers are there.
Prints each offence with its line; exit code 1 if there is one."""
import pathlib
import re
import sys

TABLE = "docs/ARCHITECTURE.md"
HEAD = re.compile(r"^\|\s*room\b[^|]*\|[^|]*\|\s*may include\s*\|\s*front header\s*\|")
INCLUDE = re.compile(r'^\s*#include "(forebay/([a-z_]+)|apps)/([^"]+)"')
LINKS = re.compile(r"forebay_room\((\w+)\s+DEPS\s+([a-z_ \n]+?)\s*(?:[A-Z_]+\b|\))")


def read_table(text: str) -> dict[str, tuple[set[str], list[str]]]:
    """Of each room: the rooms that it may include, and its front headers. Empty when there is no such table."""
    rooms = {}
    lines = iter(text.splitlines())
    for line in lines:
        if HEAD.match(line):
            next(lines, "")  # |---|---|
            break
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4:
            break
        words = {word.strip() for word in cells[2].split(",")} - {"-", ""}
        rooms[cells[0]] = (words, [header.strip() for header in cells[3].split(",")])
    return rooms


def table_offences(root: pathlib.Path, rooms: dict):
    if not rooms:
        yield f"{TABLE}: the table 'room | what it is | may include | front header' is not there"
    folders = {path.name for path in (root / "forebay").iterdir() if path.is_dir()}
    for room in sorted(folders - rooms.keys()):
        yield f"forebay/{room}: '{room}' is not a room of {TABLE}"
    for room in sorted(rooms.keys() - folders):
        yield f"{TABLE}: there is no folder forebay/{room}"
    for room, (others, headers) in rooms.items():
        for other in sorted(others - rooms.keys()):
            yield f"{TABLE}: '{other}', which '{room}' may include, is no room"
        for header in headers:
            if not (root / "forebay" / header).is_file():
                yield f"{TABLE}: the front header forebay/{header} of '{room}' is not there"


def include_offences(root: pathlib.Path, rooms: dict):
    for path in sorted((root / "forebay").rglob("*")):
        if path.suffix not in (".h", ".cc") or path.stem.endswith(("_test", "_testing")):
            continue  # a test may bring another room to check its own against
        room = path.relative_to(root / "forebay").parts[0]
        if room not in rooms:
            continue  # said already
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            folder, other, rest = match.groups()
            where = f"{path.relative_to(root)}:{number}"
            if folder == "apps":
                yield f"{where}: a room may not include apps/, which wires the rooms together"
            elif other == room:
                continue
            elif other not in rooms[room][0]:
                yield f"{where}: room '{room}' may not include room '{other}'"
            elif "/" in rest:
                yield f"{where}: '{other}/{rest}' is private to room '{other}'"


def link_offences(root: pathlib.Path, rooms: dict):
    for room in rooms:
        path = root / "forebay" / room / "CMakeLists.txt"
        match = LINKS.search(path.read_text(encoding="utf-8")) if path.is_file() else None
        for other in sorted(set(match.group(2).split()) - rooms[room][0]) if match else []:
            yield f"{path.relative_to(root)}: room '{room}' may not link room '{other}'"


def offences(root: pathlib.Path) -> list[str]:
    rooms = read_table((root / TABLE).read_text(encoding="utf-8"))
    return [*table_offences(root, rooms), *include_offences(root, rooms), *link_offences(root, rooms)]


def main() -> int:
    found = offences(pathlib.Path(__file__).resolve().parent.parent)
    for offence in found:
        print(offence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
