"""Goal: whoever interrupts a run does not wait for a tool that hangs: the run ends soon, leaves no process, and goes on later with
nothing lost and nothing counted twice. A second interrupt ends it at once."""
import pathlib
import signal
import subprocess
import time
import unittest

from forebay_run import ForebayTest, small_with_python_env

# Steps hang for good once `hang` is there; each leaves its process id in `pids` and starts a child that would live on.
HANGS = '''
import os, pathlib, signal, subprocess, time
from forebay import Environment, Step, serve
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = pathlib.Path(__file__).parent
child = subprocess.Popen(["sleep", "3600"])
(here / "pids").mkdir(exist_ok=True)
for pid in (os.getpid(), child.pid): (here / "pids" / str(pid)).touch()
class Env(Environment):
    def reset(self, task, split, seed): return f"Say {task}."
    def step(self, action):
        if (here / "hang").exists():
            (here / "hung").touch()
            while True: time.sleep(1000)
        time.sleep(0.02)
        return Step(reward=float(len(action) % 3), done=True)
serve(Env)
'''

# From the first interrupt to the end; beyond it are the waits that there once were (30 s for episodes, 60 s for a step).
ENDS_WITHIN_S = 25


class InterruptTest(ForebayTest):
    def interrupted(self, evaluation: str = ""):
        """A run all of whose episodes hang in their environment, which has been interrupted once."""
        self.write("env.py", HANGS)
        config = small_with_python_env().replace("steps = 6", "steps = 100000").replace("step_deadline_s = 2", "step_deadline_s = 600")
        if evaluation:
            config = config.replace("tasks = 0", evaluation)
            (self.folder / "hang").touch()
        config = self.write("c.toml", config)
        process = subprocess.Popen(self.command("train", config, "--run", self.run_folder), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(process.kill)
        if not evaluation:
            self.wait_until(lambda: len(self.lines("metrics.jsonl")) >= 3)
            (self.folder / "hang").touch()
        self.wait_until((self.folder / "hung").exists)
        process.send_signal(signal.SIGINT)
        return process

    def wait_until(self, true) -> None:
        deadline = time.monotonic() + 600
        while not true():
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.02)

    def assert_no_process_is_left(self) -> None:
        def left():
            return [path.name for path in (self.folder / "pids").iterdir() if alive(path.name)]
        self.wait_until(lambda: not left())

    def test_l7_an_interrupt_waits_for_no_environment_that_hangs(self):
        began = time.monotonic()
        process = self.interrupted()
        began = time.monotonic()
        _, error = process.communicate(timeout=600)
        self.assertLess(time.monotonic() - began, ENDS_WITHIN_S, error)
        self.assertEqual(process.returncode, 130, error)
        self.assert_no_process_is_left()
        # What was under way plays again, with the same seed; nothing is lost or counted twice.
        (self.folder / "hang").unlink()
        steps = len(self.lines("metrics.jsonl"))
        done = self.forebay("train", "--resume", self.run_folder, "--set", f"run.steps={steps + 3}")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = self.report()
        self.assertEqual(report["steps"], steps + 3)
        self.assertTrue(report["ledger"]["balanced"], report["ledger"])
        self.assertEqual(report["ledger"]["in_flight"], 0)
        self.assertGreater(report["ledger"]["rejected"]["lost_in_crash"], 0)
        self.assertEqual([line["step"] for line in self.lines("metrics.jsonl")], list(range(1, steps + 4)))
        self.assertIn("interrupted or killed", done.stdout)

    def test_l7_nor_does_one_in_an_evaluation(self):
        process = self.interrupted("tasks = 8")
        began = time.monotonic()
        _, error = process.communicate(timeout=600)
        self.assertLess(time.monotonic() - began, ENDS_WITHIN_S, error)
        self.assertEqual(process.returncode, 130, error)
        self.assert_no_process_is_left()
        self.assertEqual(self.lines("evals.jsonl"), [])

    def test_l7_a_second_interrupt_ends_the_program_at_once(self):
        process = self.interrupted()
        # The first has been seen when its handler is gone: only then does another one end the program.
        self.wait_until(lambda: process.poll() is not None or not catches(process.pid, signal.SIGINT))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)
        # 130: the first one had done its work just before.
        self.assertIn(process.returncode, (-signal.SIGINT, 130))
        self.assert_no_process_is_left()


def alive(pid: str) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(") ", 1)[1][0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def catches(pid: int, number: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


if __name__ == "__main__":
    unittest.main()
