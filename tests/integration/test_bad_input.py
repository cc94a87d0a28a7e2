"""Goal: whatever a user gets wrong, and whatever an environment does, ends in one clear paragraph or a typed outcome, with
the exit code of its kind, never in a hang."""
import collections
import json
import unittest

from forebay_run import SMALL, SOURCE, ForebayTest, small_with_python_env

GOOD_ENV = """
from forebay import Environment, Step, serve
import os, sys, time

class Test(Environment):
    def reset(self, task, split, seed):
        self.seed = seed
        return "Say a."
    def step(self, action):
        {step}
        return Step(observation="", reward={{"length": float(len(action) % 3)}}, done=True, tool="t")

serve(Test)
"""


class ConfigurationTest(ForebayTest):
    def test_a_mistyped_command_names_the_nearest(self):
        self.assert_fails(self.forebay("trian", "x.toml"), 2, "'forebay trian'", "did you mean 'forebay train'?")
        self.assert_fails(self.forebay("buffer", "serv", "x"), 2, "did you mean 'forebay buffer serve'?")
        done = self.forebay("zzzzzzzz")
        self.assert_fails(done, 2, "forebay --help")
        self.assertNotIn("mean", done.stderr)

    def test_a_mistyped_option_names_the_nearest(self):
        self.assert_fails(self.forebay("train", "x.toml", "--ovewrite"), 2, "forebay train has no option '--ovewrite'", "mean '--overwrite'?")
        self.assert_fails(self.forebay("buffer", "serve", "x", "--group_size=8"), 2, "forebay buffer serve has no option '--group_size'",
                          "mean '--group-size'?")
        done = self.forebay("audit", "x", "--zzzzzzzzzz")
        self.assert_fails(done, 2, "'--zzzzzzzzzz' (forebay audit --help")
        self.assertNotIn("mean", done.stderr)

    def test_unknown_key_names_the_nearest(self):
        done = self.train(self.write("c.toml", SMALL + "\n[learner2]\nx = 1\n"))
        self.assert_fails(done, 2, "unknown section 'learner2'", "did you mean 'learner'?")
        done = self.train(self.write("c.toml", SMALL), "--set", "learner.learning_rat=1")
        self.assert_fails(done, 2, "did you mean 'learner.learning_rate'?")
        done = self.train(self.write("c.toml", SMALL), "--set", "learner.learning_rate=abc")
        self.assert_fails(done, 2, "must be a number, but it is abc")

    def test_missing_configuration(self):
        self.assert_fails(self.train(self.folder / "none.toml"), 3, "none.toml")

    def test_missing_and_corrupt_models(self):
        config = self.write("c.toml", SMALL)
        self.assert_fails(self.train(config, "--set", "model.path=none.gguf"), 3, "none.gguf")
        (self.folder / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
        self.assert_fails(self.train(config, "--set", "model.path=bad.gguf", "--overwrite"), 4, "bad.gguf")
        model = self.folder / "hf"
        model.mkdir()
        self.assert_fails(self.train(config, "--set", "model.path=hf", "--overwrite"), 3, "config.json")
        golden = SOURCE / "tests/goldens/parity/llama"
        for name in ("config.json",):
            (model / name).write_bytes((golden / name).read_bytes())
        weights = (golden / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        (model / "tokenizer.json").write_text("{}")
        self.assert_fails(self.train(config, "--set", "model.path=hf", "--overwrite"), 4, "model.safetensors")

    def test_missing_plugin(self):
        config = self.write("c.toml", SMALL)
        self.assert_fails(self.train(config, "--set", "device.plugin=none.so"), 3, "none.so")
        self.write("text.so", "not a library")
        done = self.train(config, "--set", "device.plugin=text.so", "--overwrite")
        self.assert_fails(done, 2, "text.so")

    def test_a_run_is_not_overwritten_by_accident(self):
        config = self.write("c.toml", SMALL)
        first = self.train(config, "--set", "run.steps=1")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assert_fails(self.train(config, "--set", "run.steps=1"), 2, "--overwrite", "--resume")

    def test_usage(self):
        self.assertEqual(self.forebay("fly").returncode, 2)
        self.assertEqual(self.forebay().returncode, 2)
        self.assert_fails(self.forebay("train"), 2, "configuration file")
        self.assert_fails(self.forebay("train", "--resume", self.folder / "x"), 3, "no run to resume")
        self.assert_fails(self.forebay("audit", self.folder / "x"), 3, "holds no run")
        self.assert_fails(self.forebay("export", self.folder / "x", "y"), 3, "holds no run")
        self.assertEqual(self.forebay("--help").returncode, 0)


class EnvironmentTest(ForebayTest):
    def config(self, step: str = "pass", source: str = "") -> object:
        self.write("env.py", source or GOOD_ENV.format(step=step))
        return self.write("c.toml", small_with_python_env())

    def outcomes(self) -> collections.Counter:
        return collections.Counter(line["outcome"] for line in self.lines("trajectories.jsonl"))

    def test_missing_program(self):
        done = self.train(self.config(), "--set", 'env.command=["no-such-program"]')
        self.assert_fails(done, 2, "env.command begins with 'no-such-program'")

    def test_environment_that_dies_at_start(self):
        done = self.train(self.config(source="import sys; sys.exit('the license server is down')"), "--set", "env.start_deadline_s=60")
        self.assertIn(done.returncode, (5, 7), done.stderr)
        self.assertIn("the license server is down", done.stderr)

    def test_environment_that_prints_garbage(self):
        done = self.train(self.config(source="print('hello')\nwhile True: input()"), "--set", "env.start_deadline_s=60")
        self.assertIn(done.returncode, (4, 5, 7), done.stderr)
        self.assertIn("hello", done.stderr)

    def test_B2_failures_are_typed_replaced_and_never_train(self):
        # A quarter of the steps fails in one way each; every way ends as its own outcome, and the run goes on.
        step = """
        way = self.seed % 8
        if way == 0: raise ValueError("a bug in the environment")
        if way == 1: time.sleep(60)
        """
        done = self.train(self.config(step.strip()), timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        outcomes = self.outcomes()
        self.assertGreater(outcomes["env_error"], 0, outcomes)
        self.assertGreater(outcomes["env_timeout"], 0, outcomes)
        report = self.report()
        self.assertTrue(report["ledger_balanced"])
        self.assertEqual(report["steps"], 6)
        failed = {line["trajectory_id"] for line in self.lines("trajectories.jsonl") if line["outcome"].startswith("env")}
        trained = {i for line in self.lines("metrics.jsonl") for i in line["trajectory_ids"]}
        self.assertEqual(failed & trained, set())

    def test_crashing_processes_are_replaced(self):
        done = self.train(self.config("if self.seed % 40 == 0: os._exit(3)"), "--set", "env.processes=2", timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(self.report()["ledger_balanced"])

    def test_flooding_is_bounded(self):
        done = self.train(self.config("if self.seed % 5 == 0: os.write(1, b'x' * (8 << 20))"), timeout=240)
        self.assertIn(done.returncode, (0, 5), done.stderr)
        if done.returncode == 0:
            self.assertTrue(self.report()["ledger_balanced"])

    def test_L1_an_environment_that_dies_for_good_ends_the_run(self):
        marker = self.folder / "dead"
        step = f"""
        if os.path.exists({str(marker)!r}): os._exit(9)
        open({str(marker)!r}, "w").close() if self.seed % 16 == 0 else None
        """
        source = f"import os, sys\nif os.path.exists({str(marker)!r}): sys.exit('gone for good')\n" + GOOD_ENV.format(step=step.strip())
        done = self.train(self.config(source=source), "--set", "run.steps=1000", timeout=240)
        self.assert_fails(done, 5, "gone for good")


class ArtifactTest(ForebayTest):
    def trained(self):
        config = self.write("c.toml", SMALL)
        done = self.train(config, "--set", "run.steps=3")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_corrupt_checkpoint_is_named(self):
        self.trained()
        for path in (self.run_folder / "checkpoints").glob("step_*/model.safetensors"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(data)
        done = self.forebay("train", "--resume", self.run_folder, "--set", "run.steps=5")
        self.assert_fails(done, 4, "checkpoint")
        self.assert_fails(self.forebay("export", self.run_folder, self.folder / "out"), 4, "checkpoint")

    def test_corrupt_log_segment_is_quarantined_not_fatal(self):
        self.trained()
        segments = sorted((self.run_folder / "buffer").glob("segment-*.log"))
        self.assertTrue(segments)
        for path in segments:
            with open(path, "r+b") as file:
                for at in range(4096 + 96, 4 << 20, 128):  # inside of records: they begin after 4,096 bytes
                    file.seek(at)
                    file.write(b"\xff" * 8)
        done = self.forebay("train", "--resume", self.run_folder, "--set", "run.steps=5")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("quarantine", (self.run_folder / "run.log").read_text())
        self.assertTrue(self.report()["ledger_balanced"])

    def test_export_writes_a_folder_that_trains_again(self):
        self.trained()
        out = self.folder / "model"
        done = self.forebay("export", self.run_folder, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(config["architectures"], ["LlamaForCausalLM"])
        again = self.train(self.write("c.toml", SMALL), "--set", f"model.path={out}", "--set", "run.steps=1", "--overwrite")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_audit_reads_a_run(self):
        self.trained()
        done = self.forebay("audit", self.run_folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("letters", done.stdout)
        audit = json.loads(self.forebay("audit", self.run_folder, "--json").stdout)
        self.assertEqual(audit["steps"], 3)
        self.assertGreater(audit["sizing"]["actors_needed"], 0)


if __name__ == "__main__":
    unittest.main()
