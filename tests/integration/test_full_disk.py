"""Goal: a disk without room never hangs, kills or corrupts a run: it goes on after the room is back, or ends with the exit
code of its kind and the reason, and can be resumed to the same ledger.

Three kinds of "no room": the buffer's own limit; a limit on the size of files (RLIMIT_FSIZE, `ulimit -f`); and a real ENOSPC
on a small file system, which bubblewrap makes for one process (skipped where user namespaces are not allowed)."""
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

from forebay_run import ForebayTest, small_with_python_env

# Nothing to learn (a step costs nothing), but a trajectory of 9 KiB.
FAT_ENV = """
from forebay import Environment, Step, serve

class Fat(Environment):
    def reset(self, task, split, seed):
        return "Say a."
    def step(self, action):
        return Step(observation="", reward={f"{i:0128}": 0.0 for i in range(64)}, done=True)

serve(Fat)
"""
FAT_BYTES = 9000
EPISODES_PER_STEP = 8
DISK_MB = 16


def fat_config(steps: int) -> str:
    text = small_with_python_env().replace("steps = 6", f"steps = {steps}")
    return text.replace("[buffer]", f'[buffer]\ndurability = "os"\ndisk_mb_max = {DISK_MB}\nsegment_mb = 1\n')


class FullDiskTest(ForebayTest):
    def config(self, steps: int) -> pathlib.Path:
        self.write("env.py", FAT_ENV)
        return self.write("c.toml", fat_config(steps))

    def assert_whole(self, steps: int) -> None:
        """The run reached its target, the ledger balances, and no trajectory was trained on twice."""
        report = self.report()
        self.assertEqual(report["steps"], steps)
        self.assertTrue(report["ledger_balanced"])
        self.assertEqual(report["ledger"]["trained"], steps * EPISODES_PER_STEP)
        of_step = {line["step"]: line["trajectory_ids"] for line in self.lines("metrics.jsonl")}
        counts = collections.Counter(i for ids in of_step.values() for i in ids)
        self.assertEqual(set(counts.values()), {1})

    def test_W3_the_limit_of_the_buffer_is_waited_for_and_a_checkpoint_makes_room(self):
        # Without a commit before the end the log would need twice its limit.
        steps = 2 * DISK_MB * (1 << 20) // (FAT_BYTES * EPISODES_PER_STEP)
        process = subprocess.Popen(
            self.command("train", self.config(steps), "--run", self.run_folder, "--set", "checkpoint.every_steps=0"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(process.kill)
        largest = 0
        deadline = time.monotonic() + 400
        while process.poll() is None:
            self.assertLess(time.monotonic(), deadline, "it hangs")
            largest = max(largest, size_of(self.run_folder / "buffer"))
            time.sleep(0.05)
        self.assertEqual(process.returncode, 0, process.stderr.read())
        process.stderr.close()
        self.assert_whole(steps)
        self.assertLessEqual(largest, DISK_MB << 20)
        self.assertGreaterEqual((self.run_folder / "run.log").read_text().count("written"), 2, "no early checkpoint")

    def test_a_limit_on_file_sizes_is_an_error_not_a_signal(self):
        config = self.config(6)
        done = self.limited(64 << 10, "train", config, "--run", self.run_folder)
        self.assert_fails(done, 6, "File too large", "buffer")
        # The log fits, a checkpoint does not: the run says so, and goes on from what the log holds.
        big = ["--set", "model.tiny_width=256", "--set", "model.tiny_ff=1024"]
        done = self.limited(3 << 20, "train", config, "--run", self.run_folder, *big)
        self.assert_fails(done, 6, "checkpoint of step 6", "File too large")
        self.assertEqual([p.name for p in (self.run_folder / "checkpoints").iterdir()], [])
        done = self.forebay("train", "--resume", self.run_folder, "--set", "run.steps=8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("6 batches to repeat", (self.run_folder / "run.log").read_text())
        self.assert_whole(8)

    def limited(self, bytes_max: int, *args) -> subprocess.CompletedProcess:
        return subprocess.run(["prlimit", f"--fsize={bytes_max}", *self.command(*args)], capture_output=True, text=True,
                              timeout=300, cwd=self.folder)

    # ---- a file system of its own

    def inside(self, config: pathlib.Path, hold_s: float) -> dict:
        """Trains with the run directory on a file system of 48 MiB that another program fills for `hold_s` seconds, in
        the middle; gives what happened, and the run directory is copied here."""
        small = self.folder / "small"
        small.mkdir()
        sandbox = ["bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--size", str(48 << 20), "--tmpfs", str(small)]
        try:
            subprocess.run([*sandbox, "true"], check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"bubblewrap cannot make a small file system here: {error}")
        order = {"command": self.command("train", config, "--run", small / "run", "--quiet"), "run": str(small / "run"),
                 "hold_s": hold_s, "copy_to": str(self.run_folder), "cwd": str(self.folder)}
        done = subprocess.run([*sandbox, sys.executable, __file__, json.dumps(order)], capture_output=True, text=True,
                              timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_full_disk_that_clears_is_waited_for(self):
        steps = 120
        found = self.inside(self.config(steps), hold_s=6)
        self.assertGreater(found["steps_before"], 0)
        self.assertLess(found["steps_before"], steps, "it was over before the disk was full")
        # All steps were taken; that lines of the step log are missing is said.
        self.assertEqual(found["code"], 6, found["stderr"])
        if "disk full?" in found["stderr"]:
            self.assertEqual(self.report()["steps"], steps)
            self.assertTrue(self.report()["ledger_balanced"])
        else:  # a fast machine was at the end before there was room for a checkpoint
            self.assertIn("No space left on device", found["stderr"])
        done = self.forebay("train", "--resume", self.run_folder, "--set", f"run.steps={steps + 4}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_whole(steps + 4)

    def test_a_disk_that_stays_full_ends_the_run_with_the_reason(self):
        steps = 120
        found = self.inside(self.config(steps), hold_s=400)
        self.assertLess(found["steps_before"], steps)
        self.assertIn(found["code"], (5, 6), found["stderr"])
        self.assertIn("No space left on device", found["stderr"])
        self.assertLess(found["seconds"], 300)
        done = self.forebay("train", "--resume", self.run_folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_whole(steps)


def size_of(folder: pathlib.Path) -> int:
    total = 0
    for path in folder.glob("*") if folder.exists() else ():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            pass
    return total


def run_on_a_small_disk(order: dict) -> dict:
    """Inside the sandbox: starts the run, fills the disk once it has made progress, frees it after a while or at the end."""
    metrics = pathlib.Path(order["run"]) / "metrics.jsonl"

    def steps() -> int:
        return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0

    start = time.monotonic()
    process = subprocess.Popen(order["command"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               cwd=order["cwd"])
    while steps() < 10 and process.poll() is None:
        time.sleep(0.01)
    before = steps()
    hog = pathlib.Path(order["run"]).parent / "hog"
    end = time.monotonic() + order["hold_s"]
    with open(hog, "wb", buffering=0) as file:
        while process.poll() is None and time.monotonic() < end:
            try:
                while file.write(bytes(1 << 20)) == 1 << 20:
                    pass
            except OSError:
                pass
            time.sleep(0.05)  # what the run gives back is taken, too
    hog.unlink()
    try:
        _, error = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.kill()
        _, error = process.communicate()
        error = "it hangs: " + error
    seconds = time.monotonic() - start
    shutil.copytree(order["run"], order["copy_to"])
    return {"code": process.returncode, "stderr": error, "steps_before": before, "seconds": seconds}


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(run_on_a_small_disk(json.loads(sys.argv[1]))))
    else:
        unittest.main()
