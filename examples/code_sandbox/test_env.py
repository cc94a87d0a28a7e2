"""Goal: what an agent writes is run in the sandbox and graded by what it returns alone."""

import contextlib
import io
import subprocess
import sys
import unittest
from unittest import mock

import env
import tasks
from forebay import GraderError
from forebay.sandbox import Sandbox, SandboxError

try:
    Sandbox().check()
    MISSING = ""
except SandboxError as error:
    MISSING = str(error)


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


class BrokenSandboxTest(unittest.TestCase):
    def test_B2_a_sandbox_that_does_not_start_is_no_reward(self) -> None:
        broken = Sandbox(bwrap="/bin/false")
        e = env.CodeSandbox(broken, 3)
        e.reset(0, "train", 0)
        with self.assertRaises(GraderError):
            e.step(block("def add(a, b): return a + b"))

    def test_the_program_ends_with_one_paragraph(self) -> None:
        out = subprocess.run([sys.executable, env.__file__, "--python", "/no/python"], capture_output=True, text=True,
                             stdin=subprocess.DEVNULL)
        self.assertEqual(out.returncode, 1)
        self.assertIn("code_sandbox: ", out.stderr)
        self.assertNotIn("Traceback", out.stderr)


class GradingTest(unittest.TestCase):
    def test_tasks_are_sound(self) -> None:
        self.assertGreaterEqual(len(tasks.TRAIN), 12)
        self.assertGreaterEqual(len(tasks.EVAL), 4)
        names = [task.function for task in tasks.TRAIN + tasks.EVAL]
        self.assertEqual(len(set(names)), len(names))
        for task in tasks.TRAIN + tasks.EVAL:
            self.assertGreaterEqual(len(task.tests), 3, task.function)

    @unittest.skipIf(MISSING, MISSING)
    def test_an_episode(self) -> None:
        e = env.CodeSandbox(Sandbox(), 3)
        asked, = e.reset(0, "train", 0)
        self.assertEqual(asked.content, "Write a Python function add(a, b) that returns the sum of two numbers. "
                                        "Answer with one ```python code block.")
        step = e.step("a + b")
        self.assertEqual((step.observation, step.done), ("There is no ```python code block. Try again.", False))
        step = e.step(block("def add(a, b): return 3"))
        self.assertEqual((step.observation, step.reward, step.tool),
                         ("add(-4, 4) returned 3, not 0. Try again.", {"tests": 0.0}, "bwrap"))
        step = e.step(block("def add(a, b): return a + b"))
        self.assertEqual((step.reward, step.done, step.observation), ({"tests": 1.0}, True, None))

    @unittest.skipIf(MISSING, MISSING)
    def test_the_last_try_earns_the_fraction_that_passed(self) -> None:
        e = env.CodeSandbox(Sandbox(), 1)
        e.reset(0, "train", 0)
        step = e.step(block("def add(a, b): return 3"))
        self.assertTrue(step.done)
        self.assertAlmostEqual(step.reward["tests"], 1 / 3)

    def test_wrong_options_are_refused(self) -> None:
        for arguments in (["--tries", "0"], ["--parallel", "-1"], ["--wall-s", "0"]):
            with mock.patch.object(sys, "argv", ["env.py", *arguments]), contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaises(SystemExit) as raised:
                    env.main()
                self.assertEqual(raised.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
