"""Goal: the examples that need no third-party package train, from the configuration as it stands, and the others say what they need."""
import json
import shutil
import subprocess
import unittest

from forebay_run import SOURCE, ForebayTest

# A tiny random model whose tokens are bytes: prompts are longer than with a real one.
TINY = ["model.path=tiny:", "model.tiny_width=32", "model.tiny_heads=2", "model.tiny_kv_heads=1", "model.tiny_ff=64", "run.steps=1",
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
        self.train_example("dataset", 256)

    def test_calculator(self):
        self.train_example("calculator", 1536)

    def test_harness(self):
        self.train_example("harness", 1024)

    def test_tools(self):
        self.train_example("tools", 1536)

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
        self.train_example("code_sandbox", 768)

    def test_a_dataset_that_is_wrong_is_said_with_its_line(self):
        self.write("rows.jsonl", '{"prompt": "1+1", "answer": 2}\n{"prompt": "1+2"}\n')
        options = json.dumps({"path": str(self.folder / "rows.jsonl"), "rewards": [{"kind": "numeric"}]})
        done = self.train(SOURCE / "examples/dataset.toml", "--set", "model.path=tiny:", "--set", f"env.options={json.dumps(options)}")
        self.assert_fails(done, 2, "rows.jsonl, line 2", "answer_key")

    def test_packages_that_are_missing_are_named(self):
        command = json.dumps([str(SOURCE / "examples/in_venv.sh"), "no_such_example", "x.py"])
        done = self.train(SOURCE / "examples/gymnasium.toml", "--set", "model.path=tiny:", "--set", f"env.command={command}",
                          "--set", "env.start_deadline_s=5")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("run examples/setup.sh no_such_example", done.stderr)

    def test_the_setup_names_its_examples(self):
        done = subprocess.run([SOURCE / "examples/setup.sh"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("gymnasium harness mcp miniwob openenv", done.stderr)


if __name__ == "__main__":
    unittest.main()
