"""Goal: an operator who looks into a buffer, live or after a crash or on a bad disk, gets true answers and exports that other
tools read; a damaged log is named, repaired, and the run goes on."""
import json
import os
import signal
import subprocess
import time
import unittest

from forebay_run import SMALL, ForebayTest


class BufferToolsTest(ForebayTest):
    def buffer(self, command: str, *args, **kwargs) -> subprocess.CompletedProcess:
        return self.forebay("buffer", command, self.run_folder, *args, **kwargs)

    def json_of(self, command: str, *args) -> dict:
        done = self.buffer(command, "--json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def rows(self, *args) -> list:
        done = self.buffer("export", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def segments(self) -> list:
        return sorted((self.run_folder / "buffer").glob("segment-*.log"))

    def trained(self):
        done = self.train(self.write("c.toml", SMALL))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_finished_run(self):
        self.trained()
        before = {path.name: path.read_bytes() for path in self.segments()}

        listed = self.json_of("ls")["segments"]
        self.assertGreaterEqual(len(listed), 1)
        self.assertNotIn("damaged", [segment["state"] for segment in listed])
        stat = self.json_of("stat")
        ledger = stat["state"]["ledger"]
        self.assertTrue(ledger["balanced"])
        self.assertEqual(ledger["trained"], 6 * 2 * 4)
        self.assertEqual(stat["last_batch"]["sequence"], 6)
        self.assertGreater(stat["tokens"]["max"], 0)
        verify = self.json_of("verify")
        self.assertEqual(verify["damaged"], 0)
        self.assertGreaterEqual(verify["trajectories"], 1)
        for command in ("ls", "stat", "verify"):
            done = self.buffer(command)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreater(len(done.stdout), 50)

        done = self.buffer("tail", "-n", 5, "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(lines), 5)
        sequences = [line["sequence"] for line in lines]
        self.assertEqual(sequences, sorted(sequences))
        self.assertEqual(sequences[-1], max(segment["last_sequence"] for segment in listed))
        leases = self.buffer("tail", "-n", 1, "--type", "lease").stdout
        self.assertIn("batch 6", leases)

        # Nothing was changed by looking.
        self.assertEqual({path.name: path.read_bytes() for path in self.segments()}, before)

    def test_export(self):
        self.trained()
        rows = self.rows()
        self.assertEqual(len({row["trajectory_id"] for row in rows}), len(rows))
        for row in rows:
            self.assertEqual(len(row["tokens"]), len(row["loss_mask"]))
            self.assertEqual(len(row["tokens"]), len(row["rollout_logprobs"]))
            self.assertEqual(sum(row["loss_mask"]), sum(run["tokens"] for run in row["versions"]))
            self.assertAlmostEqual(row["reward"], sum(row["rewards"].values()), places=9)
            self.assertEqual(row["turns"][0]["kind"], "prompt")
            self.assertIn(row["state"], ("pending", "leased", "trained", "rejected", "unknown"))
        trained = self.rows("--trained")
        self.assertEqual([row for row in rows if row["state"] == "trained"], trained)
        batch = self.rows("--from-batch", 6, "--to-batch", 6)
        self.assertEqual({row["batch"] for row in batch}, {6} if batch else set())
        self.assertEqual(self.rows("--outcome", "grader_error"), [])

        lines = self.folder / "rows.jsonl"
        done = self.buffer("export", "--output", lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([json.loads(line) for line in lines.read_text().splitlines()], rows)
        self.assert_fails(self.buffer("export", "--output", lines), 2, "is there", "--overwrite")
        self.assertEqual(self.buffer("export", "--output", lines, "--overwrite", "--pending").returncode, 0)

        # Renaming over it would make it a file.
        null = self.folder / "null"
        null.symlink_to("/dev/null")
        self.assert_fails(self.buffer("export", "--output", null, "--overwrite"), 2, "no regular file")
        self.assertTrue(null.is_symlink())

        parquet = self.folder / "rows.parquet"
        done = self.buffer("export", "--format", "parquet", "--output", parquet)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{len(rows)} trajectories", done.stdout)
        content = parquet.read_bytes()
        self.assertEqual((content[:4], content[-4:]), (b"PAR1", b"PAR1"))
        self.assertEqual(sorted(path.name for path in self.folder.glob("rows*")), ["rows.jsonl", "rows.parquet"])
        try:
            import pyarrow.parquet
        except ImportError:
            return
        for got, row in zip(pyarrow.parquet.read_table(parquet).to_pylist(), rows, strict=True):
            got["rewards"] = dict(got["rewards"])
            for got_logprob, logprob in zip(got.pop("rollout_logprobs"), row.pop("rollout_logprobs"), strict=True):
                self.assertAlmostEqual(got_logprob, logprob, places=5)
            self.assertEqual(got, row)

    def test_a_damaged_log_is_named_and_repaired(self):
        self.trained()
        trajectory = json.loads(self.buffer("tail", "-n", 1, "--type", "trajectory", "--json").stdout)
        files = {segment["number"]: segment["file"] for segment in self.json_of("ls")["segments"]}
        path = self.run_folder / "buffer" / files[trajectory["segment"]]
        with open(path, "r+b") as file:
            file.seek(trajectory["offset"] + 80)
            byte = file.read(1)[0]
            file.seek(trajectory["offset"] + 80)
            file.write(bytes([byte ^ 0xFF]))
        done = self.buffer("verify")
        self.assert_fails(done, 4, "damaged in 1 place", "repair")
        self.assertIn(f"{trajectory['bytes']} bytes at {trajectory['offset']}", done.stdout)
        self.assertIn(f"trajectory {trajectory['trajectory_id']} ", done.stdout)
        damaged = path.read_bytes()
        dry = self.buffer("repair", "--dry-run")
        self.assertEqual(dry.returncode, 0, dry.stderr)
        self.assertIn("would do", dry.stdout)
        self.assertEqual(path.read_bytes(), damaged)
        done = self.buffer("repair")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("quarantine/", done.stdout)
        self.assertTrue(list((self.run_folder / "buffer" / "quarantine").iterdir()))
        self.assertIn("nothing to repair", self.buffer("repair").stdout)
        # The run goes on, and after its start nothing is left to say.
        done = self.forebay("train", "--resume", self.run_folder, "--set", "run.steps=8")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.buffer("verify")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_live_run(self):
        config = self.write("c.toml", SMALL.replace("steps = 6", "steps = 100000"))
        run = subprocess.Popen(self.command("train", config, "--run", self.run_folder, "--quiet"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(run.kill)
        deadline = time.monotonic() + 600
        while len(self.lines("metrics.jsonl")) < 2:
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.02)
        follow = subprocess.Popen(self.command("buffer", "tail", self.run_folder, "-n", "1", "--follow", "--json"),
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(follow.kill)
        seen = [json.loads(follow.stdout.readline())["sequence"] for _ in range(50)]
        self.assertEqual(seen, sorted(set(seen)))
        follow.kill()
        follow.communicate()
        for _ in range(3):
            self.assertEqual(self.json_of("verify")["damaged"], 0)
            self.assertTrue(self.json_of("stat")["state"]["ledger"]["balanced"])
        self.assert_fails(self.buffer("repair"), 2, "another process holds")
        run.send_signal(signal.SIGINT)
        _, error = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 130, error)
        self.assertEqual(self.json_of("verify")["damaged"], 0)

    def test_what_is_no_buffer(self):
        self.assert_fails(self.buffer("ls"), 3, "cannot list")
        self.run_folder.mkdir()
        self.assert_fails(self.buffer("stat"), 3, "holds no buffer")
        (self.run_folder / "segment-0000000001.log").write_bytes(b"garbage" * 1000)
        os.mkfifo(self.run_folder / "segment-0000000002.log")
        self.assertEqual([segment["state"] for segment in self.json_of("ls")["segments"]], ["damaged"] * 2)
        self.assertIn("not a regular file", self.buffer("ls").stdout)
        self.assert_fails(self.buffer("verify"), 4, "damaged in")
        self.assertEqual(self.rows(), [])
        done = self.buffer("export", "--format", "parquet")
        self.assert_fails(done, 2, "--output")
        self.assertEqual(self.buffer("export", "--format", "xml").returncode, 2)
        self.assert_fails(self.buffer("tail", "--type", "oops"), 2, "there are dispatch")
        self.assert_fails(self.buffer("export", "--outcome", "oops"), 2, "truncated_tokens")


if __name__ == "__main__":
    unittest.main()
