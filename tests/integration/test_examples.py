"""Goal: the examples that need no third-party package train, from the configuration as it stands, and the others say what they need."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from forebay_run import FOREBAY, PROGRAMS, SOURCE, ForebayTest

DEPS = SOURCE / ".deps"
MODEL = DEPS / "models/SmolLM2-135M-Instruct.Q4_1.gguf"

# A tiny random model whose tokens are bytes: prompts are longer than with a real one.
TINY = [f"device.cache_dir={PROGRAMS}", "model.path=tiny:", "model.tiny_width=32", "model.tiny_heads=2", "model.tiny_kv_heads=1", "model.tiny_ff=64", "run.steps=1",
        "rollout.slots=8", "rollout.actors=8", "learner.groups_per_step=1", "learner.group_size=4", "eval.tasks=1", "eval.samples=1"]


class ExamplesTest(ForebayTest):
    def train_example(self, name: str, context: int, *sets: str) -> dict:
        """Trains one step; the episodes that were trained on, by outcome, and their rewards."""
        values = [*TINY, f"rollout.context={context}", f"rollout.tokens_max={context}", f"learner.row_lengths=[{context}]",
                  f"learner.tokens_per_program={2 * context}", *sets]
        arguments = [word for value in values for word in ("--set", value)]
        done = self.train(SOURCE / "examples" / f"{name}.toml", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-2000:])
        return self.report()

    def test_dataset(self):
        self.train_example("dataset", 1024)

    def test_calculator(self):
        self.train_example("calculator", 2048)

    def test_harness(self):
        self.train_example("harness", 2048)

    def test_tools(self):
        self.train_example("tools", 2560)

    def test_what_a_server_needs_is_said(self):
        tiny = [word for value in TINY for word in ("--set", value)]
        done = self.train(SOURCE / "examples/openenv.toml", *tiny, "--set", "env.url=http://127.0.0.1:1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the OpenEnv server", done.stderr)
        command = json.dumps([str(SOURCE / "examples/in_venv.sh"), "no_such_example", "x.py"])
        done = self.train(SOURCE / "examples/mcp.toml", *tiny, "--set", f"env.mcp_command={command}")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("run examples/setup.sh no_such_example", done.stderr)

    def test_quickstart(self):
        command = ["python3", "arithmetic/env.py", "--latency-p50-s", "0.01", "--latency-p99-s", "0.02"]
        self.train_example("quickstart", 256, f"env.command={json.dumps(command)}")

    @unittest.skipUnless(shutil.which("bwrap"), "bubblewrap is not here")
    def test_code_sandbox(self):
        self.train_example("code_sandbox", 1024)

    @unittest.skipUnless(MODEL.exists(), "SmolLM2-135M is not here")
    def test_the_policy_really_calls_the_tool(self):
        done = self.train(SOURCE / "examples/calculator.toml", "--set", "run.steps=1", "--set", "learner.groups_per_step=1",
                          "--set", "rollout.actors=8", "--set", "rollout.slots=8", "--set", "eval.tasks=0",
                          "--set", "checkpoint.every_steps=0", timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-2000:])
        exported = self.forebay("buffer", "export", "--trained", "--quiet", self.run_folder)
        episodes = [json.loads(line) for line in exported.stdout.splitlines()]
        calls = [turn for episode in episodes for turn in episode["turns"] if turn["tool"] == "calculate"]
        self.assertGreater(len(calls), 0)  # two demonstrations: most of the eight episodes call

    def test_installed_examples_are_sound(self):
        """forebay.check plays each example whose packages are here."""
        for name in ("gymnasium", "reasoning_gym", "textarena", "textworld"):
            if not (DEPS / "examples" / name / "bin/python").exists():
                continue
            with self.subTest(name):
                done = subprocess.run([sys.executable, "-m", "forebay.check", "--episodes", "2", "--parallel", "2", "--start-deadline-s", "120",
                                       SOURCE / "examples" / f"{name}.toml"], capture_output=True, text=True, timeout=300,
                                      env={**os.environ, "PYTHONPATH": str(SOURCE / "python")})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_runner_says_what_it_wants(self):
        runner = SOURCE / "examples/run.sh"
        done = subprocess.run([runner, "no_such"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        for config in (SOURCE / "examples").glob("*.toml"):
            self.assertIn(f" {config.stem}", done.stderr)
        done = subprocess.run([runner, "dataset"], capture_output=True, text=True, timeout=60, env={**os.environ, "FOREBAY": "/no/forebay"})
        self.assertEqual(done.returncode, 3)
        self.assertIn("make program", done.stderr)

    def test_the_runner_trains_and_reports(self):
        tiny = [word for value in [*TINY, "rollout.context=1024", "rollout.tokens_max=1024"] for word in ("--set", value)]
        tiny += ["--set", "rollout.context=256", "--set", "rollout.tokens_max=256", "--set", "learner.row_lengths=[256]"]
        self.addCleanup(shutil.rmtree, SOURCE / "runs/dataset_of_a_test", ignore_errors=True)
        done = subprocess.run([SOURCE / "examples/run.sh", "dataset", *tiny, "--quiet"], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "FOREBAY": str(pathlib.Path(FOREBAY).resolve()), "RUN": "runs/dataset_of_a_test"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("word_problems", done.stdout)
        self.assertIn("runs/dataset_of_a_test/report.json", done.stdout)

    def test_the_runner_says_after_ctrl_c_who_answered_and_how_to_go_on(self):
        values = [*TINY, "rollout.context=256", "rollout.tokens_max=256", "learner.row_lengths=[256]", "run.steps=100000"]
        tiny = [word for value in values for word in ("--set", value)]
        run = self.folder / "interrupted"
        # A session of its own: Ctrl-C of a terminal reaches the script and the program alike.
        process = subprocess.Popen([SOURCE / "examples/run.sh", "dataset", *tiny, "--quiet"], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                   env={**os.environ, "FOREBAY": str(pathlib.Path(FOREBAY).resolve()), "RUN": str(run)})
        self.addCleanup(process.kill)
        episodes = run / "trajectories.jsonl"
        end = time.monotonic() + 200
        # Until the agent was answered.
        while process.poll() is None and time.monotonic() < end and not (episodes.exists() and b'"tool":' in episodes.read_bytes()):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=200)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertIn("word_problems", out)
        self.assertRegex(out, rf"go on with it +\S+ train --resume {run}\n")
        self.assertNotIn("report.json", out)

    def test_a_dataset_that_is_wrong_is_said_with_its_line(self):
        self.write("rows.jsonl", '{"prompt": "1+1", "answer": 2}\n{"prompt": "1+2"}\n')
        options = json.dumps({"path": str(self.folder / "rows.jsonl"), "rewards": [{"kind": "numeric"}]})
        tiny = [word for value in TINY for word in ("--set", value)]
        done = self.train(SOURCE / "examples/dataset.toml", *tiny, "--set", f"env.options={json.dumps(options)}")
        self.assert_fails(done, 2, "rows.jsonl, line 2", "answer_key")

    def test_packages_that_are_missing_are_named(self):
        command = json.dumps([str(SOURCE / "examples/in_venv.sh"), "no_such_example", "x.py"])
        tiny = [word for value in TINY for word in ("--set", value)]
        done = self.train(SOURCE / "examples/gymnasium.toml", *tiny, "--set", f"env.command={command}", "--set", "env.start_deadline_s=5")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("run examples/setup.sh no_such_example", done.stderr)

    def test_the_setup_names_its_examples(self):
        done = subprocess.run([SOURCE / "examples/setup.sh"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("gymnasium harness mcp miniwob openenv", done.stderr)


if __name__ == "__main__":
    unittest.main()
