"""Goal: what other libraries' environments show, take and earn arrives as ours, by tiny stand-ins for the libraries."""

import contextlib
import importlib
import random
import sys
import threading
import time
import types
import unittest
from typing import Any, Iterator
from unittest import mock

from forebay import GraderError, Message
from forebay.adapters import task_seed
from forebay.adapters._common import pick


@contextlib.contextmanager
def adapter(name: str, library: Any) -> Iterator[Any]:
    """The adapter, imported with `library` in place of the real one."""
    ours = f"forebay.adapters.{name}"
    with mock.patch.dict(sys.modules, {name: library}):
        sys.modules.pop(ours, None)
        try:
            yield importlib.import_module(ours)
        finally:
            sys.modules.pop(ours, None)


class CommonTest(unittest.TestCase):
    def test_a_missing_package_is_named(self) -> None:
        with self.assertRaisesRegex(ImportError, "needs the package reasoning-gym: pip install"), adapter("reasoning_gym", None):
            pass

    def test_seeds_differ_by_task_and_split(self) -> None:
        seeds = {task_seed(split, task) for split in ("train", "eval") for task in range(500)}
        self.assertEqual(len(seeds), 1000)
        self.assertEqual(task_seed("train", 3), task_seed("train", 3))
        self.assertTrue(all(0 <= seed < 2**31 for seed in seeds))

    def test_the_name_mentioned_last_counts(self) -> None:
        names = ["left", "down", "right", "turn left"]
        for text, index in (("left", 0), ("Go RIGHT!", 2), ("not left, down", 1), ("turn left", 3), ("2", 2), ("left 2", 0), ("4", None),
                            ("", None), ("lefty", None), ("-1", None), ("1.5", None), ("9" * 50, None), ("I say: 1.", 1)):
            self.assertEqual(pick(text, names), index, text)


class Discrete:
    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start


class Text:
    pass


GYMNASIUM = types.SimpleNamespace(spaces=types.SimpleNamespace(Discrete=Discrete, Text=Text))


class Corridor:
    """Two steps to the right."""

    render_mode = "ansi"

    def __init__(self, space: Any) -> None:
        self.action_space = space
        self.closed = False

    def reset(self, seed: int) -> "tuple[int, dict]":
        self.at, self.seed, self.actions = 0, seed, []
        return self.at, {}

    def step(self, action: Any) -> "tuple[int, float, bool, bool, dict]":
        self.actions.append(action)
        self.at += 1
        return self.at, 0.5, self.at == 2, False, {}

    def render(self) -> str:
        return "\n" + ".." [:self.at] + "\x1b[41mS\x1b[0m\x1b[32m!\x1b[0m\n"

    def close(self) -> None:
        self.closed = True


