"""Goal: an unchanged program plays the episodes of a training run: what is trained on are the tokens of its calls, what goes
wrong with it is typed and played again, and nothing that it has started outlives the run, however that ends."""
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from forebay_run import SMALL, ForebayTest

HARNESS = """
[env]
name = "harness"
kind = "harness"
command = ["python3", "agent.py", "%s"]
options = '{"level": 3}'
episode_deadline_s = %s
start_deadline_s = 60
"""

# What every agent of these tests begins with: `start` counts the starts of the command in this test.
AGENT = '''
import itertools, json, os, pathlib, subprocess, sys, time, urllib.request
folder = pathlib.Path(sys.argv[1])

def count():
    for start in itertools.count():
        try:
            os.close(os.open(folder / f"start_{start}", os.O_CREAT | os.O_EXCL))
            return start
        except FileExistsError:
            pass

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)

def chat(messages, **more):
    answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {
        "messages": messages, "return_token_ids": True, "logprobs": True, "temperature": 0.1, **more})
    choice = answer["choices"][0]
    calls.append({"prompt": answer["prompt_token_ids"], "tokens": choice["token_ids"],
                  "logprobs": [entry["logprob"] for entry in choice["logprobs"]["content"]]})
    return choice["message"]

calls = []
start = count()
task, split = int(os.environ["FOREBAY_TASK_ID"]), os.environ["FOREBAY_SPLIT"]
'''

PLAYS = AGENT + '''
assert json.loads(os.environ["FOREBAY_OPTIONS"]) == {"level": 3}
if start == 3:
    sys.exit("the harness has a bad day")
if start == 5:
    subprocess.Popen(["sleep", "3600"])
    time.sleep(3600)
if start == 7:
    print(json.dumps({"reward": 1.0}))
    sys.exit(0)
if start == 9:
    chat([{"role": "user", "content": "nobody says what this is worth"}])
    sys.exit(0)
messages = [{"role": "user", "content": f"Hi {task}"}]
messages += [chat(messages), {"role": "user", "content": "More."}]
messages += [chat(messages)]
chat([{"role": "user", "content": "In other words."}])
reward = float(calls[0]["tokens"][0] % 4)
(folder / f"played_{start}.json").write_text(json.dumps({"split": split, "calls": calls, "reward": reward}))
if start % 2:
    post(os.environ["FOREBAY_REWARD_URL"], {"reward": reward})
else:
    print(json.dumps({"reward": reward}))
'''

# Says which processes it is: itself, and one that it starts and never waits for.
HANGS = AGENT + '''
chat([{"role": "user", "content": "Hi"}])
if start > 0:
    child = subprocess.Popen(["sleep", "3600"])
    (folder / f"pids_{start}.tmp").write_text(f"{os.getpid()} {os.getppid()} {child.pid}")
    os.rename(folder / f"pids_{start}.tmp", folder / f"pids_{start}")
    time.sleep(3600)
print(json.dumps({"reward": 1}))
'''

# An episode of two calls, with work between them for which it starts a process; it says who it is before the first call, and what
# it has done before it gives its reward.
WORKS = AGENT + '''
import random
def say(name, what):
    (folder / f"{name}_{start}.tmp").write_text(json.dumps(what))
    os.rename(folder / f"{name}_{start}.tmp", folder / f"{name}_{start}.json")

child = subprocess.Popen(["sleep", "3600"])
# A parent that has died already is 1.
say("began", {"pids": [pid for pid in (os.getpid(), os.getppid(), child.pid) if pid > 1], "key": os.environ["OPENAI_API_KEY"], "url": os.environ["OPENAI_BASE_URL"]})
messages = [{"role": "user", "content": f"Hi {task}"}]
messages += [chat(messages), {"role": "user", "content": "More."}]
time.sleep(random.uniform(0.05, 0.4))
chat(messages)
say("played", {"split": split, "tokens": [call["tokens"] for call in calls]})
print(json.dumps({"reward": float(calls[0]["tokens"][0] % 4)}))
'''


def alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class HarnessTest(ForebayTest):
    def config(self, agent: str, deadline_s: float = 60, more: str = "") -> pathlib.Path:
        self.write("agent.py", agent)
        head, rest = SMALL.replace("steps = 6", "steps = 2").split("[env]")
        env = HARNESS % (self.folder, deadline_s) + more
        rest = rest.split("[rollout]", 1)[1].replace("actors = 16", "actors = 4").replace("turns_max = 2", "turns_max = 5")
        return self.write("c.toml", head + env + "[rollout]" + rest)

    def rows(self) -> list:
        done = self.forebay("buffer", "export", self.run_folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_B2_B4_T7_episodes_are_trained_on_and_failures_replaced(self):
        config = self.config(PLAYS, deadline_s=20)
        # sync: the first batch waits for each of its members, also for the one that hangs.
        done = self.train(config, "--set", "run.mode=sync", "--set", "eval.tasks=2", "--set", "eval.samples=1", "--set", "eval.temperature=0.0",
                          timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-2000:])
        report = self.report()
        self.assertEqual((report["steps"], report["ledger"]["trained"]), (2, 16))
        self.assertTrue(report["ledger_balanced"])

        # Each fault has its outcome, and its member was played again by another process.
        lines = self.lines("trajectories.jsonl")
        outcomes = {line["outcome"] for line in lines}
        self.assertEqual({"done", "env_error", "env_timeout", "grader_error"}, outcomes - {"aborted"})
        log = (self.run_folder / "run.log").read_text(encoding="utf-8")
        for reason in ("the harness has a bad day", "without asking the policy", "nobody has given a reward", "ran for longer"):
            self.assertIn(reason, log)
        played = [json.loads(path.read_text()) for path in self.folder.glob("played_*.json")]
        self.assertEqual({episode["split"] for episode in played}, {"train", "eval"})

        # B4: what was trained on are the tokens that were sampled in calls, with the probabilities that they were told.
        by_first_call = {tuple(episode["calls"][0]["prompt"] + episode["calls"][0]["tokens"]): episode for episode in played
                         if episode["split"] == "train"}
        trained = [row for row in self.rows() if row["state"] == "trained"]
        self.assertGreater(len(trained), 0)
        for row in trained:
            prompts = [turn for turn in row["turns"] if turn["kind"] == "prompt"]
            self.assertEqual(len(prompts), 2, row["turns"])  # the conversation, and what was asked in other words
            tokens, first, second = row["tokens"], row["turns"][0]["begin"], prompts[1]["begin"]
            episode = by_first_call[tuple(tokens[first:row["turns"][1]["end"]])]
            one, two, three = episode["calls"]
            self.assertEqual(two["prompt"][:len(one["prompt"]) + len(one["tokens"])], one["prompt"] + one["tokens"])
            self.assertEqual(tokens[:second], two["prompt"] + two["tokens"])
            self.assertEqual(tokens[second:], three["prompt"] + three["tokens"])
            sampled = [token for token, mask in zip(tokens, row["loss_mask"]) if mask]
            self.assertEqual(sampled, one["tokens"] + two["tokens"] + three["tokens"])
            logprobs = [logprob for logprob, mask in zip(row["rollout_logprobs"], row["loss_mask"]) if mask]
            for mine, theirs in zip(logprobs, one["logprobs"] + two["logprobs"] + three["logprobs"]):
                self.assertAlmostEqual(mine, theirs, places=4)
            self.assertEqual((row["reward"], row["temperature"]), (episode["reward"], 1.0))

    def waits_for(self, process: subprocess.Popen, episodes: int) -> list:
        """The processes of that many episodes that hang."""
        deadline = time.monotonic() + 300
        while len(found := list(self.folder.glob("pids_*[0-9]"))) < episodes:
            self.assertIsNone(process.poll(), process.returncode)
            self.assertLess(time.monotonic(), deadline, "no episode began")
            time.sleep(0.05)
        pids = [int(pid) for path in found for pid in path.read_text().split()]
        for pid in pids:
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        self.assertTrue(all(map(alive, pids)))
        return pids

    def ends(self, pids: list):
        deadline = time.monotonic() + 30
        while left := [pid for pid in pids if alive(pid)]:
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.05)

    def start_hanging(self) -> subprocess.Popen:
        config = self.config(HANGS, deadline_s=3600)
        process = subprocess.Popen(self.command("train", config, "--run", self.run_folder), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_a_killed_run_leaves_no_process(self):
        process = self.start_hanging()
        pids = self.waits_for(process, 4)
        process.kill()
        process.wait()
        self.ends(pids)

    def said(self, name: str) -> dict:
        return {path.stem: json.loads(path.read_text()) for path in self.folder.glob(f"{name}_*.json")}

    def status_of_call(self, url: str, key: str) -> int:
        request = urllib.request.Request(url + "/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode(),
                                         {"Content-Type": "application/json", "Authorization": "Bearer " + key})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_D1_D3_a_run_killed_in_the_middle_of_episodes_goes_on(self):
        steps, kills = 6, 3
        config = self.config(WORKS)
        config.write_text(config.read_text().replace("steps = 2", f"steps = {steps}"))

        def start(*args) -> subprocess.Popen:
            process = subprocess.Popen(self.command("train", *args), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                       cwd=self.folder)
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            return process

        def in_the_middle() -> list:
            played = {name.replace("played", "began") for name in self.said("played")}
            return [episode for name, episode in self.said("began").items() if name not in played]

        def wait(process: subprocess.Popen, condition) -> None:
            deadline = time.monotonic() + 300
            while not condition():
                self.assertIsNone(process.poll(), process.returncode)
                self.assertLess(time.monotonic(), deadline, condition.__name__)
                time.sleep(0.01)

        process = start(config, "--run", self.run_folder)
        dead = []
        for _ in range(kills):
            steps_before, began_before = len(self.lines("metrics.jsonl")), len(self.said("began"))

            def in_the_middle_of_two() -> bool:  # and it has got on since the last kill
                return (len(self.lines("metrics.jsonl")) > steps_before and len(self.said("began")) >= began_before + 6 and
                        len([episode for episode in in_the_middle() if episode not in dead]) >= 2)

            wait(process, in_the_middle_of_two)
            process.kill()
            process.wait()
            cut = [episode for episode in in_the_middle() if episode not in dead]
            dead += cut
            for episode in cut:
                for pid in episode["pids"]:
                    self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
            self.ends([pid for episode in cut for pid in episode["pids"]])

            urls = {episode["url"] for episode in self.said("began").values()}
            process = start("--resume", self.run_folder)

            def new_episodes() -> list:
                return [episode for episode in self.said("began").values() if episode["url"] not in urls]

            wait(process, new_episodes)
            # The key of an episode that has died opens nothing in the run that goes on.
            for episode in dead:
                self.assertEqual(self.status_of_call(new_episodes()[0]["url"], episode["key"]), 401)
        _, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, error)
        self.assertGreaterEqual(len(dead), 2 * kills - 1)

        report = self.report()
        self.assertEqual(report["steps"], steps)
        self.assertTrue(report["ledger_balanced"])
        # Each trained trajectory is an episode that was played to its end: both of its calls, nothing else.
        played = [sum(episode["tokens"], []) for episode in self.said("played").values() if episode["split"] == "train"]
        trained = [row for row in self.rows() if row["state"] == "trained"]
        self.assertGreater(len(trained), 0)
        for row in trained:
            self.assertEqual([turn["kind"] for turn in row["turns"]], ["prompt", "action", "observation", "action"])
            self.assertIn([token for token, mask in zip(row["tokens"], row["loss_mask"]) if mask], played)
        # A step that was repeated after a kill was repeated on the same trajectories, and each was trained on once.
        batches = {}
        for line in self.lines("metrics.jsonl"):
            self.assertEqual(batches.setdefault(line["step"], line["trajectory_ids"]), line["trajectory_ids"])
        self.assertEqual(sorted(batches), list(range(1, steps + 1)))
        ids = [i for batch in batches.values() for i in batch]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(report["ledger"]["trained"], len(ids))
        self.ends([pid for episode in self.said("began").values() for pid in episode["pids"]])

    def test_an_interrupt_ends_episodes_that_hang(self):
        process = self.start_hanging()
        pids = self.waits_for(process, 4)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=600)
        self.assertEqual(process.returncode, 130)
        self.ends(pids)

    def test_what_is_wrong_with_a_harness_is_said_before_training(self):
        def said(agent: str, *sets: str) -> subprocess.CompletedProcess:
            config = self.config(agent)
            return self.train(config, "--overwrite", *(word for value in sets for word in ("--set", value)))

        self.assert_fails(said("import sys; sys.exit('I need a library')"), 5, "env.command was started 3 times",
                          "exited with code 1", "I need a library")
        self.assert_fails(said("import sys; print('hello'); sys.exit(print('which key?', file=sys.stderr))"), 5,
                          "exited with code 0 without asking the policy", "OPENAI_BASE_URL", "which key?")
        self.assert_fails(said("import time; time.sleep(600)", "env.start_deadline_s=2"), 7, "2 s (env.start_deadline_s)",
                          "OPENAI_API_KEY")
        self.assert_fails(said("", 'env.command=["./no_such_agent"]'), 2, "env.command begins with './no_such_agent'", "there is no such file")
        self.assert_fails(said("", "env.command=[]"), 2, "env.command is missing", "harness")
        self.assert_fails(said("", 'env.tools=["python"]'), 2, "brings its own tools")
        self.assert_fails(said("", "rollout.tokens_max=128"), 2, "rollout.context = 256", "env.episode_tokens_max")

    def test_a_harness_that_plays_no_training_episode_ends_the_run_as_a_part_of_it_that_died(self):
        # Before training it is tried on the evaluation split, where it plays.
        config = self.config(AGENT + '''
if split == "train":
    sys.exit(print("no data for training", file=sys.stderr))
chat([{"role": "user", "content": "Hi"}])
print(json.dumps({"reward": 1}))
''')
        self.assert_fails(self.train(config, timeout=300), 5, "episodes failed, the last one in env_error",
                          "exited with code 0 without asking the policy", "no data for training")


if __name__ == "__main__":
    unittest.main()
