#!/usr/bin/env python3
"""Nothing that runs on a Loop may block (forebay/base/loop.h): names the calls that do in the code of actors, environments,
HTTP and the actors' side of apps/. A line that is right all the same says why in a comment that begins with
`// may wait:` there or on the line before.

Nor may anything there work on text that may be long: what tokenizes, renders, or reads and writes JSON in the files that move
episodes and calls stands inside an `Offload(...)`, or its statement has a comment that begins with `// short:` or `// on a worker:`, right before
it or at its end. A comment excuses one statement, up to the `;` or the brace that ends it. Prints each offence; exit code 1 if there is one."""
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
    "apps/failure_watch.cc",
    "apps/run_actors.cc",
]
BLOCKS = re.compile(
    r"this_thread::sleep|\b(?:u|nano)?sleep\(|\bstd::system\(|\bpopen\(|\bgetaddrinfo\(|\bf(?:data)?sync\("
    r"|\bwaitpid\((?!.*WNOHANG)|\bpoll\((?!.*, 0\))|get_future\(\)\.(?:get|wait)|\bCondVar\b|condition_variable"
    r"|AndWait\(|(?:\.|->)(?:Lease|ReadBatch)\(|\.join\(\)")
EXCUSE = "// may wait:"

# Of the files above: those whose functions run on the loop. What is not here in rollout/serving is called by workers.
WITHOUT_TEXT = [
    "forebay/rollout/actor_pool.cc",
    "forebay/rollout/episode.cc",
    "forebay/rollout/serving/completion.cc",
    "forebay/rollout/serving/generation.cc",
    "forebay/rollout/serving/harness_episode.cc",
    "forebay/rollout/serving/openai_server.cc",
    "forebay/rollout/serving/recording_proxy.cc",
    "apps/failure_watch.cc",
    "apps/harness_setup.cc",
    "apps/run_actors.cc",
]
TEXT = re.compile(
    r"nlohmann|\bJson::|(?:\.|->)(?:Encode|Decode|Render|RenderJson|Prepare|Whole|Chunks|Prompts|PostReward)\("
    r"|(?:\b|::)(?:Encode|Decode|TrajectoryLine|ReadRewards|EndOf|ActionText|ParseApiRequest|RenderChat|MakePrompts|ErrorJson|ModelsJson)\("
    r"|conversation\.(?:Open|Next)\(|episode->(?:Begin|Add|Close)\(")
FINE = ("// short:", "// on a worker:")


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


def statements(text: str):
    """(line number, code, the comment that stands before its statement or at its end, whether it is an argument of Offload) of each line."""
    depth, end = 0, None  # of parentheses; where the innermost Offload began
    comment, fresh = "", True  # fresh: the next code begins a statement
    for number, line in enumerate(text.splitlines(), 1):
        code, _, remark = line.partition("//")
        inside = end is not None
        for match in re.finditer(r"\bOffload\(|[()]", code):
            if match.group() == ")":
                depth -= 1
                if end is not None and depth <= end:
                    end = None
                continue
            if match.group() != "(" and end is None:
                end, inside = depth, True
            depth += 1
        if not code.strip():
            if fresh:
                comment = comment + " //" + remark if remark else ""
            continue
        yield number, code, comment + (" //" + remark if remark else ""), inside
        fresh = code.rstrip().endswith((";", "{", "}", ":"))
        if fresh:
            comment = ""


def text_offences(root: pathlib.Path):
    for name in WITHOUT_TEXT:
        for number, code, comment, offloaded in statements((root / name).read_text(encoding="utf-8")):
            defines = code[:1].isalpha()
            if TEXT.search(code) and not defines and not offloaded and not any(word in comment for word in FINE):
                yield f"{name}:{number}: works on text on a loop: {code.strip()}"


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    found = [*offences(root), *text_offences(root)]
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
