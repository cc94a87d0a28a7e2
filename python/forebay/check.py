"""Plays a few episodes of an environment as Forebay would, and says what is wrong with it.

    python -m forebay.check my_env.py [ARGUMENTS]
    python -m forebay.check run.toml
    python -m forebay.check --action "go north" --action "look" -- ./my_env --flag

Exit codes: 0, nothing is wrong (warnings are printed); 1, something is; 2, wrong usage.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import shlex
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from ._client import Broken, EnvironmentProcess

_ACTIONS = ["", "1", "help", "I do not know.", "yes"]
# What a policy may well write: none of it may end an episode with an error.
_STRANGE_ACTIONS = ["", " \n\t", "\x00\x01", "\ufffd\U0001f600\u202e", "{" * 2000, "9" * 400, "```python\n", "<tool_call>{", "a" * 50000]
_LONG_PROMPT_CHARS = 20000
_CLOSE_S = 10.0  # as env.close_grace
_SLOW_S = 0.05  # steps quicker than this say nothing about who waits for whom


@dataclasses.dataclass
class Played:
    """One episode."""

    messages: List[List[Dict[str, str]]] = dataclasses.field(default_factory=list)  # of the reset and of each step
    rewards: List[Dict[str, float]] = dataclasses.field(default_factory=list)
    actions: List[str] = dataclasses.field(default_factory=list)
    seconds: List[float] = dataclasses.field(default_factory=list)  # of each step
    done: bool = False
    error: str = ""

    @property
    def first(self) -> str:
        return "\n".join(message["content"] for message in self.messages[0]) if self.messages else ""


class Checker:
    """Collects findings; problems are what costs episodes, warnings what is probably not meant."""

    def __init__(self, process: EnvironmentProcess, options: argparse.Namespace) -> None:
        self.problems: List[str] = []
        self.warnings: List[str] = []
        self.notes: List[str] = []
        self.sample: Optional[Played] = None
        self._process = process
        self._options = options
        self._episodes = 0

    def run(self) -> None:
        begin = time.monotonic()
        hello = self._process.start(self._options.start_deadline_s)
        self.notes.append(f"{hello.get('name') or 'it'} said hello after {time.monotonic() - begin:.2f} s")
        train = self._play_all([("train", task, 7) for task in range(self._options.episodes)])
        held_out = self._play_all([("eval", task, 7) for task in range(self._options.episodes)], steps_max=0)
        again = self._play_all([("train", task, 7) for task in range(self._options.episodes)])
        self.sample = train[0]
        self._judge_episodes(train + held_out)
        self._judge_tasks(train, held_out)
        self._judge_repetition(train, again)
        self._strange_actions()
        self._side_by_side(train)

    def end(self) -> None:
        """Ends the process; what is wrong with its end is a finding if nothing was before."""
        if self.problems:
            self._process.kill()
            return
        code = self._process.end(_CLOSE_S)
        if code is None:
            self.problems.append(f"it did not end within {_CLOSE_S:g} s after the end of its standard input")
        elif code != 0:
            self.problems.append(f"it ended with exit code {code} after the end of its standard input:\n{self._process.stderr_tail()}")
        if self._process.kill() and code is not None:
            self.warnings.append("it left processes of its own behind: end them in close(). (Forebay kills them with its group.)")

    def _play(self, split: str, task: int, seed: int, actions: List[str], steps_max: int) -> Played:
        played = Played()
        self._episodes += 1
        episode = self._episodes
        limit = self._options.deadline_s
        try:
            answer = self._process.request("reset", episode, limit, task=task, split=split, seed=seed)
            while True:
                if "error" in answer:
                    played.error = str(answer.get("message", ""))
                    break
                played.messages.append(answer.get("messages", []))
                if len(played.messages) > 1:
                    played.rewards.append(answer.get("rewards", {}))
                    played.done = bool(answer.get("done"))
                if played.done or len(played.actions) >= steps_max:
                    break
                played.actions.append(actions[len(played.actions) % len(actions)])
                begin = time.monotonic()
                answer = self._process.request("step", episode, limit, action=played.actions[-1])
                played.seconds.append(time.monotonic() - begin)
        finally:
            self._process.close(episode, _CLOSE_S)
        return played

    def _play_all(self, episodes: List[Tuple[str, int, int]], steps_max: int = -1) -> List[Played]:
        steps = self._options.steps if steps_max < 0 else steps_max
        with concurrent.futures.ThreadPoolExecutor(max(1, self._options.parallel)) as pool:
            return list(pool.map(lambda e: self._play(*e, self._options.action or _ACTIONS, steps), episodes))

    def _judge_episodes(self, episodes: List[Played]) -> None:
        for played in episodes:
            if played.error:
                where = f"step {len(played.actions)} with the action {played.actions[-1]!r:.80}" if played.actions else "reset"
                self._add(self.problems, f"{where} failed:\n{played.error}")
            elif not played.first.strip():
                self._add(self.problems, "a reset gave no message: the agent would have nothing to act on")
        longest = max((len(played.first) for played in episodes), default=0)
        if longest > _LONG_PROMPT_CHARS:
            self.warnings.append(f"the first messages have up to {longest} characters: see that rollout.tokens_max holds them")
        stepped = [played for played in episodes if played.rewards]
        if not stepped:
            return
        seconds = sorted(second for played in stepped for second in played.seconds)
        self.notes.append(f"{len(seconds)} steps: p50 {seconds[len(seconds) // 2]:.3f} s, longest {seconds[-1]:.3f} s")
        names = sorted({name for played in stepped for rewards in played.rewards for name in rewards})
        totals = [sum(sum(rewards.values()) for rewards in played.rewards) for played in stepped]
        self.notes.append(f"rewards {', '.join(names) or '(none)'}: {min(totals):g} to {max(totals):g} an episode")
        if not names:
            self.warnings.append("no step gave a reward")
        if not any(played.done for played in stepped):
            self.notes.append(f"no episode was done after {self._options.steps} steps; rollout.turns_max will end them")
        for played in stepped:
            if not played.done and any(not messages for messages in played.messages[1:]):
                self._add(self.warnings, "a step that does not end its episode gave no message: the agent acts again on nothing new")

    def _judge_tasks(self, train: List[Played], held_out: List[Played]) -> None:
        firsts = [played.first for played in train]
        if len(firsts) > 1 and len(set(firsts)) == 1:
            self.warnings.append(f"tasks 0 to {len(firsts) - 1} all begin with the same messages: does reset use `task`?")
        shared = {text for text in firsts if text} & {played.first for played in held_out}
        if shared:
            self.warnings.append(f"{len(shared)} of {len(set(firsts))} first messages occur in the split train and in eval: "
                                 "evaluation would measure what was trained on")

    def _judge_repetition(self, train: List[Played], again: List[Played]) -> None:
        for task, (one, other) in enumerate(zip(train, again)):
            if one.error or other.error:
                continue
            if one.first != other.first:
                self._add(self.problems, f"task {task} begins differently when it is reset again with the same seed: the samples "
                          "of a group would be of different tasks; derive everything random from `task` and `seed`")
            elif one.messages != other.messages or one.rewards != other.rewards:
                self._add(self.warnings, "the same task, seed and actions led to other messages or rewards: an episode cannot be "
                          "run again; derive everything random from `seed`")

    def _strange_actions(self) -> None:
        for action in _STRANGE_ACTIONS:
            played = self._play("train", 0, 7, [action], 1)
            if played.error:
                self._add(self.problems, f"the action {action[:40]!r} ({len(action)} characters), which an agent may well write, makes "
                          f"step fail: the episode would not be trained on. Answer it as a wrong action.\n{played.error}")

    def _side_by_side(self, train: List[Played]) -> None:
        count = self._options.parallel
        # The quickest of three: a machine that is busy elsewhere makes one slow.
        alone = min((played.seconds[0] for played in (self._play("train", 0, 7, self._options.action or _ACTIONS, 1) for _ in range(3))
                     if played.seconds), default=0.0)
        if count < 2 or alone < _SLOW_S:
            return
        episodes = self._play_all([("train", 0, 7)] * count, steps_max=1)
        slowest = max((played.seconds[0] for played in episodes if played.seconds), default=0.0)
        if slowest > 0.7 * count * alone:
            self.warnings.append(f"{count} steps at once took up to {slowest:.2f} s, one alone {alone:.2f} s: episodes wait "
                                 "for each other (a lock, or Python code that computes). Use more env.processes")

    def _add(self, findings: List[str], text: str) -> None:
        if text not in findings:
            findings.append(text)


def _command(words: List[str]) -> Tuple[List[str], Optional[str], Dict[str, str]]:
    """Command, folder and variables of what the user named."""
    if words[0].endswith(".toml"):
        return _from_config(words[0])
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    return words, None, {"PYTHONPATH": path}


def _from_config(path: str) -> Tuple[List[str], Optional[str], Dict[str, str]]:
    try:
        import tomllib
    except ImportError:
        raise Broken("reading a configuration needs Python 3.11: give the command instead") from None
    try:
        with open(path, "rb") as file:
            env: Dict[str, Any] = tomllib.load(file).get("env", {})
    except (OSError, ValueError) as error:
        raise Broken(f"{path}: {error}") from None
    kind = env.get("kind", "python")
    if kind != "python":
        raise Broken(f"{path} has env.kind = {kind!r}: only environments that are processes of their own (kind \"python\") can be "
                     "checked; a short run, with --set run.steps=1, tries the others")
    if not env.get("command"):
        raise Broken(f"{path} has no env.command: only environments that are processes can be checked")
    folder = os.path.dirname(os.path.abspath(path))
    for one in env.get("python_path", []):
        if not os.path.isdir(os.path.join(folder, one)):
            raise Broken(f"{path}: env.python_path names {one!r}, which is no folder (seen from {folder})")
    paths = [os.path.join(folder, one) for one in env.get("python_path", [])] + [os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "FOREBAY_ENV_OPTIONS": env.get("options", "{}")}
    return env["command"], folder, variables


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m forebay.check", description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=4, help="tasks to play")
    parser.add_argument("--steps", type=int, default=6, help="steps of an episode at most")
    parser.add_argument("--parallel", type=int, default=4, help="episodes at once")
    parser.add_argument("--action", action="append", help="what the agent says; may be given again: they follow each other")
    parser.add_argument("--start-deadline-s", type=float, default=30.0)
    parser.add_argument("--deadline-s", type=float, default=60.0, help="of a reset or step")
    parser.add_argument("--transcript", action="store_true", help="print the first episode")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="FILE.py, RUN.toml or a program, with its arguments")
    options = parser.parse_args(arguments)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words or min(options.episodes, options.steps, options.parallel) < 1:
        parser.error("name the environment's file; --episodes, --steps and --parallel are 1 or more")
    try:
        command, folder, variables = _command(words)
        process = EnvironmentProcess(command, folder, variables, episodes=max(64, options.parallel))
    except Broken as error:
        print(f"forebay.check: {error}", file=sys.stderr)
        return 2
    checker = Checker(process, options)
    try:
        checker.run()
    except Broken as error:
        checker.problems.append(str(error))
    finally:
        checker.end()
    return _report(checker, shlex.join(words), options.transcript)


def _report(checker: Checker, name: str, transcript: bool) -> int:
    if transcript and checker.sample:
        for turn, messages in enumerate(checker.sample.messages):
            if turn:
                print(f"--- agent: {checker.sample.actions[turn - 1]}")
            for message in messages:
                print(f"--- {message['role']}: {message['content']}")
            if turn:
                print(f"--- rewards: {checker.sample.rewards[turn - 1]}")
    for kind, findings in (("note", checker.notes), ("warning", checker.warnings), ("PROBLEM", checker.problems)):
        for finding in findings:
            print(f"{kind}: {finding}")
    print(f"{name}: {len(checker.problems)} problems, {len(checker.warnings)} warnings")
    return 1 if checker.problems else 0


if __name__ == "__main__":
    sys.exit(main())
