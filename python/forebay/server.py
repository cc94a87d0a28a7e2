"""serve(): runs episodes for the Forebay process at the other end of stdin and stdout."""

from __future__ import annotations

import inspect
import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Optional, Union

from . import _guard, _protocol
from .environment import AsyncEnvironment, Environment, GraderError, begin_call

_END_S_MAX = 5.0  # for episodes to close after the end of stdin

Request = Dict[str, Any]
MakeEnv = Union[Callable[[], Environment], Callable[[], AsyncEnvironment]]


def serve(make_env: MakeEnv, name: str = "", asynchronous: Optional[bool] = None) -> None:
    """Serves episodes until stdin ends, then ends the process.

    make_env: makes the environment of one episode (a class will do). Each episode has a thread of its own, in which
        make_env and all its methods are called; an AsyncEnvironment is a coroutine on one event loop for all.
    name: for messages; the file's name by default.
    asynchronous: whether make_env makes AsyncEnvironments; None: if it is such a class.
    """
    source, sink = _protocol.capture_stdio()
    _guard.start()
    channel = _protocol.Channel(sink)
    if asynchronous is None:
        asynchronous = isinstance(make_env, type) and issubclass(make_env, AsyncEnvironment)
    if asynchronous:
        from .async_episode import AsyncEpisodes

        start = AsyncEpisodes(make_env, channel).start  # type: ignore[arg-type]
    else:

        def start(number: int, forget: Callable[[int], None]) -> Any:
            return _ThreadEpisode(number, make_env, channel, forget)  # type: ignore[arg-type]

    server = _Server(start, channel, name or os.path.basename(sys.argv[0] or "python"))
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
    """Reads requests and passes each to its episode, which answers them in order."""

    def __init__(self, start: Callable[[int, Callable[[int], None]], Any], channel: _protocol.Channel, name: str) -> None:
        self._start = start  # (number, forget) -> an episode with put(request) and ended (an Event)
        self._channel = channel
        self._name = name
        self._episodes_max = 0  # set by the hello
        self._episodes: Dict[int, Any] = {}
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
                try:
                    episode = self._episodes[number] = self._start(number, self._forget)
                except RuntimeError as error:  # no more threads: this episode's loss, not everyone's
                    self._channel.send(_protocol.error_reply(request.get("id", 0), "environment", f"{error}: with "
                                       f"{len(self._episodes)} episodes in this process; lower env.episodes_per_process"))
                    return
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
            episodes = list(self._episodes.items())
        for number, episode in episodes:
            episode.put({"op": "close", "episode": number})
        for _, episode in episodes:
            episode.ended.wait(max(0.0, deadline - time.monotonic()))

    def _parse(self, line: bytes) -> Request:
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            raise _ProtocolError(
                f"stdin must hold requests of a Forebay process, one JSON object a line, not {line[:200]!r}; to try an "
                "environment, run: python -m forebay.check THIS_FILE")
        return request

    def _hello(self, request: Request) -> None:
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


def seconds_of(request: Request) -> float:
    seconds = request.get("deadline_s")
    return float(seconds) if isinstance(seconds, (int, float)) else math.inf


def failed(episode: int, request: Request, kind: str) -> Dict[str, Any]:
    """The answer for the exception that is being handled; its text goes to the log, too."""
    text = traceback.format_exc()
    print(f"forebay: episode {episode}: the {kind} failed\n{text}", file=sys.stderr, end="", flush=True)
    return _protocol.error_reply(request.get("id", 0), kind, text)


class _ThreadEpisode:
    def __init__(self, number: int, make_env: Callable[[], Environment], channel: _protocol.Channel,
                 forget: Callable[[int], None]) -> None:
        self.ended = threading.Event()
        self._number = number
        self._make_env = make_env
        self._channel = channel
        self._forget = forget
        self._requests: "queue.SimpleQueue[Request]" = queue.SimpleQueue()
        self._cancelled = False  # its answers are not wanted any more
        self._env: Optional[Environment] = None
        threading.Thread(target=self._run, name=f"episode-{number}", daemon=True).start()

    def put(self, request: Request) -> None:
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
        except BaseException:  # its result is known already; the reason goes to the log
            traceback.print_exc()
        self._env = None
        self._forget(self._number)
        self._channel.send({"closed": self._number})
        self.ended.set()

    def _answer(self, request: Request) -> Dict[str, Any]:
        call = begin_call(seconds_of(request))
        try:
            if request["op"] == "reset":
                self._env = self._make_env()
                first = self._env.reset(request["task"], request["split"], request["seed"])
                self._refuse_coroutine(first)
                return {"id": request.get("id", 0), "messages": _protocol.encode_observation(first)}
            if self._env is None:
                raise RuntimeError("a step after a reset that failed")
            step = self._env.step(request["action"])
            self._refuse_coroutine(step)
            return {"id": request.get("id", 0), **_protocol.encode_step(step, int(call.grading_s * 1e6))}
        except GraderError:
            return failed(self._number, request, "grader")
        except BaseException:  # SystemExit in user code too: it ends its episode, not everyone's
            return failed(self._number, request, "environment")

    def _refuse_coroutine(self, result: Any) -> None:
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("reset and step are coroutines: derive the class from AsyncEnvironment, and, if a function "
                            "makes its objects, call serve(function, asynchronous=True)")