class GymnasiumTest(unittest.TestCase):
    def test_named_actions(self) -> None:
        with adapter("gymnasium", GYMNASIUM) as gym:
            corridor = Corridor(Discrete(2, start=5))
            env = gym.GymnasiumEnvironment(lambda: corridor, prompt="Walk.", actions=["left", "right"], invalid_max=2)
            self.assertEqual(env.reset(1, "train", 9), "Walk.\nAnswer with one of: left, right.\n\n[S]!")
            self.assertEqual(corridor.seed, task_seed("train", 1))
            step = env.step("right")
            self.assertEqual((step.observation, step.reward, step.done), (".[S]!", {"reward": 0.5}, False))
            step = env.step("I do not know")
            self.assertEqual((step.observation, step.reward, step.done), ("Answer with one of: left, right.", {"reward": 0.0}, False))
            step = env.step("left")
            self.assertEqual((step.observation, step.done), (None, True))
            self.assertEqual(corridor.actions, [6, 5])
            env.close()
            self.assertTrue(corridor.closed)

    def test_too_many_wrong_actions_end_it(self) -> None:
        with adapter("gymnasium", GYMNASIUM) as gym:
            env = gym.GymnasiumEnvironment(lambda: Corridor(Discrete(3)), invalid_max=2, invalid_reward=-1)
            self.assertIn("a number from 0 to 2", env.reset(1, "train", 9))
            self.assertFalse(env.step("x").done)
            step = env.step("7")
            self.assertEqual((step.reward, step.done), ({"reward": -1}, True))

    def test_text_actions_and_hooks(self) -> None:
        with adapter("gymnasium", GYMNASIUM) as gym:
            corridor = Corridor(Text())
            env = gym.GymnasiumEnvironment(lambda: corridor, render=lambda env, observation, info: f"at {observation}")
            self.assertEqual(env.reset(1, "train", 9), "at 0")
            env.step("go on")
            self.assertEqual(corridor.actions, ["go on"])

            def parse(text: str, env: Any) -> float:
                try:
                    return float(text)
                except ValueError:
                    raise gym.InvalidAction("A number, please.") from None

            env = gym.GymnasiumEnvironment(lambda: corridor, parse=parse)
            env.reset(1, "train", 9)
            self.assertEqual(env.step("x").observation, "A number, please.")
            env.step("2.5")
            self.assertEqual(corridor.actions, [2.5])

    def test_what_cannot_work_is_refused(self) -> None:
        with adapter("gymnasium", GYMNASIUM) as gym:
            with self.assertRaisesRegex(ValueError, "2 names are given for 3 actions"):
                gym.GymnasiumEnvironment(lambda: Corridor(Discrete(3)), actions=["a", "b"])
            with self.assertRaisesRegex(ValueError, "parse hook"):
                gym.GymnasiumEnvironment(lambda: Corridor(object()))


class Sums:
    """Item n asks for n; its grader raises on text that is no number."""

    def __init__(self, name: str, size: int, seed: int, broken: bool = False) -> None:
        self.name, self.size, self.broken = name, size, broken

    def __getitem__(self, index: int) -> "dict[str, str]":
        assert 0 <= index < self.size
        return {"question": f"{self.name} {index}?", "answer": str(index)}

    def score_answer(self, answer: str, entry: "dict[str, str]") -> float:
        if self.broken:
            raise RuntimeError("no rubric")
        return 1.0 if int(answer) == int(entry["answer"]) else 0.25


class ReasoningGymTest(unittest.TestCase):
    LIBRARY = types.SimpleNamespace(create_dataset=Sums)

    def test_a_mix_in_its_shares_with_splits_apart(self) -> None:
        with adapter("reasoning_gym", self.LIBRARY) as gym:
            mix = gym.Mix({"a": {"weight": 3, "size": 50}, "b": {"size": 50}})
            train = [mix.entry(task, "train") for task in range(2000)]
            self.assertAlmostEqual(sum(name == "a" for name, _ in train) / 2000, 0.75, delta=0.05)
            held_out = {entry["question"] for _, entry in (mix.entry(task, "eval") for task in range(2000))}
            self.assertEqual(len(held_out), 10)
            self.assertFalse(held_out & {entry["question"] for _, entry in train})

    def test_an_episode(self) -> None:
        with adapter("reasoning_gym", self.LIBRARY) as gym:
            env = gym.Mix({"a": {}}, extract="boxed", instruction="Box it.", tries=2, format="boxed", format_reward=0.5).make()
            first = env.reset(3, "train", 0)
            self.assertRegex(first, r"^a \d+\?\nBox it\.$")
            right = first.split("?")[0][2:]
            step = env.step(right)  # not in a box
            self.assertEqual((step.observation, step.reward, step.done), ("That is not right. Try again.", {"correct": 0.0}, False))
            step = env.step(f"\\boxed{{ {right} }}")
            self.assertEqual((step.reward, step.done, step.tool), ({"correct": 1.0, "format": 0.5}, True, "a"))

    def test_B2_only_a_broken_grader_is_a_grader_error(self) -> None:
        with adapter("reasoning_gym", self.LIBRARY) as gym:
            env = gym.Mix({"a": {}}).make()
            env.reset(0, "train", 0)
            self.assertEqual(env.step("no number").reward, {"correct": 0.0})  # the right answer is graded, so it is the agent's fault
            env = gym.Mix({"a": {"broken": True}}).make()
            env.reset(0, "train", 0)
            with self.assertRaisesRegex(GraderError, "no rubric"):
                env.step("5")

    def test_what_is_no_mix_is_refused(self) -> None:
        with adapter("reasoning_gym", self.LIBRARY) as gym:
            for datasets, options in (({}, {}), ({"a": {"weight": 0}}, {}), ({"a": {"weight": -1}}, {}), ({"a": {}}, {"extract": "box"})):
                with self.assertRaises(ValueError):
                    gym.Mix(datasets, **options)


