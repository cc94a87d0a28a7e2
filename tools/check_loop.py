#!/usr/bin/env python3
"""Nothing that runs on a Loop may block (forebay/base/loop.h): names the calls that do in the code of actors, environments,
HTTP and the actors' side of apps/. A line that is right all the same says why in a comment that begins with
`// may wait:` there or on the line before. Prints each offence; exit code 1 if there is one."""
import pathlib
import re
import sys

ON_THE_LOOP = [
    "forebay/base/http",
    "forebay/base/loop.cc",
    "forebay/base/websocket.h",
    "forebay/env",
    "forebay/rollout/actor_pool.cc",
    "forebay/rollout/conversation.cc",
    "forebay/rollout/episode.cc",
    "forebay/rollout/external",
    "forebay/rollout/serving",
    "apps/run_actors.cc",
]
BLOCKS = re.compile(
    r"this_thread::sleep|\b(?:u|nano)?sleep\(|\bstd::system\(|\bpopen\(|\bgetaddrinfo\(|\bf(?:data)?sync\("
    r"|\bwaitpid\((?!.*WNOHANG)|\bpoll\((?!.*, 0\))|get_future\(\)\.(?:get|wait)|\bCondVar\b|condition_variable"
    r"|AndWait\(|(?:\.|->)(?:Lease|ReadBatch)\(|\.join\(\)")
EXCUSE = "// may wait:"


def files(root: pathlib.Path):
    for name in ON_THE_LOOP:
        path = root / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".h", ".cc") and not file.stem.endswith(("_test", "_testing", "_fuzz")):
                yield file


def offences(root: pathlib.Path):
    for path in files(root):
        if not path.exists():
            continue
        before = ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0]
            if BLOCKS.search(code) and EXCUSE not in line and EXCUSE not in before:
                yield f"{path.relative_to(root)}:{number}: blocks a loop: {line.strip()}"
            before = line if line.strip().startswith("//") else ""


def main() -> int:
    found = list(offences(pathlib.Path(__file__).resolve().parent.parent))
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
