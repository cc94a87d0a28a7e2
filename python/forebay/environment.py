"""What an environment is: one object is one episode."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import Dict, Iterator, List, Optional, Union


@dataclasses.dataclass(frozen=True)
class Message:
    """One message that the agent sees next; role is "system", "user" or "tool"."""

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


_thread = threading.local()


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
        _thread.grading_s = getattr(_thread, "grading_s", 0.0) + time.monotonic() - begin


def take_grading_us() -> int:
    """Microseconds that this thread spent in grading() since the last call."""
    seconds: Optional[float] = getattr(_thread, "grading_s", None)
    _thread.grading_s = 0.0
    return int((seconds or 0.0) * 1e6)
