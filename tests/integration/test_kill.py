"""Goal: a run that is killed with -9 at any moment goes on as if nothing had happened: the same number of optimizer
steps, every acknowledged trajectory trained once or still pending, the ledger balanced."""
import collections
import random
import signal
import subprocess
import time
import unittest

from forebay_run import SMALL, ForebayTest, small_with_python_env

STEPS = 24
KILLS = 5
ACTORS, GROUP_SIZE = 16, 4  # of SMALL


class KillTest(ForebayTest):
    def start(self, *args) -> subprocess.Popen:
        return subprocess.Popen(self.command("train", *args), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                cwd=self.folder)

    def test_D1_D2_D3_five_kills(self):
        rng = random.Random(11)
        config = self.write("c.toml", SMALL.replace("steps = 6", f"steps = {STEPS}").replace("every_steps = 2", "every_steps = 3"))
        process = self.start(config, "--run", self.run_folder)
        kills = 0
        while kills < KILLS:
            # A random moment after the run has made some progress since the last kill.
            steps_before = len(self.lines("metrics.jsonl"))
            deadline = time.monotonic() + 600
            while len(self.lines("metrics.jsonl")) < steps_before + 1 and process.poll() is None:
                self.assertLess(time.monotonic(), deadline, "no progress")
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            if process.poll() is not None:
                self.fail(f"it ended by itself after {kills} kills: {process.returncode} {process.stderr.read()}")
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stderr.close()
            kills += 1
            process = self.start("--resume", self.run_folder)
        _, error = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, error)

        report = self.report()
        self.assertEqual(report["steps"], STEPS)
        self.assertTrue(report["ledger_balanced"])
        # A step that was repeated after a kill was repeated on the same trajectories.
        by_step = collections.defaultdict(set)
        for line in self.lines("metrics.jsonl"):
            by_step[line["step"]].add(tuple(line["trajectory_ids"]))
        self.assertEqual(sorted(by_step), list(range(1, STEPS + 1)))
        for step, batches in by_step.items():
            self.assertEqual(len(batches), 1, f"step {step} was repeated on other trajectories")
        # Every trajectory was trained on at most once.
        trained = [i for batches in by_step.values() for i in next(iter(batches))]
        self.assertEqual(len(trained), len(set(trained)))
        # A kill may fall between an acknowledgement and its line: then the line is missing, never the trajectory.
        lines = {line["trajectory_id"]: line for line in self.lines("trajectories.jsonl")}
        self.assertLessEqual(len(set(trained) - set(lines)), KILLS * ACTORS)
        # No acknowledged one was lost: each is trained on, pending, or rejected for a reason other than the crash.
        ledger = self.lines("metrics.jsonl")[-1]["ledger"]
        self.assertEqual(ledger["trained"], len(trained))
        when_counted = max(trained)
        acknowledged = [i for i, line in lines.items() if i <= when_counted and line["outcome"] == "done"]
        self.assertLessEqual(len(acknowledged), ledger["trained"] + ledger["pending"] + ledger["rejected"]["stale"] +
                             ledger["in_flight"])
        # Whole groups, each member once: none skipped, none doubled.
        members = collections.Counter((lines[i]["group_id"], lines[i]["member"]) for i in trained if i in lines)
        self.assertEqual(set(members.values()), {1})
        groups = collections.Counter(lines[i]["group_id"] for i in trained if i in lines)
        partial = sum(GROUP_SIZE - members for members in groups.values())
        self.assertLessEqual(partial, len(set(trained) - set(lines)))
        # D4: the bound holds in the first steps after a resume too.
        for line in self.lines("metrics.jsonl"):
            self.assertLessEqual(max(map(int, line["staleness"])), 2)

    def test_an_interrupt_while_compiling_ends_it_and_audit_says_so(self):
        config = self.write("c.toml", SMALL)
        process = subprocess.Popen(self.command("train", config, "--run", self.run_folder, "--set", "device.cache_dir="),  # it compiles
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        while (line := process.stdout.readline()) and line.strip() != "compiling":
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)
        self.assertIn(process.returncode, (-signal.SIGINT, 130))
        audit = self.forebay("audit", self.run_folder)
        self.assertEqual(audit.returncode, 0, audit.stderr)
        self.assertIn("No step was trained", audit.stdout)
        # It was no run yet: the same command starts one.
        done = self.train(config, "--set", "run.steps=1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_D7_resuming_at_the_target_does_nothing(self):
        config = self.write("c.toml", SMALL.replace("steps = 6", "steps = 2"))
        self.assertEqual(self.train(config).returncode, 0)
        steps, report = len(self.lines("metrics.jsonl")), self.report()
        done = self.forebay("train", "--resume", self.run_folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("has taken all of its 2 steps", done.stdout)
        self.assertEqual(len(self.lines("metrics.jsonl")), steps)
        self.assertEqual(self.report(), report)

    def test_L2_quarantine_survives_a_resume(self):
        self.write("env.py", """
            from forebay import Environment, Step, serve

            class Test(Environment):
                def reset(self, task, split, seed):
                    if task == 1:
                        raise ValueError("this task is broken")
                    return "Say a."
                def step(self, action):
                    return Step(observation="", reward={"length": float(len(action) % 3)}, done=True)

            serve(Test)
            """)
        config = self.write("c.toml", small_with_python_env())
        sets = ["--set", "env.tasks=4", "--set", "rollout.attempts_max=2"]
        done = self.train(config, *sets)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("quarantined tasks     1\n", done.stdout)

        def of_task_1() -> int:
            return sum(line["task_id"] == 1 for line in self.lines("trajectories.jsonl"))

        before = of_task_1()
        self.assertGreater(before, 0)
        done = self.forebay("train", "--resume", self.run_folder, "--set", "run.steps=12")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("quarantined tasks     1\n", done.stdout)
        self.assertEqual(of_task_1(), before)

    def test_interrupt_writes_a_checkpoint_and_says_how_to_go_on(self):
        config = self.write("c.toml", SMALL.replace("steps = 6", "steps = 100000"))
        process = self.start(config, "--run", self.run_folder)
        deadline = time.monotonic() + 600
        while len(self.lines("metrics.jsonl")) < 3:
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, error)
        self.assertIn("--resume", error)
        steps = len(self.lines("metrics.jsonl"))
        done = self.forebay("train", "--resume", self.run_folder, "--set", f"run.steps={steps + 2}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.report()["steps"], steps + 2)
        self.assertEqual([line["step"] for line in self.lines("metrics.jsonl")], list(range(1, steps + 3)))


if __name__ == "__main__":
    unittest.main()
