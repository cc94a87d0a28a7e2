"""Goal: what an unlucky user meets at the edges (prompts that do not fit, a damaged or full run directory, two programs on
one run) ends soon, with the exit code of its kind and one clear paragraph."""
import signal
import subprocess
import time
import unittest

from forebay_run import SMALL, ForebayTest, small_with_python_env

# Speaks the protocol by itself, so that it can break it.
RAW_ENV = """
import json, sys
def out(o):
    print(json.dumps(o), flush=True)
sys.stdin.readline()
out({"forebay_env": 1, "name": "raw"})
for line in sys.stdin:
    r = json.loads(line)
    if r["op"] == "close":
        out({"closed": r["episode"]})
    elif r["op"] == "reset":
        out({"id": r["id"], "messages": [{"role": "user", "content": "Say a."}]})
    else:
        answer = {"id": r["id"], "messages": [], "rewards": {"c": float(len(r["action"]) % 3)}, "done": True}
        STEP
        out(answer)
"""


class EdgeTest(ForebayTest):
    def test_prompts_that_leave_no_room_end_the_run(self):
        # Each such episode ends at once, so without this the run would spin until its lease deadline.
        done = self.train(self.write("c.toml", SMALL), "--set", "rollout.tokens_max=8")
        self.assert_fails(done, 2, "no room for an action", "rollout.tokens_max = 8")
        self.assertLess(len(self.lines("trajectories.jsonl")), 1000)

    def test_an_environment_whose_every_step_fails_ends_the_run(self):
        # Its resets succeed, so a probe finds nothing wrong; and its failures do not fill the disk.
        self.write("env.py", RAW_ENV.replace("STEP", "answer['rewards']['c'] = float('nan')"))
        done = self.train(self.write("c.toml", small_with_python_env()), "--set", "run.steps=1000")
        self.assert_fails(done, 4, "episodes failed", "NaN")
        self.assertLess((self.run_folder / "run.log").stat().st_size, 2 << 20)

    def test_two_programs_never_write_one_run(self):
        config = self.write("c.toml", SMALL.replace("steps = 6", "steps = 100000"))
        first = subprocess.Popen(self.command("train", config, "--run", self.run_folder), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(first.kill)
        deadline = time.monotonic() + 600
        while len(self.lines("metrics.jsonl")) < 1:
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.02)
        self.assert_fails(self.train(config, "--overwrite"), 2, "another process runs in")
        self.assert_fails(self.forebay("train", "--resume", self.run_folder), 2, "another process runs in")
        self.assertEqual(self.forebay("audit", self.run_folder).returncode, 0)
        # The terminal goes away: as an interrupt, it leaves a checkpoint.
        first.send_signal(signal.SIGHUP)
        _, error = first.communicate(timeout=600)
        self.assertEqual(first.returncode, 130, error)
        # A torn line (a full disk, a lost power supply) takes nothing else with it.
        lines = len(self.lines("metrics.jsonl"))
        with open(self.run_folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 99')
        done = self.forebay("train", "--resume", self.run_folder, "--set", f"run.steps={lines + 2}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["step"] for line in self.lines("metrics.jsonl")], list(range(1, lines + 3)))

    def test_an_interrupt_ends_an_evaluation_at_the_next_turn(self):
        slow = SMALL.replace("tasks = 0", "tasks = 100000").replace('"latency_p99_s": 0.1', '"latency_p99_s": 0.5')
        process = subprocess.Popen(self.command("train", self.write("c.toml", slow), "--run", self.run_folder),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.startswith("evaluating before training"):
                break
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, error)
        self.assertEqual(self.lines("evals.jsonl"), [])

    def test_output_that_cannot_be_written_is_no_success(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(self.command("config"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 6, done.stderr)


if __name__ == "__main__":
    unittest.main()
