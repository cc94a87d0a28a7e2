"""What an environment is: one object is one episode."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import math
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Union


@dataclasses.dataclass(frozen=True)
class Message:
    """One message that the agent sees next; role is "system", "user" or "tool".

    "assistant" is for demonstrations: turns in front of the task that show how an agent answers. They are never trained on.
    """

    role: str
    content: str


Observation = Union[str, Message, List[Message], None]
Reward = Union[float, Dict[str, float]]


@dataclasses.dataclass
class Step:
    """What an action led to.

    observation: what the agent sees next: a text (of the user), messages, or None.
    reward: earned by this step; a number, or components by name. They add up over the episode.
    done: the episode has ended.
    tool: the tool that answered, for the report on where time went.
    reward_us: how long grading took, in microseconds; 0: what was spent in `grading()` blocks.
    """

    observation: Observation = None
    reward: Reward = 0.0
    done: bool = False
    tool: str = ""
    reward_us: int = 0


class GraderError(Exception):
    """The grader failed, so there is no reward: the episode is replaced and never trained on.

    A reward of 0 would teach the agent that its answer was wrong.
    """


class Environment:
    """One episode. Subclass it; serve() makes one for each episode, in a thread of its own.

    An exception in reset or step ends the episode; it is reported and never trained on. Different episodes run at the
    same time: guard what they share. A step that waits (for a tool, the network, a process) costs only its thread.
    """

    def reset(self, task: int, split: str, seed: int) -> Observation:
        """Starts the episode of a task and returns the first message(s).

        task: a number of 0 or more; the same number means the same task.
        split: "train" or "eval".
        seed: of everything random here, so that an episode can be run again.
        """
        raise NotImplementedError

    def step(self, action: str) -> Step:
        """Takes what the agent wrote."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases what the episode holds. Called once, also after an exception or a deadline."""


class AsyncEnvironment:
    """One episode as coroutines: all episodes of the process share one event loop, so that one that waits costs no thread.

    As Environment, but for what may never happen here: a call that blocks stops every other episode. When the deadline
    of a step passes, the step is cancelled (asyncio.CancelledError at its await), then close is called.
    """

    async def reset(self, task: int, split: str, seed: int) -> Observation:
        raise NotImplementedError

    async def step(self, action: str) -> Step:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def options() -> Dict[str, Any]:
    """The table `env.options` of the run's configuration; {} outside a run."""
    try:
        parsed = json.loads(os.environ.get("FOREBAY_ENV_OPTIONS", "{}"))
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("FOREBAY_ENV_OPTIONS must hold a JSON object")
    return parsed


class Call:
    """A reset or step that runs: its deadline, and the time spent on grading so far."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.deadline = time.monotonic() + seconds
        self.grading_s = 0.0


# A context variable, not a thread's: coroutines share their thread, and the tasks that one starts inherit its call.
_call: "contextvars.ContextVar[Optional[Call]]" = contextvars.ContextVar("forebay_call", default=None)


def begin_call(seconds: float = math.inf) -> Call:
    """Starts the call of this thread or coroutine."""
    call = Call(seconds)
    _call.set(call)
    return call


def seconds_left() -> float:
    """Until the deadline of the reset or step that runs, to pass on to a tool; infinite outside one. Never below 0."""
    call = _call.get()
    return math.inf if call is None else max(0.0, call.deadline - time.monotonic())


@contextlib.contextmanager
def grading() -> Iterator[None]:
    """A block that grades: its time is reported as such, and any exception in it becomes a GraderError."""
    begin = time.monotonic()
    try:
        yield
    except GraderError:
        raise
    except Exception as error:
        raise GraderError(f"{type(error).__name__}: {error}") from error
    finally:
        call = _call.get()
        if call is not None:
            call.grading_s += time.monotonic() - begin