class Nim:
    """Who takes the last of five matches wins; shows the whole story each time."""

    def __init__(self, name: str) -> None:
        pass

    def reset(self, num_players: int, seed: int) -> None:
        self.left, self.player, self.players, self.story = 5, 0, num_players, "\n[GAME] Five matches: '[1]' or '[2]'."

    def get_observation(self) -> "tuple[int, str]":
        return self.player, self.story

    def step(self, action: str) -> "tuple[bool, dict]":
        self.story += f"\n[Player {self.player}] {action}"
        taken = {"[1]": 1, "[2]": 2}.get(action, 0)
        self.left -= taken
        self.story += f"\n[GAME] {self.left} left: '[1]' or '[2]'."
        if self.left > 0 and taken:
            self.player = (self.player + 1) % self.players
        return self.left <= 0, {}

    def close(self) -> "tuple[dict, dict]":
        return {player: 1 if player == self.player else -1 for player in range(self.players)}, {}


class TextArenaTest(unittest.TestCase):
    LIBRARY = types.SimpleNamespace(make=Nim)

    def test_alone(self) -> None:
        with adapter("textarena", self.LIBRARY) as arena:
            env = arena.TextArenaEnvironment("Nim")
            self.assertEqual(env.reset(0, "train", 0), "[GAME] Five matches: '[1]' or '[2]'.")
            step = env.step("[2]")
            self.assertEqual((step.observation, step.reward, step.done), ("[GAME] 3 left: '[1]' or '[2]'.", {"reward": 0.0}, False))
            self.assertEqual(env.step("nonsense").observation, "[GAME] 3 left: '[1]' or '[2]'.")
            env.step("[2]")
            step = env.step("[1]")
            self.assertEqual((step.observation, step.reward, step.done), (None, {"reward": 1.0}, True))

    def test_against_an_opponent_from_either_place(self) -> None:
        with adapter("textarena", self.LIBRARY) as arena:
            firsts, rewards = set(), set()
            for task in range(20):
                env = arena.TextArenaEnvironment("Nim", players=2, opponent=lambda text, rng: "[1]")
                firsts.add(env.reset(task, "train", 0))
                while True:
                    step = env.step("[1]")
                    if step.done:
                        break
                rewards.add(step.reward["reward"])
            self.assertEqual(firsts, {"[GAME] Five matches: '[1]' or '[2]'.",
                                      "[GAME] Five matches: '[1]' or '[2]'.\n[Player 0] [1]\n[GAME] 4 left: '[1]' or '[2]'."})
            self.assertEqual(rewards, {1.0, -1.0})  # who moves first wins

    def test_the_random_opponent_plays_what_is_offered(self) -> None:
        with adapter("textarena", self.LIBRARY) as arena:
            moves = {arena.random_move("Moves: '[1]', '[2]', '[9]'", random.Random(seed)) for seed in range(50)}
            self.assertEqual(moves, {"[1]", "[2]", "[9]"})
            self.assertEqual(arena.random_move("", random.Random(1)), "[0]")

    def test_opponents_that_never_let_it_play_are_an_error(self) -> None:
        with adapter("textarena", self.LIBRARY) as arena:
            task = next(task for task in range(50) if task_seed("train", task) % 2 == 1)  # the agent moves second
            env = arena.TextArenaEnvironment("Nim", players=2, opponent=lambda text, rng: "pass")
            with self.assertRaisesRegex(RuntimeError, "never was the agent's turn"):
                env.reset(task, "train", 0)


