"""Episodes as coroutines on one event loop, in a thread beside the one that reads stdin."""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any, Callable, Dict, Optional

from . import _protocol
from .environment import AsyncEnvironment, GraderError, begin_call
from .server import Request, failed, seconds_of


class AsyncEpisodes:
    """Starts episodes; the loop's thread ends with the process."""

    def __init__(self, make_env: Callable[[], AsyncEnvironment], channel: _protocol.Channel) -> None:
        self._make_env = make_env
        self._channel = channel
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="episodes", daemon=True).start()

    def start(self, number: int, forget: Callable[[int], None]) -> "_AsyncEpisode":
        return _AsyncEpisode(number, self._make_env, self._channel, forget, self._loop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class _AsyncEpisode:
    def __init__(self, number: int, make_env: Callable[[], AsyncEnvironment], channel: _protocol.Channel,
                 forget: Callable[[int], None], loop: asyncio.AbstractEventLoop) -> None:
        self.ended = threading.Event()
        self._number = number
        self._make_env = make_env
        self._channel = channel
        self._forget = forget
        self._loop = loop
        self._requests: "asyncio.Queue[Request]"  # made on the loop: it belongs to the loop of its thread
        self._answering: "Optional[asyncio.Task[Dict[str, Any]]]" = None
        self._cancelled = False  # its answers are not wanted any more
        self._env: Optional[AsyncEnvironment] = None
        loop.call_soon_threadsafe(self._begin)

    def put(self, request: Request) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._put, request)

    def _begin(self) -> None:
        self._requests = asyncio.Queue()
        self._task = self._loop.create_task(self._run())  # kept: the loop holds only a weak reference

    def _put(self, request: Request) -> None:
        if request.get("op") == "close":
            self._cancelled = True
            if self._answering is not None:
                self._answering.cancel()
        self._requests.put_nowait(request)

    async def _run(self) -> None:
        while True:
            request = await self._requests.get()
            if request.get("op") == "close":
                break
            if self._cancelled:
                continue
            # A task of its own, to be cancelled alone, with a context of its own, for seconds_left() and grading().
            self._answering = self._loop.create_task(self._answer(request))
            try:
                reply: Optional[Dict[str, Any]] = await self._answering
            except asyncio.CancelledError:
                reply = None
            self._answering = None
            if reply is not None and not self._cancelled:
                self._channel.send(reply)
        try:
            if self._env is not None:
                await self._env.close()
        except BaseException:  # its result is known already; the reason goes to the log
            traceback.print_exc()
        self._env = None
        self._forget(self._number)
        self._channel.send({"closed": self._number})
        self.ended.set()

    async def _answer(self, request: Request) -> Dict[str, Any]:
        call = begin_call(seconds_of(request))
        try:
            if request["op"] == "reset":
                self._env = self._make_env()
                first = await self._env.reset(request["task"], request["split"], request["seed"])
                return {"id": request.get("id", 0), "messages": _protocol.encode_observation(first)}
            if self._env is None:
                raise RuntimeError("a step after a reset that failed")
            step = await self._env.step(request["action"])
            return {"id": request.get("id", 0), **_protocol.encode_step(step, int(call.grading_s * 1e6))}
        except GraderError:
            return failed(self._number, request, "grader")
        except asyncio.CancelledError:
            if self._cancelled:
                raise
            return failed(self._number, request, "environment")  # cancelled from inside: that is its failure
        except BaseException:  # SystemExit in user code too: it ends its episode, not everyone's
            return failed(self._number, request, "environment")
