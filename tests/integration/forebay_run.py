"""What the integration tests share: the binary under test, small configurations, and reading a run directory."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import textwrap
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOREBAY = os.environ.get("FOREBAY_BINARY", str(SOURCE / "build/release/bin/forebay"))

# Compiled programs of all these tests, beside the binary: most of them run the same ones, whose compilation would take most of their time.
PROGRAMS = pathlib.Path(FOREBAY).resolve().parents[1] / "test_programs"
PROGRAMS.mkdir(parents=True, exist_ok=True)

# A tiny random model on the built-in environment: a step takes milliseconds.
SMALL = f"""
[device]
cache_dir = "{PROGRAMS}"
[run]
steps = 6
seed = 3
[model]
path = "tiny:"
tiny_width = 32
tiny_heads = 2
tiny_kv_heads = 1
tiny_ff = 64
[env]
name = "letters"
kind = "builtin"
builtin = "slow"
options = '{{"turns_min": 1, "turns_max": 2, "latency_p50_s": 0.02, "latency_p99_s": 0.1}}'
[rollout]
actors = 16
slots = 8
context = 256
tokens_max = 256
turns_max = 2
new_tokens_per_turn_max = 8
[buffer]
max_staleness = 2
[learner]
groups_per_step = 2
group_size = 4
learning_rate = 1e-3
tokens_per_program = 512
row_lengths = [256]
[checkpoint]
every_steps = 2
[eval]
tasks = 0
"""

# The same on a Python environment, whose source the test gives.
PYTHON_ENV = """
[env]
name = "test"
command = ["python3", "env.py"]
python_path = ["%s"]
step_deadline_s = 2
reset_deadline_s = 5
start_deadline_s = 10
""" % (SOURCE / "python")


def small_with_python_env() -> str:
    head, rest = SMALL.split("[env]")
    return head + PYTHON_ENV + "[rollout]" + rest.split("[rollout]", 1)[1]


class ForebayTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="forebay_test_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.run_folder = self.folder / "run"

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def command(self, *args) -> list:
        serving = args[:1] == ("serve",) and "--help" not in args
        return [FOREBAY, *map(str, args), *(("--cache-dir", str(PROGRAMS)) if serving else ())]

    def forebay(self, *args, timeout: float = 600) -> subprocess.CompletedProcess:
        """Runs to the end; a hang is a failure of the test."""
        return subprocess.run(self.command(*args), capture_output=True, text=True, timeout=timeout, cwd=self.folder)

    def train(self, config: pathlib.Path, *args, **kwargs) -> subprocess.CompletedProcess:
        return self.forebay("train", config, "--run", self.run_folder, *args, **kwargs)

    def lines(self, name: str) -> list:
        """The complete lines of a .jsonl file of the run: a killed run may leave a torn last one."""
        out = []
        path = self.run_folder / name
        if not path.exists():
            return out
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                out.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return out

    def report(self) -> dict:
        return json.loads((self.run_folder / "report.json").read_text(encoding="utf-8"))

    def assert_fails(self, done: subprocess.CompletedProcess, code: int, *words: str):
        """It ended with this exit code and one clear paragraph that holds these words."""
        self.assertEqual(done.returncode, code, done.stderr + done.stdout[-2000:])
        error = done.stderr.strip()
        self.assertTrue(error.startswith("forebay: "), error)
        for word in words:
            self.assertIn(word, error)
        for noise in ("terminate called", "check failed", "Traceback (most recent call last):\n  File \"<"):
            self.assertNotIn(noise, error)
