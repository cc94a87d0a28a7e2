"""serve(): runs episodes for the Forebay process at the other end of stdin and stdout."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Optional

from . import _protocol
from .environment import Environment, GraderError, take_grading_us

_END_S_MAX = 5.0  # for episodes to close after the end of stdin


def serve(make_env: Callable[[], Environment], name: str = "") -> None:
    """Serves episodes until stdin ends, then ends the process.

    make_env: makes the environment of one episode (a class will do); called in the episode's thread.
    name: for messages; the file's name by default.
    """
    source, sink = _protocol.capture_stdio()
    server = _Server(make_env, _protocol.Channel(sink), name or os.path.basename(sys.argv[0] or "python"))
    try:
        for line in source:
            server.handle(line)
    except _ProtocolError as error:
        print(f"forebay: {error}", file=sys.stderr)
        _exit(2)
    except KeyboardInterrupt:
        pass
    server.end()
    _exit(0)


def _exit(code: int) -> None:
    # Threads of episodes that hang must not keep the process alive.
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


class _ProtocolError(Exception):
    pass


class _Server:
    """Reads requests; each episode has a thread that answers its own in order."""

    def __init__(self, make_env: Callable[[], Environment], channel: _protocol.Channel, name: str) -> None:
        self._make_env = make_env
        self._channel = channel
        self._name = name
        self._episodes_max = 0  # set by the hello
        self._episodes: Dict[int, _Episode] = {}
        self._lock = threading.Lock()

    def handle(self, line: bytes) -> None:
        request = self._parse(line)
        if self._episodes_max == 0:
            self._hello(request)
            return
        op, number = request.get("op"), request.get("episode")
        if op not in ("reset", "step", "close") or not isinstance(number, int):
            raise _ProtocolError(f"a request with op reset, step or close was expected, not {line[:200]!r}")
        with self._lock:
            episode = self._episodes.get(number)
            if episode is None and op == "reset":
                if len(self._episodes) >= self._episodes_max:
                    raise _ProtocolError(f"more than {self._episodes_max} episodes at once, the number in the hello")
                episode = _Episode(number, self._make_env, self._channel, self._forget)
                self._episodes[number] = episode
        if episode is not None:
            episode.put(request)
        elif op == "close":
            self._channel.send({"closed": number})
        else:
            raise _ProtocolError(f"a step of episode {number}, which was not reset")

    def end(self) -> None:
        """Closes every episode; those that hang are left behind."""
        deadline = time.monotonic() + _END_S_MAX
        with self._lock:
            episodes = list(self._episodes.values())
        for episode in episodes:
            episode.put({"op": "close", "episode": episode.number})
        for episode in episodes:
            episode.thread.join(max(0.0, deadline - time.monotonic()))

    def _parse(self, line: bytes) -> Dict[str, Any]:
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            raise _ProtocolError(
                f"stdin must hold requests of a Forebay process, one JSON object a line, not {line[:200]!r}; "
                "to try an environment by hand, make its object and call reset and step")
        return request

    def _hello(self, request: Dict[str, Any]) -> None:
        version = request.get("forebay_env")
        if version != _protocol.VERSION:
            raise _ProtocolError(f"version {_protocol.VERSION} of the protocol was expected, not {version!r}: use the "
                                 "forebay package of the same release")
        self._episodes_max = max(1, int(request.get("episodes", 1)))
        self._channel.line_bytes_max = int(request.get("line_bytes_max", self._channel.line_bytes_max))
        self._channel.send({"forebay_env": _protocol.VERSION, "name": self._name[:100]})

    def _forget(self, number: int) -> None:
        with self._lock:
            self._episodes.pop(number, None)


class _Episode:
    def __init__(self, number: int, make_env: Callable[[], Environment], channel: _protocol.Channel,
                 forget: Callable[[int], None]) -> None:
        self.number = number
        self._make_env = make_env
        self._channel = channel
        self._forget = forget
        self._requests: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        self._cancelled = False  # its answers are not wanted any more
        self._env: Optional[Environment] = None
        self.thread = threading.Thread(target=self._run, name=f"episode-{number}", daemon=True)
        self.thread.start()

    def put(self, request: Dict[str, Any]) -> None:
        self._cancelled = self._cancelled or request.get("op") == "close"
        self._requests.put(request)

    def _run(self) -> None:
        while True:
            request = self._requests.get()
            if request.get("op") == "close":
                break
            reply = self._answer(request)
            if not self._cancelled:
                self._channel.send(reply)
        try:
            if self._env is not None:
                self._env.close()
        except Exception:  # its result is known already; the reason goes to the log
            traceback.print_exc()
        self._env = None
        self._forget(self.number)
        self._channel.send({"closed": self.number})

    def _answer(self, request: Dict[str, Any]) -> Dict[str, Any]:
        number = request.get("id", 0)
        take_grading_us()
        try:
            if request["op"] == "reset":
                self._env = self._make_env()
                first = self._env.reset(request["task"], request["split"], request["seed"])
                return {"id": number, "messages": _protocol.encode_observation(first)}
            if self._env is None:
                raise RuntimeError("a step after a reset that failed")
            step = self._env.step(request["action"])
            return {"id": number, **_protocol.encode_step(step, take_grading_us())}
        except GraderError:
            return self._failed(number, "grader")
        except BaseException:  # SystemExit in user code too: it ends its episode, not everyone's
            return self._failed(number, "environment")

    def _failed(self, number: int, kind: str) -> Dict[str, Any]:
        text = traceback.format_exc()
        print(f"forebay: episode {self.number}: the {kind} failed\n{text}", file=sys.stderr, end="", flush=True)
        return _protocol.error_reply(number, kind, text)
