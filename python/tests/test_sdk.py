"""Goal: what a user's class returns or raises becomes the right line, whatever it is, and nothing else reaches stdout."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock
from typing import Any, Callable, Dict, List

from forebay import Message, Step, _protocol, grading
from forebay.environment import GraderError, begin_call, options, seconds_left

PYTHON = str(pathlib.Path(__file__).resolve().parents[1])
HEADER = "import asyncio, os, sys, threading, time\nfrom forebay import *\n"


class Served:
    """A served environment at the other end of pipes."""

    def __init__(self, body: str, episodes: int = 4, hello: bool = True, line_bytes_max: int = 4 << 20,
                 leader: bool = False) -> None:
        self._file = tempfile.NamedTemporaryFile("w", suffix=".py")
        self._file.write(HEADER + textwrap.dedent(body) + "\nserve(Env)\n")
        self._file.flush()
        self.process = subprocess.Popen(
            [sys.executable, self._file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHON, "FOREBAY_ENV": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=leader)
        if hello:
            self.say({"forebay_env": 1, "episodes": episodes, "line_bytes_max": line_bytes_max})
            self.hello = self.hear()

    def say(self, request: Dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("it ended: " + self.process.stderr.read().decode())
        return json.loads(line)

    def reset(self, episode: int, id: int = 1, **more: Any) -> None:
        self.say({"op": "reset", "id": id, "episode": episode, "task": 3, "split": "train", "seed": 2**64 - 1,
                  "deadline_s": 5, **more})

    def step(self, episode: int, id: int, action: str) -> None:
        self.say({"op": "step", "id": id, "episode": episode, "action": action, "deadline_s": 5})

    def end(self) -> "tuple[int, str, str]":
        out, err = self.process.communicate(timeout=60)
        self._file.close()
        return self.process.returncode, out.decode(), err.decode()


class ServeTest(unittest.TestCase):
    def serve(self, body: str, **more: Any) -> Served:
        served = Served(body, **more)
        for stream in (served.process.stdin, served.process.stderr):
            self.addCleanup(stream.close)
        self.addCleanup(served.process.stdout.close)
        self.addCleanup(served.process.wait)
        self.addCleanup(served.process.kill)
        return served

    def test_an_episode(self) -> None:
        s = self.serve("""
            class Env(Environment):
                def reset(self, task, split, seed):
                    return [Message("system", "s"), Message("user", f"{task} {split} {seed}")]
                def step(self, action):
                    return Step("caf\\u00e9", reward=0.5, done=True, tool="t", reward_us=7)
                def close(self): print("closed by the server")
            """)
        self.assertEqual(s.hello["forebay_env"], 1)
        s.reset(1)
        self.assertEqual(s.hear(), {"id": 1, "messages": [{"role": "system", "content": "s"},
                                                          {"role": "user", "content": "3 train 18446744073709551615"}]})
        s.step(1, 2, "go")
        self.assertEqual(s.hear(), {"id": 2, "messages": [{"role": "user", "content": "caf\u00e9"}],
                                    "rewards": {"reward": 0.5}, "done": True, "tool": "t", "reward_us": 7})
        s.say({"op": "close", "episode": 1})
        self.assertEqual(s.hear(), {"closed": 1})
        code, out, err = s.end()
        self.assertEqual((code, out), (0, ""))
        self.assertIn("closed by the server", err)

    def test_nothing_but_the_protocol_reaches_stdout(self) -> None:
        s = self.serve("""
            print("at import")
            class Env(Environment):
                def reset(self, task, split, seed):
                    print("print"); os.write(1, b"write\\n"); os.system("echo child"); sys.stdout.write("x\\n")
                    return sys.stdin.read() + "ok"
            """)
        s.reset(1)
        self.assertEqual(s.hear()["messages"][0]["content"], "ok")
        code, out, err = s.end()
        self.assertEqual((code, json.loads(out)), (0, {"closed": 1}))  # the end of stdin closed the episode
        for text in ("at import", "print", "write", "child"):
            self.assertIn(text, err)

    def test_what_a_user_gets_wrong_is_a_typed_error_of_its_episode(self) -> None:
        s = self.serve("""
            class Env(Environment):
                def reset(self, task, split, seed): return "x"
                def step(self, action): return eval(action)
            """)
        cases = (("1/0", "ZeroDivisionError"), ("'x'", "returns a Step"), ("Step(3)", "an observation is"),
                 ("Step([Message('developer', '')])", "role"), ("Step([1])", "Message"), ("Step(reward='a')", "number"),
                 ("Step(reward=float('nan'))", "finite"), ("Step(reward={1: 2})", "name"), ("Step(tool=None)", "tool"),
                 ("sys.exit(3)", "SystemExit"), ("Step([Message('user', '')] * 65)", "at most 64"))
        for number, (action, text) in enumerate(cases, 1):
            s.reset(number, id=1000 + number)
            s.hear()
            s.step(number, number, action)
            reply = s.hear()
            self.assertEqual((reply["id"], reply["error"]), (number, "environment"), action)
            self.assertIn(text, reply["message"])
            s.say({"op": "close", "episode": number})
            self.assertEqual(s.hear(), {"closed": number})
        self.assertEqual(s.end()[0], 0)

    def test_B2_a_grader_error_is_no_reward(self) -> None:
        s = self.serve("""
            class Env(Environment):
                def reset(self, task, split, seed): return "x"
                def step(self, action):
                    if action == "raise": raise GraderError("judge is down")
                    with grading(): return Step(reward={}["no rubric"])
            """)
        for number, (action, text) in enumerate((("raise", "judge is down"), ("block", "no rubric")), 1):
            s.reset(number)
            s.hear()
            s.step(number, 5, action)
            reply = s.hear()
            self.assertEqual(reply["error"], "grader")
            self.assertNotIn("rewards", reply)
            self.assertIn(text, reply["message"])

    def test_episodes_run_side_by_side_and_each_in_order(self) -> None:
        s = self.serve("""
            both = threading.Barrier(2, timeout=60)
            class Env(Environment):
                def reset(self, task, split, seed):
                    self.seen = []
                    return "x"
                def step(self, action):
                    both.wait()  # needs the other episode in its step at the same time
                    self.seen.append(action)
                    return Step(",".join(self.seen))
            """)
        for episode in (1, 2):
            s.reset(episode, id=episode)
        for _ in range(2):
            s.hear()
        seen: Dict[int, List[str]] = {1: [], 2: []}
        for turn in range(3):
            for episode in (1, 2):
                s.step(episode, 10 * episode + turn, str(turn))
            for _ in range(2):
                reply = s.hear()
                seen[reply["id"] // 10].append(reply["messages"][0]["content"])
        self.assertEqual(seen[1], ["0", "0,1", "0,1,2"])
        self.assertEqual(seen[2], seen[1])

    def test_a_closed_episode_does_not_answer_late(self) -> None:
        s = self.serve("""
            go = threading.Event()
            class Env(Environment):
                def reset(self, task, split, seed):
                    if task == 9: go.set()
                    return "x"
                def step(self, action):
                    go.wait(60)
                    return Step("late")
            """)
        s.reset(1, id=1)
        s.hear()
        s.step(1, 2, "")
        s.say({"op": "close", "episode": 1})
        s.reset(2, id=3, task=9)
        replies = [s.hear(), s.hear()]
        self.assertCountEqual([reply.get("closed", reply.get("id")) for reply in replies], [1, 3])
        self.assertFalse(any(reply.get("id") == 2 for reply in replies))

    def test_the_end_of_stdin_ends_it_although_an_episode_hangs(self) -> None:
        s = self.serve("""
            import forebay.server
            forebay.server._END_S_MAX = 0.05
            class Env(Environment):
                def reset(self, task, split, seed): return "x"
                def step(self, action):
                    while True: time.sleep(1000)
            """)
        s.reset(1)
        s.hear()
        s.step(1, 2, "")
        self.assertEqual(s.end()[0], 0)

    def test_when_threads_run_out_only_that_episode_fails(self) -> None:
        s = self.serve("""
            class Env(Environment):
                def reset(self, task, split, seed):
                    if task == 9:
                        import forebay.server
                        def full(*args): raise RuntimeError("can't start new thread")
                        forebay.server._ThreadEpisode = full
                    return "x"
                def step(self, action): return Step("y")
            """)
        s.reset(1, task=9)
        s.hear()
        s.reset(2, id=5)
        reply = s.hear()
        self.assertEqual((reply["id"], reply["error"]), (5, "environment"))
        self.assertIn("episodes_per_process", reply["message"])
        s.say({"op": "close", "episode": 2})
        self.assertEqual(s.hear(), {"closed": 2})
        s.step(1, 6, "")
        self.assertEqual(s.hear()["messages"][0]["content"], "y")

    def test_what_it_started_ends_when_it_is_killed(self) -> None:
        s = self.serve("""
            import multiprocessing, subprocess
            class Env(Environment):
                def reset(self, task, split, seed):
                    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
                    return str(subprocess.Popen(["sleep", "1000"]).pid)
            """, leader=True)
        s.reset(1)
        pid = int(s.hear()["messages"][0]["content"])
        self.assertTrue(self.comes(lambda: b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()))
        s.process.kill()  # the process alone, as the kernel does when Forebay is killed
        s.process.wait()
        # A zombie has ended too: nobody collects orphans in some containers.
        self.assertTrue(self.comes(lambda: all(state == "Z" for state in self.states(s.process.pid))))

    def comes(self, condition: Callable[[], bool]) -> bool:
        """Within 30 s. (Even the command line of a process that has started comes a little later.)"""
        return any(condition() or time.sleep(0.01) for _ in range(3000))

    def states(self, group: int) -> List[str]:
        """Of the processes of a group."""
        found = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    found.append(fields[0])
        return found

    def test_an_answer_longer_than_a_line_is_an_error(self) -> None:
        s = self.serve("""
            class Env(Environment):
                def reset(self, task, split, seed): return "x" * 5000
            """, line_bytes_max=4096)
        s.reset(1)
        reply = s.hear()
        self.assertEqual(reply["error"], "environment")
        self.assertIn("line_bytes_max", reply["message"])

    def test_stdin_that_is_no_protocol_ends_it_with_a_reason(self) -> None:
        env = "class Env(Environment):\n    def reset(self, task, split, seed): return 'x'\n"
        hello = {"forebay_env": 1, "episodes": 1}
        cases = ((["hi"], "one JSON object"), ([{"forebay_env": 9}], "version 1"), ([hello, {"op": "dance"}], "op reset"),
                 ([hello, {"op": "step", "id": 1, "episode": 4, "action": ""}], "was not reset"),
                 ([hello] + [{"op": "reset", "id": i, "episode": i, "task": 0, "split": "train", "seed": 0}
                             for i in (1, 2)], "more than 1 episodes"))
        for requests, text in cases:
            s = self.serve(env, hello=False)
            for request in requests:
                s.say(request)
            code, _, err = s.end()
            self.assertEqual(code, 2)
            self.assertIn(text, err)
            self.assertNotIn("Traceback", err)


class AsyncServeTest(unittest.TestCase):
    serve = ServeTest.serve

    def test_an_episode_with_deadline_and_grading(self) -> None:
        s = self.serve("""
            class Env(AsyncEnvironment):
                async def reset(self, task, split, seed):
                    return f"{0 < seconds_left() <= 5}"
                async def step(self, action):
                    with grading(): await asyncio.sleep(0.02)
                    return Step("next", reward=1)
                async def close(self): print("closed")
            """)
        s.reset(1)
        self.assertEqual(s.hear()["messages"][0]["content"], "True")
        s.step(1, 2, "")
        self.assertGreaterEqual(s.hear()["reward_us"], 20000)
        self.assertEqual(s.end()[:2], (0, '{"closed":1}\n'))

    def test_a_thousand_episodes_wait_at_once_in_one_thread(self) -> None:
        s = self.serve("""
            waiting = 0
            go = None
            class Env(AsyncEnvironment):
                async def reset(self, task, split, seed): return "x"
                async def step(self, action):
                    global waiting, go
                    if go is None: go = asyncio.Event()
                    waiting += 1
                    if waiting == 1000: go.set()
                    await go.wait()
                    return Step(str(threading.active_count()), done=True)
            """, episodes=1000)
        for episode in range(1, 1001):
            s.reset(episode, id=episode)
            s.hear()
        for episode in range(1, 1001):
            s.step(episode, 1000 + episode, "")
        replies = [s.hear() for _ in range(1000)]
        self.assertEqual({reply["id"] for reply in replies}, set(range(1001, 2001)))
        self.assertEqual({reply["messages"][0]["content"] for reply in replies}, {"2"})

    def test_closing_cancels_the_step(self) -> None:
        s = self.serve("""
            stepping = False
            class Env(AsyncEnvironment):
                async def reset(self, task, split, seed):
                    while task == 9 and not stepping: await asyncio.sleep(0.001)
                    return "x"
                async def step(self, action):
                    global stepping
                    stepping = True
                    try: await asyncio.sleep(1000)
                    finally: print("cancelled")
                async def close(self): print("closed")
            """)
        s.reset(1)
        s.hear()
        s.step(1, 2, "")
        s.reset(2, id=3, task=9)
        self.assertEqual(s.hear()["id"], 3)
        s.say({"op": "close", "episode": 1})
        self.assertEqual(s.hear(), {"closed": 1})
        code, out, err = s.end()
        self.assertEqual((code, out), (0, '{"closed":2}\n'))
        self.assertLess(err.index("cancelled"), err.index("closed"))

    def test_an_exception_costs_its_episode_only(self) -> None:
        s = self.serve("""
            class Env(AsyncEnvironment):
                async def reset(self, task, split, seed): return "x"
                async def step(self, action): return eval(action)
            """)
        for number, action, text in ((1, "1/0", "ZeroDivisionError"), (2, "sys.exit(1)", "SystemExit"), (3, "7", "returns a Step"),
                                     (4, "exec('raise asyncio.CancelledError')", "CancelledError")):
            s.reset(number, id=number)
            s.hear()
            s.step(number, 10, action)
            reply = s.hear()
            self.assertEqual(reply["error"], "environment", reply)
            self.assertIn(text, reply["message"])
        s.step(1, 11, "Step('still here')")
        self.assertEqual(s.hear()["messages"][0]["content"], "still here")

    def test_coroutines_in_a_thread_are_refused_with_the_remedy(self) -> None:
        s = self.serve("""
            class A(AsyncEnvironment):
                async def reset(self, task, split, seed): return "x"
            def Env(): return A()
            """)
        s.reset(1)
        self.assertIn("asynchronous=True", s.hear()["message"])


class LibraryTest(unittest.TestCase):
    def test_importing_the_package_elsewhere_changes_nothing(self) -> None:
        out = subprocess.run([sys.executable, "-c", "import forebay, sys; print('still stdout')"],
                             capture_output=True, check=True, env={**os.environ, "PYTHONPATH": PYTHON})
        self.assertEqual(out.stdout, b"still stdout\n")

    def test_observations(self) -> None:
        self.assertEqual(_protocol.encode_observation(None), [])
        self.assertEqual(_protocol.encode_observation(""), [])
        self.assertEqual(_protocol.encode_observation(Message("tool", "a")), [{"role": "tool", "content": "a"}])
        self.assertEqual(_protocol.encode_observation("\ud800x")[0]["content"], "?x")

    def test_rewards(self) -> None:
        self.assertEqual(_protocol.encode_reward(True), {"reward": 1.0})
        self.assertEqual(_protocol.encode_reward({"a": 1, "b": 0.5}), {"a": 1.0, "b": 0.5})
        for wrong in (None, [], {"": 1}, {"a": "x"}, {str(i): 1 for i in range(65)}, float("inf"), {"a" * 129: 1}):
            with self.assertRaises((TypeError, ValueError)):
                _protocol.encode_reward(wrong)

    def test_grading_is_timed(self) -> None:
        call = begin_call()
        with grading():
            sum(range(10000))
        one = call.grading_s
        with self.assertRaises(GraderError), grading():
            raise OSError("x")
        self.assertGreater(one, 0)
        self.assertGreater(call.grading_s, one)
        self.assertEqual(begin_call().grading_s, 0)
        self.assertEqual(_protocol.encode_step(Step(), 1234)["reward_us"], 1234)

    def test_seconds_left_never_falls_below_zero(self) -> None:
        begin_call(100)
        self.assertGreater(seconds_left(), 50)
        self.assertLessEqual(seconds_left(), 100)
        begin_call(-1)
        self.assertEqual(seconds_left(), 0)
        begin_call()
        self.assertEqual(seconds_left(), float("inf"))

    def test_options(self) -> None:
        with mock.patch.dict(os.environ, {"FOREBAY_ENV_OPTIONS": '{"digits": 2}'}):
            self.assertEqual(options(), {"digits": 2})
        with mock.patch.dict(os.environ):
            os.environ.pop("FOREBAY_ENV_OPTIONS", None)
            self.assertEqual(options(), {})
        for wrong in ("[]", "{"):
            with mock.patch.dict(os.environ, {"FOREBAY_ENV_OPTIONS": wrong}), self.assertRaises(ValueError):
                options()


if __name__ == "__main__":
    unittest.main()
