"""Goal: a run on servers of others trains from the example's configuration as it stands, and says what is wrong with a server. The
server here is `forebay serve`, which speaks vLLM's API and keeps its weights."""
import json
import re
import subprocess
import unittest

from forebay_run import SMALL, SOURCE, ForebayTest

CONTEXT = 256
COMMAND = ["python3", "arithmetic/env.py", "--latency-p50-s", "0.01", "--latency-p99-s", "0.02"]


class ExternalTest(ForebayTest):
    def setUp(self):
        super().setUp()
        config = self.write("small.toml", SMALL)
        done = self.forebay("train", config, "--run", self.folder / "first", "--set", "run.steps=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.model = self.folder / "model"
        done = self.forebay("export", self.folder / "first", self.model)
        self.assertEqual(done.returncode, 0, done.stderr)

    def serve(self, model) -> str:
        server = subprocess.Popen(self.command("serve", model, "--port", 0, "--slots", 8, "--context", CONTEXT, "--name", "policy"),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        while line := server.stdout.readline():
            if found := re.match(r"serving \S+ on (http://127\.0\.0\.1:\d+)$", line.strip()):
                return found.group(1)
        self.fail("the server did not start")

    def train_example(self, server: str, *sets: str) -> subprocess.CompletedProcess:
        values = [f"model.path={self.model}", f"env.command={json.dumps(COMMAND)}", f'rollout.servers=["{server}"]',
                  "rollout.reload=false", f"rollout.context={CONTEXT}", f"rollout.tokens_max={CONTEXT}", "rollout.actors=8",
                  "run.steps=2", "learner.groups_per_step=1", "learner.group_size=4", f"learner.row_lengths=[{CONTEXT}]",
                  f"learner.tokens_per_program={2 * CONTEXT}", "eval.tasks=0", *sets]
        arguments = [word for value in values for word in ("--set", value)]
        return self.train(SOURCE / "examples/external_vllm.toml", "--overwrite", *arguments)

    def test_a_run_on_a_server(self):
        done = self.train_example(self.serve(self.model))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-2000:])
        report = self.report()
        self.assertTrue(report["ledger_balanced"])
        # Every token has the version that the server's weights have, however far the learner is (one aborted at the end may have none).
        lines = self.lines("trajectories.jsonl")
        self.assertEqual({(line["min_version"], line["max_version"]) for line in lines if line["loss_tokens"]}, {(0, 0)})
        self.assertGreaterEqual(len(lines), 8)

    def test_a_server_with_other_weights(self):
        copy = self.folder / "copy"
        done = self.forebay("export", self.model, copy)  # a model, not a run
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((copy / "config.json").read_text(), (self.model / "config.json").read_text())
        done = self.train_example(self.serve(copy), "run.steps=1")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-2000:])

        self.write("other.toml", SMALL)
        done = self.forebay("train", self.folder / "other.toml", "--run", self.folder / "second", "--set", "run.steps=1", "--set",
                            "run.seed=9")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.train_example(self.serve(self.folder / "second"), "run.steps=1")
        self.assert_fails(done, 2, "serves other weights")

    def test_what_cannot_be_trained_is_said_before_anything_runs(self):
        done = self.train_example("http://127.0.0.1:1", "run.steps=9")
        self.assert_fails(done, 2, "rollout.reload = false", "after 2 steps")
        done = self.forebay("export", self.model, self.folder / "x", "--adapters")
        self.assert_fails(done, 2, "is a model, not a run")
        done = self.forebay("export", self.write("model.gguf", "GGUF"), self.folder / "x")
        self.assert_fails(done, 4, "model.gguf")


if __name__ == "__main__":
    unittest.main()
