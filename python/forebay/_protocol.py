"""The lines on stdin and stdout (docs/environment_protocol.md)."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from .environment import Message, Observation, Reward, Step

VERSION = 1
MESSAGES_MAX = 64
REWARDS_MAX = 64
NAME_BYTES_MAX = 128
ERROR_CHARS_MAX = 4000
_ROLES = ("system", "user", "tool", "assistant")

_streams: Optional[Tuple[BinaryIO, BinaryIO]] = None


def capture_stdio(only_if_served: bool = False) -> Tuple[BinaryIO, BinaryIO]:
    """Keeps the real stdin and stdout for the protocol (returned as binary streams) and gives everyone else
    /dev/null and stderr, so that a print, a C library or a child process cannot break the protocol."""
    global _streams
    if _streams is None and (not only_if_served or os.environ.get("FOREBAY_ENV") == "1"):
        os.environ.pop("FOREBAY_ENV", None)  # not for our own children
        if sys.stdout is not None:
            sys.stdout.flush()
        source = os.fdopen(os.dup(0), "rb")  # os.dup: not inherited by children
        sink = os.fdopen(os.dup(1), "wb")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        _streams = (source, sink)
    return _streams  # type: ignore[return-value]


class Channel:
    """Writes one object a line; any thread."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self.line_bytes_max = 4 << 20

    def send(self, reply: Dict[str, Any]) -> None:
        line = json.dumps(reply, allow_nan=False, separators=(",", ":")).encode("ascii")
        if len(line) > self.line_bytes_max and "error" not in reply:
            line = json.dumps(error_reply(
                reply.get("id", 0), "environment",
                f"the answer of {len(line)} bytes is longer than line_bytes_max = {self.line_bytes_max}")).encode("ascii")
        with self._lock:
            try:
                self._sink.write(line + b"\n")
                self._sink.flush()
            except (BrokenPipeError, ValueError):
                pass  # nobody listens any more: the end of stdin follows


def error_reply(request: int, kind: str, message: str) -> Dict[str, Any]:
    return {"id": request, "error": kind, "message": message[-ERROR_CHARS_MAX:]}


def encode_observation(observation: Observation) -> List[Dict[str, str]]:
    """Raises TypeError or ValueError for what is no observation."""
    if observation is None:
        return []
    if isinstance(observation, str):
        return [{"role": "user", "content": _text(observation)}] if observation else []
    messages = [observation] if isinstance(observation, Message) else observation
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"an observation is a str, a Message or a list of Message, not {type(messages).__name__}")
    if len(messages) > MESSAGES_MAX:
        raise ValueError(f"an observation has at most {MESSAGES_MAX} messages, not {len(messages)}")
    encoded = []
    for message in messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            raise TypeError(f"an observation's list holds Message(role, content) with texts, not {message!r:.80}")
        if message.role not in _ROLES:
            raise ValueError(f"the role of a message is system, user, tool or assistant, not {message.role!r:.80}")
        encoded.append({"role": message.role, "content": _text(message.content)})
    return encoded


def encode_reward(reward: Reward) -> Dict[str, float]:
    """Raises TypeError or ValueError for what is no reward."""
    components = reward if isinstance(reward, dict) else {"reward": reward}
    if len(components) > REWARDS_MAX:
        raise ValueError(f"a reward has at most {REWARDS_MAX} components, not {len(components)}")
    encoded = {}
    for name, value in components.items():
        if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise TypeError(f"a reward component's name is a text of 1 to {NAME_BYTES_MAX} bytes, not {name!r:.200}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"reward {name!r} is a number, not {value!r:.80}") from None
        if not math.isfinite(number):
            raise ValueError(f"reward {name!r} is a finite number, not {number}")
        encoded[name] = number
    return encoded


def encode_step(step: Step, grading_us: int) -> Dict[str, Any]:
    """Raises TypeError or ValueError for what is no step."""
    if not isinstance(step, Step):
        raise TypeError(f"step() returns a Step, not {type(step).__name__}")
    if not isinstance(step.tool, str) or len(step.tool.encode()) > NAME_BYTES_MAX:
        raise TypeError(f"Step.tool is a text of at most {NAME_BYTES_MAX} bytes, not {step.tool!r:.200}")
    return {
        "messages": encode_observation(step.observation),
        "rewards": encode_reward(step.reward),
        "done": bool(step.done),
        "tool": step.tool,
        "reward_us": max(0, int(step.reward_us or grading_us)),
    }


def _text(text: str) -> str:
    """Lone surrogates (bytes that were no text) cannot travel: they become "?"."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
