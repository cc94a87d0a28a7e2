"""Browsers with a page of MiniWoB each, lent to one episode at a time: to start one takes seconds, to reload a page does not."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import traceback
from typing import Any, Dict, List

import gymnasium
import miniwob
from miniwob.reward import get_raw_reward

gymnasium.register_envs(miniwob)

# The pages end by themselves after ten seconds or so, which a model that decodes beside others does not keep.
_PAGE_MS_MAX = 24 * 3600 * 1000


def find_chromium() -> None:
    """Tells miniwob where the browser is; raises FileNotFoundError, saying what to do."""
    for variable, program in (("MINIWOB_CHROME_BINARY", "chromium"), ("MINIWOB_CHROMEDRIVER", "chromedriver")):
        path = os.environ.get(variable) or shutil.which(program)
        if not path or not os.access(path, os.X_OK):
            raise FileNotFoundError(f"{program} is not there: run examples/setup.sh miniwob, or name it in {variable}")
        os.environ[variable] = path


class Browsers:
    """At most `count` browsers at once. Thread-safe."""

    def __init__(self, pages: List[str], count: int) -> None:
        self._pages = pages
        self._places = threading.BoundedSemaphore(count)
        self._idle: Dict[str, "queue.SimpleQueue[Any]"] = {page: queue.SimpleQueue() for page in pages}

    def take(self, page: str, seconds: float) -> Any:
        """An environment of miniwob, which the caller gives back. Raises TimeoutError."""
        if not self._places.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise TimeoutError("no browser became free in time: more --browsers, or fewer rollout.actors")
        try:
            try:
                return self._idle[page].get_nowait()
            except queue.Empty:
                self._close_one_idle()
                env = gymnasium.make(f"miniwob/{page}-v1", reward_processor=get_raw_reward)
                env.unwrapped.instance.driver.execute_script(f"core.EPISODE_MAX_TIME = {_PAGE_MS_MAX};")
                return env
        except BaseException:
            self._places.release()
            raise

    def give_back(self, page: str, env: Any, good: bool) -> None:
        """good: it works; else it is closed."""
        try:
            if good and not env.unwrapped.instance.died:
                self._idle[page].put(env)
            else:
                _close(env)
        finally:
            self._places.release()

    def _close_one_idle(self) -> None:
        """Makes room for a browser with another page: `count` bounds those that run, not only those that are lent."""
        for idle in self._idle.values():
            try:
                _close(idle.get_nowait())
                return
            except queue.Empty:
                continue


def _close(env: Any) -> None:
    try:
        env.close()
    except Exception:  # it is gone anyway; Forebay kills what is left with the process's group
        traceback.print_exc()
