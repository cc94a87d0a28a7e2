"""Goal: `forebay replay` takes any kept optimizer step again with the same bits, changes nothing in the run directory, and
names the first thing that differs, or what is missing or damaged."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from forebay_run import SMALL, ForebayTest

FIELDS = 23  # of a fingerprint


class ReplayTest(ForebayTest):
    cache = None  # folder of the runs that several tests look at

    @classmethod
    def setUpClass(cls):
        cls.cache = pathlib.Path(tempfile.mkdtemp(prefix="forebay_test_"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.cache, ignore_errors=True)

    def trained(self, name: str = "run", *args) -> pathlib.Path:
        """A copy of a run of 6 steps, trained once."""
        cached = self.cache / name
        if not cached.exists():
            done = self.forebay("train", self.write("c.toml", SMALL), "--run", cached, *args)
            self.assertEqual(done.returncode, 0, done.stderr)
        shutil.copytree(cached, self.folder / name)
        return self.folder / name

    def replay(self, step: int, *args) -> subprocess.CompletedProcess:
        """Replays, and checks that the run directory stays as it is, to the byte and the time of change."""
        before = self.state_of_run()
        done = self.forebay("replay", self.run_folder, "--step", step, *args)
        self.assertEqual(self.state_of_run(), before)
        return done

    def state_of_run(self) -> dict:
        out = {}
        for path in sorted(self.run_folder.rglob("*")):
            stat = path.stat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            out[str(path)] = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, content)
        return out

    def assert_equal_bits(self, done: subprocess.CompletedProcess, step: int, rows: int) -> None:
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn(f"step {step} was repeated bit for bit", done.stdout)
        self.assertIn(f"{rows} comparisons", done.stdout)

    def edit_line(self, name: str, number: int, edit) -> None:
        """Replaces one line of a .jsonl file by what `edit` makes of it."""
        path = self.run_folder / name
        lines = path.read_text().splitlines()
        entry = json.loads(lines[number])
        edit(entry)
        lines[number] = json.dumps(entry)
        path.write_text("\n".join(lines) + "\n")

    # ---- what must hold

    def test_each_step_of_a_run(self):
        self.trained()
        done = self.forebay("replay", self.run_folder, "--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("steps 1 to 6 are recorded", done.stdout)
        self.assertIn("steps 5 to 6 can be replayed from the checkpoint of step 4", done.stdout)
        # Checkpoints of steps 4 and 6 are kept: what they hold is compared, too.
        for step, steps, checkpoints in ((1, 1, 0), (4, 4, 4), (5, 1, 1), (6, 2, 1 + 4)):
            self.assert_equal_bits(self.replay(step), step, steps * FIELDS + checkpoints)
        found = json.loads(self.replay(6, "--json").stdout)
        self.assertTrue(found["equal"])
        self.assertEqual(found["from_step"], 4)
        self.assertIn("checkpoint second moments", [row["what"] for row in found["rows"]])

    def test_steps_before_and_after_a_kill(self):
        config = self.write("c.toml", SMALL.replace("steps = 6", "steps = 40").replace("every_steps = 2", "every_steps = 5"))
        process = subprocess.Popen(self.command("train", config, "--run", self.run_folder), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, cwd=self.folder)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 600
        while len(self.lines("metrics.jsonl")) < 8:
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        last = self.lines("metrics.jsonl")[-1]["step"]
        done = self.replay(last)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Another number of actors changes what is played, and no step that is taken again.
        resumed = self.forebay("train", "--resume", self.run_folder, "--set", f"run.steps={last + 4}", "--set",
                               "rollout.actors=12", "--set", "checkpoint.keep=9")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        for step in (last, last + 3):
            done = self.replay(step)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("was repeated bit for bit", done.stdout)

    def test_a_run_that_is_going_on(self):
        config = self.write("c.toml", SMALL.replace("steps = 6", "steps = 100000").replace("every_steps = 2", "every_steps = 0"))
        process = subprocess.Popen(self.command("train", config, "--run", self.run_folder), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 600
        while len(self.lines("metrics.jsonl")) < 4:
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.02)
        done = self.forebay("replay", self.run_folder, "--step", 2)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("a program still runs there", done.stdout)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, error)

    def test_the_recorded_configuration_is_used_and_a_changed_one_is_named(self):
        self.trained()
        path = self.run_folder / "config.toml"
        path.write_text(path.read_text().replace("learning_rate = 0.001", "learning_rate = 0.5"))
        done = self.replay(6)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("config.toml now says learner.learning_rate = 0.5; step 6 was taken with 0.001", done.stdout)
        # Asked for, the change is made, and its first consequence named.
        done = self.replay(6, "--set", "learner.clip_high=0.3", "--set", "learner.learning_rate=0.5")
        self.assert_fails_with_difference(done, "'learning_rate' of step 5", "recorded 0.001, replayed 0.5")
        self.assertIn("learner.clip_high is 0.3 here; step 6 was taken with 0.2", done.stdout)

    def assert_fails_with_difference(self, done: subprocess.CompletedProcess, *words: str) -> None:
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        for word in ("was not repeated bit for bit: the first difference is", *words):
            self.assertIn(word, done.stderr)

    def test_a_recorded_bit_that_differs_is_named(self):
        self.trained()

        def flip(entry):
            bits = int(entry["fingerprint"]["grad_norm"], 16) ^ 1
            entry["fingerprint"]["grad_norm"] = f"0x{bits:016x}"

        self.edit_line("metrics.jsonl", 4, flip)
        self.assert_fails_with_difference(self.replay(6), "'grad_norm' of step 5")
        self.assertEqual(self.replay(4).returncode, 0)
        found = json.loads(self.replay(5, "--json").stdout)
        self.assertFalse(found["equal"])
        self.assertEqual([row["what"] for row in found["rows"] if not row["equal"]], ["grad_norm"])

    def test_a_checkpoint_of_other_weights_is_named(self):
        self.trained()
        other = self.trained("other", "--set", "run.seed=4")
        kept = self.run_folder / "checkpoints/step_000006"
        shutil.rmtree(kept)
        shutil.copytree(other / "checkpoints/step_000006", kept)
        done = self.replay(6)
        self.assert_fails_with_difference(done, "'checkpoint weights' of step 6")
        self.assertIn("checkpoint weights: tensor model.embed_tokens.weight differs first in element 0", done.stdout)
        # As the start of a replay it is found out before the first step.
        kept = self.run_folder / "checkpoints/step_000004"
        shutil.rmtree(kept)
        shutil.copytree(other / "checkpoints/step_000004", kept)
        self.assert_fails_with_difference(self.replay(5), "'weights of the checkpoint' of step 4")

    def test_a_damaged_checkpoint_is_passed_over(self):
        self.trained()
        path = self.run_folder / "checkpoints/step_000004/model.safetensors"
        data = bytearray(path.read_bytes())
        data[-3] ^= 0x10
        path.write_bytes(data)
        done = self.replay(5)
        self.assert_equal_bits(done, 5, 5 * FIELDS)
        self.assertIn("the checkpoint of step 4 is not usable", done.stdout)

    # ---- what is refused

    def test_a_flipped_bit_in_the_log_is_reported(self):
        self.trained()
        step = self.lines("metrics.jsonl")[5]
        line = next(t for t in self.lines("trajectories.jsonl") if t["trajectory_id"] == step["trajectory_ids"][-1])
        beginning = struct.pack("<qqii", line["trajectory_id"], line["group_id"], line["member"], line["attempt"])
        flipped = 0
        for path in (self.run_folder / "buffer").rglob("*"):
            if not path.is_file():
                continue
            data = bytearray(path.read_bytes())
            at = data.find(beginning)
            while at >= 0:
                if b"letters" in data[at:at + 80]:  # a trajectory, not a note about it
                    data[at + 120] ^= 1
                    flipped += 1
                at = data.find(beginning, at + 1)
            path.write_bytes(data)
        self.assertEqual(flipped, 1)
        self.assert_fails(self.replay(6), 4, "step 6", "batch 6", "damaged")
        self.assertEqual(self.replay(5).returncode, 0)
        done = self.forebay("replay", self.run_folder, "--list")
        self.assertIn("steps 5 to 5 can be replayed from the checkpoint of step 4", done.stdout)

    def test_steps_that_are_not_there(self):
        self.trained()
        self.assert_fails(self.replay(7), 3, "step 7 is beyond the end of the run: its last step is 6")
        self.assert_fails(self.replay(0), 2, "there is no step 0")
        self.assert_fails(self.replay(-3), 2, "there is no step -3")
        self.assertEqual(self.forebay("replay", self.run_folder, "--step", "x").returncode, 2)
        self.assertEqual(self.forebay("replay", self.run_folder, "--step", "1", "--list").returncode, 2)
        self.assert_fails(self.forebay("replay", self.run_folder), 2, "--step", "--list")
        self.assert_fails(self.forebay("replay", self.folder / "none", "--step", 1), 3, "holds no run")
        self.assert_fails(self.replay(6, "--set", "learner.learning_rat=1"), 2, "'learner.learning_rate'")

    def test_batches_that_are_gone(self):
        self.trained()
        for path in (self.run_folder / "buffer").iterdir():
            path.unlink()
        self.assert_fails(self.replay(6), 3, "batch")
        shutil.rmtree(self.run_folder / "buffer")
        self.assert_fails(self.replay(6), 3, "no log of batches")

    def test_a_buffer_in_memory_has_no_log(self):
        self.run_folder = self.trained("memory", "--set", "buffer.durability=memory")
        self.assert_fails(self.replay(6), 3, 'buffer.durability = "memory"')

    def test_records_that_are_damaged_or_old(self):
        self.trained()
        metrics, starts = self.run_folder / "metrics.jsonl", self.run_folder / "starts.jsonl"
        good_metrics, good_starts = metrics.read_text(), starts.read_text()
        # Torn and foreign lines are skipped.
        metrics.write_text("{\n[]\n7\n{\"step\": \"x\"}\n\0\xff\n" + good_metrics + '{"step": 9', errors="surrogateescape")
        starts.write_text("[]\n" + good_starts + '{"after_step": 3}\n{')
        self.assertEqual(self.replay(6).returncode, 0)
        metrics.write_text(good_metrics)
        # A configuration that is not the one of the digest.
        starts.write_text(good_starts.replace("learning_rate = 0.001", "learning_rate = 0.002"))
        self.assert_fails(self.replay(6), 4, "starts.jsonl", "damaged")
        os.unlink(starts)
        self.assert_fails(self.replay(6), 3, "starts.jsonl", "under which configuration step 6")
        starts.write_text(good_starts)
        self.edit_line("metrics.jsonl", 5, lambda entry: entry.pop("fingerprint"))
        self.assert_fails(self.replay(6), 3, "no fingerprint of step 6")
        self.assertEqual(self.replay(5).returncode, 0)
        metrics.write_text("")
        self.assert_fails(self.replay(1), 3, "no optimizer step")


if __name__ == "__main__":
    unittest.main()
