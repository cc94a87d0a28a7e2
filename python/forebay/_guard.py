"""Ends what an environment has started (browsers, servers) when the environment is killed and cannot do it itself.

Forebay kills an environment with its process group. But if Forebay itself is killed, the kernel ends the environment only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

# Waits for the end of the environment, which holds the other end of its stdin; the pause lets Forebay do it in order.
_SCRIPT = 'read -r _; sleep 2; kill -s KILL -- "-$1"'


def start() -> None:
    """For a process that leads its group; else its group is someone else's. Once."""
    if os.getpgrp() != os.getpid():
        return
    read_end, write_end = os.pipe()
    try:
        subprocess.Popen(["/bin/sh", "-c", _SCRIPT, "sh", str(os.getpid())], stdin=read_end, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        os.close(write_end)
        return
    finally:
        os.close(read_end)

    def close() -> None:
        with contextlib.suppress(OSError):
            os.close(write_end)

    os.register_at_fork(after_in_child=close)  # a child that holds it would look like us
