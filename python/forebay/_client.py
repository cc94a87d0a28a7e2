"""Forebay's side of the environment protocol, for `python -m forebay.check`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional

from ._protocol import VERSION

_LINE_BYTES_MAX = 4 << 20


class Broken(Exception):
    """The process ended, answered nothing in time or wrote what is not the protocol."""


class EnvironmentProcess:
    """A served environment at the other end of pipes. Thread-safe; every call ends by its deadline."""

    def __init__(self, command: List[str], folder: Optional[str] = None, variables: Optional[Dict[str, str]] = None,
                 episodes: int = 64) -> None:
        self._stderr = tempfile.TemporaryFile()
        environment = {**os.environ, **(variables or {}), "FOREBAY_ENV": "1"}
        try:
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True)
        except OSError as error:
            raise Broken(f"{' '.join(command)} cannot be started: {error}") from None
        self._lock = threading.Condition()
        self._answers: Dict[Any, Dict[str, Any]] = {}  # by id; of closes by ("closed", episode)
        self._unwanted: set = set()  # ids that nobody waits for any more
        self._failure = ""
        self._last = 0
        self._hello = {"forebay_env": VERSION, "episodes": episodes, "line_bytes_max": _LINE_BYTES_MAX}
        self._requests: "queue.SimpleQueue[Optional[bytes]]" = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._write, daemon=True).start()  # it may not read: then only this thread waits

    def start(self, seconds: float) -> Dict[str, Any]:
        self._say(self._hello)
        return self._await("hello", seconds, "say hello")

    def request(self, op: str, episode: int, seconds: float, **more: Any) -> Dict[str, Any]:
        with self._lock:
            self._last += 1
            number = self._last
        self._say({"op": op, "id": number, "episode": episode, "deadline_s": seconds, **more})
        return self._await(number, seconds, f"answer a {op}")

    def close(self, episode: int, seconds: float) -> None:
        self._say({"op": "close", "episode": episode})
        self._await(("closed", episode), seconds, "close an episode")

    def stderr_tail(self, chars_max: int = 2000) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), chars_max, max(0, size - chars_max)).decode("utf-8", "replace").strip()

    def end(self, seconds: float) -> Optional[int]:
        """Ends its stdin and waits; its exit code, None if it had to be killed."""
        self._requests.put(None)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> bool:
        """Kills what is left of its process group, and says whether something was. The last call."""
        left = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            left = False
        self._process.wait()
        self._requests.put(None)
        self._reader.join(1.0)  # a process that left the group may hold the other end of stdout
        if not self._reader.is_alive():
            self._process.stdout.close()  # type: ignore[union-attr]
            self._stderr.close()
        return left

    def _say(self, request: Dict[str, Any]) -> None:
        self._requests.put(json.dumps(request).encode("ascii") + b"\n")

    def _write(self) -> None:
        stdin = self._process.stdin
        try:
            for line in iter(self._requests.get, None):
                stdin.write(line)  # type: ignore[union-attr]
                stdin.flush()  # type: ignore[union-attr]
            stdin.close()  # type: ignore[union-attr]
        except (OSError, ValueError):
            pass  # the reader says why it ended

    def _await(self, key: Any, seconds: float, what: str) -> Dict[str, Any]:
        deadline = time.monotonic() + seconds
        with self._lock:
            while key not in self._answers:
                left = deadline - time.monotonic()
                if self._failure:
                    raise Broken(self._failure)
                if left <= 0:
                    self._unwanted.add(key)
                    raise Broken(f"it did not {what} within {seconds:g} s")
                self._lock.wait(left)
            return self._answers.pop(key)

    def _read(self) -> None:
        for line in self._process.stdout:  # type: ignore[union-attr]
            try:
                answer = json.loads(line)
                key = "hello" if "forebay_env" in answer else ("closed", answer["closed"]) if "closed" in answer else answer["id"]
            except (ValueError, TypeError, KeyError):
                self._fail(f"it wrote a line on its standard output that is not the protocol: {line[:200]!r}. Standard output "
                           "belongs to Forebay: import forebay before anything that prints, and print to stderr")
                return
            with self._lock:
                if key not in self._unwanted:
                    self._answers[key] = answer
                    self._lock.notify_all()
        code = self._process.wait()
        self._fail(f"the process ended with exit code {code}; the last lines of its stderr:\n{self.stderr_tail()}")

    def _fail(self, text: str) -> None:
        with self._lock:
            self._failure = self._failure or text
            self._lock.notify_all()