class Quest:
    def __init__(self, path: str) -> None:
        self.path, self.commands, self.score = path, [], 0

    def _state(self, text: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(objective=" Find the key. ", description="-= Hall =-\n\n\nA hall.\n", feedback=text + "\n\n>      -= Hall =-0/1",
                                     admissible_commands=["look", "take key"], won=self.score == 2, lost=False, score=self.score, max_score=2)

    def reset(self) -> types.SimpleNamespace:
        return self._state("a banner")

    def step(self, command: str) -> "tuple[types.SimpleNamespace, int, bool]":
        self.commands.append(command)
        self.score += command == "take key"
        return self._state("Taken."), self.score, False

    def close(self) -> None:
        self.commands.append("closed")


class TextWorldTest(unittest.TestCase):
    LIBRARY = types.SimpleNamespace(EnvInfos=lambda **kwargs: kwargs, start=lambda path, infos: Quest(path))

    def test_an_episode(self) -> None:
        with adapter("textworld", self.LIBRARY) as world:
            env = world.TextWorldEnvironment(["a", "b"], held_out=["c"])
            self.assertEqual(env.reset(3, "train", 0), "Find the key.\n\n-= Hall =-\nA hall.\nPossible commands: look, take key.\n"
                             "Answer with one command.")
            quest = env._env
            self.assertEqual(quest.path, "b")
            step = env.step("> Take key.")
            self.assertEqual((step.observation, step.reward, step.done),
                             ("Taken.\nPossible commands: look, take key.", {"score": 0.0, "won": 0.0}, False))
            self.assertEqual(env.step("take key").reward, {"score": 0.5, "won": 0.0})
            step = env.step("take key")
            self.assertEqual((step.observation, step.reward, step.done), (None, {"score": 0.5, "won": 1.0}, True))
            env.close()
            self.assertEqual(quest.commands[-1], "closed")
            env.reset(5, "eval", 0)
            self.assertEqual(env._env.path, "c")

    def test_demonstrations_and_a_reward_for_what_is_possible(self) -> None:
        with adapter("textworld", self.LIBRARY) as world:
            shown = [Message("user", "q"), Message("assistant", "look")]
            env = world.TextWorldEnvironment(["a"], demonstrations=shown, possible_reward=0.25, hints=False)
            first = env.reset(0, "train", 0)
            self.assertEqual(first[:2], shown)
            self.assertNotIn("Possible commands", first[2].content)
            self.assertEqual(env.step("Look.").reward, {"score": 0.0, "won": 0.0, "possible": 0.25})
            self.assertEqual(env.step("I look around").reward["possible"], 0.0)

    def test_games_take_turns(self) -> None:
        inside, most = [], []

        class Counted(Quest):
            def step(self, command: str) -> "tuple[types.SimpleNamespace, int, bool]":
                inside.append(command)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()
                return super().step(command)

        library = types.SimpleNamespace(EnvInfos=lambda **kwargs: kwargs, start=lambda path, infos: Counted(path))
        with adapter("textworld", library) as world:

            def play() -> None:
                env = world.TextWorldEnvironment(["a"])
                env.reset(0, "train", 0)
                for _ in range(5):
                    env.step("look")

            threads = [threading.Thread(target=play) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(most, [1] * 20)

    def test_commands_fit_the_interpreters_of_the_games(self) -> None:
        with adapter("textworld", self.LIBRARY) as world:
            for text, command in (("look", "look"), ("\n> open  box.\nI will", "open box"), ("", "look"), ("\x00\x01", "look"), ("123", "look"),
                                  ("`go north`", "go north"), ("x" * 5000, "x" * 100), ("\u00e9\U0001f600 sing", "sing")):
                self.assertEqual(world.command_of(text), command)

    def test_no_games(self) -> None:
        with adapter("textworld", self.LIBRARY) as world, self.assertRaisesRegex(ValueError, "tw-make"):
            world.TextWorldEnvironment([])


if __name__ == "__main__":
    unittest.main()
