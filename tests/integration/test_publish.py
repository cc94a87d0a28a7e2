"""Goal: a run gives `forebay serve` its weights over a socket while both go on, for longer than any weights may be old; and a server that
is killed with -9 and started again gets them again."""
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request

from forebay_run import SMALL, ForebayTest

WAIT_S = 90


class Server:
    """`forebay serve tiny:` with the run's shape of model and other weights, until it is killed."""

    def __init__(self, test: "PublishTest", port="0"):
        self.process = subprocess.Popen(
            test.command("serve", test.model, "--name", "policy", "--slots", 8, "--context", 256, "--take-weights", "--port", port),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.kill)
        self.log = []
        self.url = ""
        while line := self.process.stdout.readline():
            if found := re.match(r"serving \S+ on (\S+)$", line.strip()):
                self.url = found.group(1)
                break
        test.assertTrue(self.url, "the server did not start")
        # So that it never waits for a reader.
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def port(self) -> str:
        return self.url.rsplit(":", 1)[1]

    def kill(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(10) if self.url else None
        self.process.stdout.close()
        self.process.stderr.close()

    def card(self) -> dict:
        with urllib.request.urlopen(self.url + "/v1/models", timeout=30) as answer:
            return json.load(answer)["data"][0]


class PublishTest(ForebayTest):
    def setUp(self):
        super().setUp()
        done = self.forebay("train", self.write("first.toml", SMALL), "--run", self.folder / "first", "--set", "run.steps=1", "--set",
                            "run.seed=9")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.model = self.folder / "model"
        done = self.forebay("export", self.folder / "first", self.model)
        self.assertEqual(done.returncode, 0, done.stderr)

    def config(self, *servers: Server, steps: int):
        text = SMALL.replace("steps = 6", f"steps = {steps}").replace("max_staleness = 2", "max_staleness = 1")
        urls = json.dumps([server.url for server in servers])
        return self.write("run.toml", text.replace("[rollout]", f"[rollout]\nengine = \"forebay\"\nservers = {urls}\nserver_model = \"policy\""))

    def steps_taken(self) -> int:
        return len(self.lines("metrics.jsonl"))

    def wait(self, condition, what: str):
        end = time.monotonic() + WAIT_S
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def assert_trained_on_its_own_weights(self, steps: int):
        report = self.report()
        self.assertTrue(report["ledger_balanced"])
        lines = self.lines("trajectories.jsonl")
        # With max_staleness = 1 and weights that never came nothing after the second step could have been trained on.
        self.assertGreaterEqual(max(line["max_version"] for line in lines), steps - 2)
        for line in lines:
            self.assertLessEqual(line["min_version"], line["max_version"])

    def test_a_run_gives_a_server_its_weights(self):
        server = Server(self)
        before = server.card()
        done = self.train(self.config(server, steps=6))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-2000:])
        self.assertIn(f"waiting for {server.url}", done.stdout)
        self.assert_trained_on_its_own_weights(6)
        after = server.card()
        self.assertNotEqual(after["weights_digest"], before["weights_digest"])
        self.assertGreaterEqual(after["policy_version"], 5)
        self.assertFalse((self.run_folder / "rollout_weights").exists())  # no folder in between

    def test_a_killed_server_gets_the_weights_again(self):
        one, two = Server(self), Server(self)
        run = subprocess.Popen(self.command("train", self.config(one, two, steps=40), "--run", self.run_folder), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: (run.kill(), run.communicate()))
        self.wait(lambda: self.steps_taken() >= 3, "no step was taken")
        two.kill()
        again = Server(self, two.port())
        self.assertEqual(again.card()["policy_version"], 0)
        self.wait(lambda: again.card()["policy_version"] >= 3 or run.poll() is not None, "the server got no weights")
        output, _ = run.communicate(timeout=WAIT_S)
        self.assertEqual(run.returncode, 0, output[-3000:])
        self.assertGreaterEqual(again.card()["policy_version"], 3)
        self.assertEqual(again.card()["weights_digest"], one.card()["weights_digest"])
        self.assert_trained_on_its_own_weights(40)

    def test_a_run_that_lost_its_only_server_goes_on_when_it_is_back(self):
        server = Server(self)
        run = subprocess.Popen(self.command("train", self.config(server, steps=40), "--run", self.run_folder), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: (run.kill(), run.communicate()))
        self.wait(lambda: self.steps_taken() >= 3, "no step was taken")
        server.kill()
        output, _ = run.communicate(timeout=WAIT_S)
        self.assertEqual(run.returncode, 5, output[-3000:])
        # A request or a publish, whichever finds out first.
        self.assertRegex(output, "the rollout server cannot be used|no rollout server took the new weights")
        self.assertIn(server.url, output.splitlines()[-1])

        again = Server(self, server.port())
        resumed = self.forebay("train", "--resume", self.run_folder)
        self.assertEqual(resumed.returncode, 0, resumed.stderr + resumed.stdout[-2000:])
        self.assertGreaterEqual(again.card()["policy_version"], 39)
        self.assertTrue(self.report()["ledger_balanced"])

    def test_what_is_wrong_is_said_at_once(self):
        plain = subprocess.Popen(self.command("serve", self.model, "--port", 0, "--slots", 2, "--context", 256, "--name", "policy"),
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lambda: (plain.kill(), plain.communicate()))
        url = ""
        while not url:
            line = plain.stdout.readline()
            self.assertTrue(line, "the server did not start")
            url = line.split(" on ")[1].strip() if line.startswith("serving ") else ""
        text = SMALL.replace("[rollout]", f"[rollout]\nengine = \"forebay\"\nservers = [\"{url}\"]\nserver_model = \"policy\"")
        self.assert_fails(self.train(self.write("run.toml", text)), 2, "--take-weights")


if __name__ == "__main__":
    import unittest
    unittest.main()
