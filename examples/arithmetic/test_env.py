"""Goal: the task is what its description says, its splits are disjoint, and what an agent writes is graded fairly."""

import contextlib
import io
import random
import statistics
import unittest

import env


def episode(*arguments: str) -> env.Arithmetic:
    return env.Arithmetic(env.parse_options(["--latency-p50-s", "0", *arguments]))


class ArithmeticTest(unittest.TestCase):
    def test_splits_are_disjoint_and_complete(self) -> None:
        for digits, operations, count in ((1, "+", 100), (1, "+-", 200), (2, "+", 10000)):
            train = env.problems(digits, operations, "train")
            held_out = env.problems(digits, operations, "eval")
            self.assertEqual(len(held_out), count // 5)
            self.assertEqual(len(set(train) | set(held_out)), count)
            self.assertFalse(set(train) & set(held_out))
        with self.assertRaises(ValueError):
            env.problems(1, "+", "test")

    def test_a_task_is_the_same_for_every_seed(self) -> None:
        prompts = {episode().reset(7, "train", seed) for seed in range(5)}
        self.assertEqual(len(prompts), 1)
        self.assertRegex(prompts.pop(), r"^\d\+\d=\? Answer with the number only\.$")
        self.assertEqual(episode().reset(7, "train", 0), episode().reset(87, "train", 0))  # 80 problems, then again

    def test_right_at_the_first_try(self) -> None:
        e = episode()
        e.reset(3, "train", 1)
        step = e.step(str(e._problem.answer))
        self.assertEqual((step.reward, step.done, step.observation), ({"correct": 1.0, "format": 0.1}, True, None))
        self.assertEqual(step.tool, "checker")

    def test_right_at_a_later_try_earns_less(self) -> None:
        e = episode()
        e.reset(3, "train", 1)
        wrong = e.step("I think it is 99")
        self.assertEqual((wrong.reward, wrong.done, wrong.observation), ({"correct": 0.0}, False, "Wrong. Try again."))
        right = e.step(f"Then it is {e._problem.answer}.")
        self.assertEqual((right.reward, right.done), ({"correct": 0.5, "format": 0.0}, True))

    def test_wrong_to_the_end(self) -> None:
        e = episode("--tries", "2")
        e.reset(3, "eval", 1)
        self.assertFalse(e.step("").done)
        last = e.step("x" * 100000)
        self.assertEqual((last.reward, last.done), ({"correct": 0.0, "format": 0.0}, True))

    def test_answers_are_read_from_text(self) -> None:
        for text, answer in (("8", 8), (" 8\n", 8), ("3+5=8", 8), ("The answer is 8.", 8), ("-2", -2), ("3-5=-2", -2),
                             ("3-5", 5), ("", None), ("eight", None), ("9" * 50, None), ("\u0663", None)):
            self.assertEqual(env.read_answer(text), answer, text)

    def test_latency_has_its_percentiles_and_its_seed(self) -> None:
        rng = random.Random(1)
        sample = sorted(env.latency_s(rng, 2.0, 6.0) for _ in range(20000))
        self.assertAlmostEqual(statistics.median(sample), 2.0, delta=0.1)
        self.assertAlmostEqual(sample[int(0.99 * len(sample))], 6.0, delta=0.5)
        self.assertLessEqual(sample[-1], 24.0)
        self.assertEqual(env.latency_s(random.Random(5), 2, 6), env.latency_s(random.Random(5), 2, 6))
        self.assertEqual(env.latency_s(rng, 0, 0), 0.0)

    def test_wrong_options_are_refused(self) -> None:
        for arguments in (["--tries", "0"], ["--latency-p50-s", "9"], ["--digits", "3"], ["--operations", "*"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                env.parse_options(arguments)


if __name__ == "__main__":
    unittest.main()
