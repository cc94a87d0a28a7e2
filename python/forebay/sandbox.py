"""Runs a Python function that nobody trusts, under bubblewrap.

What it may not do: see the host's files (it has /usr, read-only, and an empty /tmp), the network, other processes, make
the system calls that _seccomp.py names, or use more than its share of processor time, memory, processes and output. The right results are not in the sandbox: it is
given arguments and returns values, which are compared outside.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import threading
from typing import Any, List, Optional

from . import _seccomp
from .environment import GraderError


@dataclasses.dataclass(frozen=True)
class Limits:
    cpu_s: int = 2  # of each process
    wall_s: float = 10.0
    memory_bytes: int = 256 << 20  # of address space, of each process
    processes: int = 4  # threads count too
    file_bytes: int = 1 << 20
    tmp_bytes: int = 16 << 20
    output_bytes: int = 64 << 10
    code_bytes: int = 16 << 10


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one call: a value, or why there is none."""

    value: Any = None
    error: str = ""


class SandboxError(GraderError):
    """The sandbox itself failed; says nothing about the code in it."""


# Trusted, runs inside. Its first line says that the sandbox stands and the limits hold; only then does it read the
# code. Limits are hard: without privileges they cannot be raised again.
_RUNNER = r"""
import json, os, resource, sys
limits = json.loads(sys.argv[1])
for name, value in limits.items():
    resource.setrlimit(getattr(resource, name), (value, value))
out = os.fdopen(os.dup(1), "w")
def say(reply):
    out.write(json.dumps(reply) + "\n")
    out.flush()
null = os.open("/dev/null", os.O_RDWR)
os.dup2(null, 1)
os.dup2(null, 2)
say({"ready": True})
job = json.load(sys.stdin)
os.dup2(null, 0)
def reason(error):
    try:
        return (type(error).__name__ + ": " + str(error))[:200]
    except BaseException:
        return type(error).__name__[:200]
namespace = {"__name__": "solution"}
try:
    exec(compile(job["code"], "solution.py", "exec"), namespace)
    function = namespace[job["function"]]
except BaseException as error:
    missing = isinstance(error, KeyError) and job["function"] not in namespace
    text = "there is no function " + job["function"] if missing else reason(error)
    for i in range(len(job["calls"])):
        say({"call": i, "error": text})
    os._exit(0)
for i, arguments in enumerate(job["calls"]):
    try:
        reply = {"call": i, "value": function(*arguments)}
        json.dumps(reply)
    except BaseException as error:
        reply = {"call": i, "error": reason(error)}
    say(reply)
os._exit(0)
"""

_NOBODY = 65534


