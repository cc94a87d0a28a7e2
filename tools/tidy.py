#!/usr/bin/env python3
"""clang-tidy over many sources in minutes.

    tools/tidy.py BUILD_DIR SOURCE...

Reading a source's headers, the standard library's above all, takes ten times what the source itself takes. So BATCH
sources are read as one translation unit. What is found there (or two sources that cannot stand together, because
they name a local alike) splits the batch in halves, down to the single source, whose findings are printed. A source
is skipped when neither it nor any header, flag or setting changed since it was clean: .deps/tidy/ holds the keys.
"""
import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile

BATCH = 8
KEYS = ".deps/tidy"
SOURCE_CHECKS = "-bugprone-suspicious-include"  # a batch includes sources
# Tests run for correctness only: the checks for speed say nothing of use there. What is left are the faults that
# let a test pass that should not.
TEST_CHECKS = ",".join([
    "-*", "bugprone-argument-comment", "bugprone-dangling-handle", "bugprone-infinite-loop",
    "bugprone-sizeof-expression", "bugprone-string-constructor", "bugprone-unused-raii", "bugprone-use-after-move",
    "readability-identifier-naming", "clang-diagnostic-thread-safety*"])


def flags_by_source(build):
    """For each source of the compile database what decides how it reads: macros, include folders, the standard."""
    flags = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        for entry in json.load(f):
            words = iter(shlex.split(entry["command"]))
            own = []
            for word in words:
                if word == "-isystem":
                    own.append(word + next(words))
                elif word.startswith(("-D", "-I", "-std=")):
                    own.append(word)
            flags[os.path.relpath(entry["file"])] = own
    return flags


def is_test(source):
    return source.endswith(("_test.cc", "_testing.cc"))


def run_tidy(path, flags, test):
    """(clean, what clang-tidy said)"""
    command = ["clang-tidy-19", "--config-file=.clang-tidy", "--quiet", "--warnings-as-errors=*",
               "--checks=" + (TEST_CHECKS if test else SOURCE_CHECKS)]
    done = subprocess.run([*command, path, "--", *flags], capture_output=True, text=True)
    return done.returncode == 0, done.stdout or done.stderr


def tidy(sources, flags, keys):
    """Findings in sources, all tests or none; a clean source's key is written."""
    test = is_test(sources[0])
    if len(sources) == 1:
        clean, said = run_tidy(sources[0], flags[sources[0]], test)
        if not clean:
            return [f"lint: clang-tidy failed on {sources[0]}\n{said}"]
    else:
        together = list(dict.fromkeys(flag for source in sources for flag in flags[source]))
        with tempfile.NamedTemporaryFile("w", dir=KEYS, suffix=".cc") as unit:
            unit.writelines(f'#include "{os.path.abspath(source)}"\n' for source in sources)
            unit.flush()
            clean, _ = run_tidy(unit.name, together, test)
        if not clean:
            half = len(sources) // 2
            return tidy(sources[:half], flags, keys) + tidy(sources[half:], flags, keys)
    for source in sources:
        open(os.path.join(KEYS, keys[source]), "w", encoding="utf-8").close()
    return []


def main():
    build, sources = sys.argv[1], sys.argv[2:]
    os.makedirs(KEYS, exist_ok=True)
    flags = flags_by_source(build)
    unknown = [source for source in sources if source not in flags]
    if unknown:
        sys.exit(f"lint: {build} does not compile {', '.join(unknown)}: configure it again")

    common = hashlib.sha256()
    headers = subprocess.run(["git", "ls-files", "-z", "*.h"], check=True, capture_output=True, text=True).stdout
    for path in [*headers.split("\0")[:-1], ".clang-tidy", __file__]:
        with open(path, "rb") as f:
            common.update(f.read())
    keys = {}
    for source in sources:
        own = common.copy()
        own.update(repr((source, flags[source])).encode())
        with open(source, "rb") as f:
            own.update(f.read())
        keys[source] = own.hexdigest()

    todo = sorted(source for source in sources if not os.path.exists(os.path.join(KEYS, keys[source])))
    batches = []
    for alike in ([s for s in todo if not is_test(s)], [s for s in todo if is_test(s)]):
        batches += [alike[i:i + BATCH] for i in range(0, len(alike), BATCH)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for findings in pool.map(lambda batch: tidy(batch, flags, keys), batches):
            failed += len(findings)
            print(*findings, sep="\n", end="", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
