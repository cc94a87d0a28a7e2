"""Goal: `python -m forebay.check` passes a sound environment and names what is wrong with each unsound one."""

import contextlib
import io
import pathlib
import sys
import tempfile
import textwrap
import unittest

from forebay import check

SOUND = """
from forebay import *
class Env(Environment):
    def reset(self, task, split, seed):
        self.right = f"{split}{task}"
        return f"Say {self.right}."
    def step(self, action):
        return Step("No.", reward={"correct": float(action == self.right)}, done=action == self.right)
serve(Env)
"""


class CheckTest(unittest.TestCase):
    def check(self, source: str, *options: str, suffix: str = ".py") -> "tuple[int, str]":
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "env" + suffix)
            file.write_text(textwrap.dedent(source))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = check.main([*options, str(file)])
        return code, out.getvalue()

    def expect(self, source: str, *texts: str, code: int = 1, options: "tuple[str, ...]" = ()) -> None:
        got, out = self.check(source, *options)
        self.assertEqual(got, code, out)
        for text in texts:
            self.assertIn(text, out)

    def test_a_sound_environment(self) -> None:
        code, out = self.check(SOUND, "--transcript", "--action", "train0")
        self.assertEqual(code, 0, out)
        self.assertIn("0 problems, 0 warnings", out)
        self.assertIn("--- user: Say train0.\n--- agent: train0\n--- user: No.\n--- rewards: {'correct': 1.0}\n", out)
        self.assertIn("rewards correct: 0 to 1 an episode", out)

    def test_it_does_not_start(self) -> None:
        self.expect("raise SystemExit('no licence')", "exit code 1", "no licence")
        self.expect("import time\ntime.sleep(100)", "did not say hello within 0.3 s", options=("--start-deadline-s", "0.3"))

    def test_it_prints_before_it_imports_forebay(self) -> None:
        self.expect("print('banner')\n" + SOUND, "not the protocol: b'banner", "import forebay before anything that prints")

    def test_an_exception(self) -> None:
        self.expect(SOUND.replace("return Step(", "return Step[0]("), "step 1 with the action", "TypeError")
        self.expect(SOUND.replace("self.right =", "self.left ="), "reset failed", "AttributeError")

    def test_an_action_that_it_cannot_read(self) -> None:
        self.expect(SOUND.replace('Step("No."', 'Step("No." + "1"[len(action) // 1000]'), "50000 characters", "IndexError",
                    "which an agent may well write")

    def test_a_reset_without_messages(self) -> None:
        self.expect(SOUND.replace('return f"Say {self.right}."', "pass"), "a reset gave no message")

    def test_a_task_that_is_another_each_time(self) -> None:
        self.expect(SOUND.replace("Say", "{__import__('random').random()} Say"), "begins differently when it is reset again")

    def test_a_step_that_differs_each_time(self) -> None:
        self.expect(SOUND.replace('"No."', "str(__import__('random').random())"), "led to other messages", code=0)

    def test_tasks_that_are_all_the_same(self) -> None:
        self.expect(SOUND.replace("{split}{task}", "x"), "does reset use `task`?", "what was trained on", code=0)

    def test_a_step_that_hangs(self) -> None:
        self.expect(SOUND.replace("return Step", "import time; time.sleep(100); return Step"), "did not",
                    options=("--deadline-s", "0.2", "--steps", "1"))

    def test_steps_that_wait_for_each_other(self) -> None:
        source = SOUND.replace("class Env", "import threading, time\nlock = threading.Lock()\nclass Env").replace(
            "return Step", "with lock: time.sleep(0.3)\n        return Step")
        self.expect(source, "episodes wait for each other", code=0, options=("--steps", "1"))

    def test_processes_left_behind(self) -> None:
        source = SOUND.replace("class Env", "import subprocess\nsubprocess.Popen(['sleep', '100'])\nclass Env")
        self.expect(source, "left processes of its own behind", code=0)

    def test_steps_that_say_nothing_and_never_end(self) -> None:
        self.expect(SOUND.replace('"No."', "None").replace('reward={"correct": float(action == self.right)}', "reward={}"),
                    "acts again on nothing new", "no step gave a reward", "rollout.turns_max", code=0)

    @unittest.skipIf(sys.version_info < (3, 11), "tomllib")
    def test_a_configuration(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "env.py").write_text(SOUND.replace("Say", "{options()['word']}"))
            config = pathlib.Path(folder, "run.toml")
            python_path = pathlib.Path(check.__file__).parents[1]
            config.write_text(f"""[env]\ncommand = ["{sys.executable}", "env.py"]\npython_path = ["{python_path}"]\n"""
                              """options = '{"word": "Tell"}'\n""")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                self.assertEqual(check.main(["--transcript", str(config)]), 0, out.getvalue())
            self.assertIn("Tell train0.", out.getvalue())

    @unittest.skipIf(sys.version_info < (3, 11), "tomllib")
    def test_a_configuration_of_another_kind_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "run.toml")
            config.write_text('[env]\nkind = "harness"\ncommand = ["true"]\n')
            out = io.StringIO()
            with contextlib.redirect_stderr(out):
                self.assertEqual(check.main([str(config)]), 2)
            self.assertIn("env.kind = 'harness'", out.getvalue())

    def test_wrong_usage(self) -> None:
        for arguments in ([], ["--episodes", "0", "x.py"]):
            with self.assertRaises(SystemExit) as raised, contextlib.redirect_stderr(io.StringIO()):
                check.main(arguments)
            self.assertEqual(raised.exception.code, 2)
        for arguments in (["/no/such/program"], ["/no/such.toml"]):
            out = io.StringIO()
            with contextlib.redirect_stderr(out):
                self.assertEqual(check.main(arguments), 2)
            self.assertIn("forebay.check: /no/such", out.getvalue())


if __name__ == "__main__":
    unittest.main()