class Sandbox:
    """Thread-safe: at most `parallel` run at once, others wait for their turn."""

    def __init__(self, limits: Limits = Limits(), parallel: int = 0, python: str = "/usr/bin/python3",
                 bwrap: str = "bwrap") -> None:
        self._limits = limits
        self._turns = threading.BoundedSemaphore(parallel or os.cpu_count() or 1)
        self._bwrap = shutil.which(bwrap) or bwrap
        self._python = python

    def check(self) -> None:
        """Raises SandboxError, saying what to do, when code cannot be run here."""
        if not os.access(self._bwrap, os.X_OK):
            raise SandboxError(f"'{self._bwrap}' is not there: this environment runs code under bubblewrap. Install the "
                               "package `bubblewrap`.")
        if not os.path.realpath(self._python).startswith("/usr/") or not os.access(self._python, os.X_OK):
            raise SandboxError(f"'{self._python}' is no program under /usr, the only folder that the sandbox sees. Install "
                               "Python there (on Debian: the package `python3`) or name it with --python.")
        try:
            outcomes = self.run("def f(x): return x + 1", "f", [[1]])
        except SandboxError as error:
            raise SandboxError(f"bubblewrap cannot make a sandbox here: {error}. It needs bubblewrap 0.8 or newer, and "
                               "user namespaces: see the settings kernel.unprivileged_userns_clone, user.max_user_namespaces and "
                               "kernel.apparmor_restrict_unprivileged_userns, or the privileges of this container.") from None
        if outcomes != [Outcome(2)]:
            raise SandboxError(f"the sandbox does not run code as it should: f(1) of `return x + 1` gave {outcomes}")

    def run(self, code: str, function: str, calls: List[List[Any]]) -> List[Outcome]:
        """Defines what the code defines and calls its function with each list of arguments; one outcome for each.

        Whatever the code does is an outcome; a SandboxError is raised when it could not be run."""
        if len(code.encode("utf-8", "replace")) > self._limits.code_bytes:
            return [Outcome(error=f"the code is longer than {self._limits.code_bytes} bytes")] * len(calls)
        job = json.dumps({"code": code, "function": function, "calls": calls}).encode()
        with self._turns:
            output, late = self._execute(job)
        return self._read(output, late, len(calls))

    def _execute(self, job: bytes) -> "tuple[bytes, bool]":
        # The superuser is exempt from the limit of processes.
        drop = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        seccomp, write_end = os.pipe()
        try:
            with open(write_end, "wb") as file:
                file.write(_seccomp.program())  # fits the pipe
            # bwrap's own variables can be read inside (/proc/1/environ), whatever --clearenv does: it gets none.
            process = subprocess.Popen(self._command(seccomp), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, cwd="/", env={}, pass_fds=[seccomp], **drop)
        except OSError as error:
            raise SandboxError(f"{self._bwrap}: {error}") from None
        except LookupError as machine:
            raise SandboxError(f"there is no filter of system calls for a machine of the kind {machine}") from None
        finally:
            os.close(seccomp)
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()  # its process namespace dies with it

        timer = threading.Timer(self._limits.wall_s, stop)
        timer.daemon = True
        timer.start()
        try:
            try:
                process.stdin.write(job)  # fits the pipe: see code_bytes
                process.stdin.close()
            except BrokenPipeError:
                pass
            output = process.stdout.read(self._limits.output_bytes)
            process.kill()  # it has ended, or has written too much
            errors = process.stderr.read(4096).decode("utf-8", "replace").strip()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        if not output.startswith(b'{"ready": true}\n'):
            raise SandboxError(errors or f"the sandbox did not start within {self._limits.wall_s} s")
        return output, late.is_set()

    def _read(self, output: bytes, late: bool, calls: int) -> List[Outcome]:
        outcomes: List[Optional[Outcome]] = [None] * calls
        for line in output.split(b"\n")[1:-1]:  # the last has no end
            try:
                reply = json.loads(line)
                call = reply["call"]
                if outcomes[call] is None:
                    outcomes[call] = Outcome(reply.get("value"), str(reply.get("error", ""))[:200])
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                break  # the code writes to our stream: what it says after that is its loss
        if len(output) >= self._limits.output_bytes:
            missing = "too much output"
        elif late:
            missing = f"no result within {self._limits.wall_s:g} s"
        else:
            missing = f"it ended without a result (limits: {self._limits.cpu_s} s of processor time, " \
                      f"{self._limits.memory_bytes >> 20} MiB of memory)"
        return [outcome or Outcome(error=missing) for outcome in outcomes]

    def _command(self, seccomp: int) -> List[str]:
        limits = self._limits
        rlimits = {"RLIMIT_CORE": 0, "RLIMIT_CPU": limits.cpu_s, "RLIMIT_AS": limits.memory_bytes,
                   "RLIMIT_FSIZE": limits.file_bytes, "RLIMIT_NPROC": limits.processes, "RLIMIT_NOFILE": 64}
        # No user namespaces inside: in one of its own, code could mount a file system that no limit counts.
        command = [self._bwrap, "--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session",
                   "--clearenv", "--cap-drop", "ALL", "--seccomp", str(seccomp), "--hostname", "sandbox",
                   "--ro-bind", "/usr", "/usr"]
        for folder in ("/bin", "/lib", "/lib32", "/lib64"):
            if os.path.islink(folder):
                command += ["--symlink", os.readlink(folder), folder]
            elif os.path.isdir(folder):
                command += ["--ro-bind", folder, folder]
        for name, value in (("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("TMPDIR", "/tmp")):
            command += ["--setenv", name, value]
        for path in ("/etc/alternatives", "/etc/ld.so.cache"):  # without them many a program of /usr is not found
            command += ["--ro-bind-try", path, path]
        # Every file system but the small /tmp is read-only, also the ones that bwrap keeps in memory.
        command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--size", str(limits.tmp_bytes),
                    "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]
        return command + [self._python, "-I", "-S", "-c", _RUNNER, json.dumps(rlimits)]
