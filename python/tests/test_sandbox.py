"""Goal: code that nobody trusts stays in its sandbox, whatever it does."""

import contextlib
import errno
import os
import struct
import subprocess
import sys
import threading
import unittest
from unittest import mock

from forebay import _seccomp
from forebay.sandbox import Limits, Outcome, Sandbox, SandboxError

try:
    Sandbox().check()
    MISSING = ""
except SandboxError as error:
    MISSING = str(error)


@unittest.skipIf(MISSING, MISSING)
class HostileCodeTest(unittest.TestCase):
    """One kind of attack each. The limits are small so that the tests are quick; none depends on how quick."""

    def run_code(self, code: str, **limits: float) -> Outcome:
        return Sandbox(Limits(**{"wall_s": 300, **limits})).run(code, "f", [[1]])[0]

    def run_code_until(self, wall_s: float, code: str, **limits: float) -> Outcome:
        """With twice the time until the sandbox has started in it: a busy machine may need more."""
        while True:
            try:
                return self.run_code(code, wall_s=wall_s, **limits)
            except SandboxError:
                if wall_s > 100:
                    raise
                wall_s *= 2

    def test_a_fork_bomb_stays_small_and_ends(self) -> None:
        outcome = self.run_code("""
import os, time
def f(x):
    forks = 0
    try:
        while True:
            if os.fork() == 0: time.sleep(1000)
            forks += 1
    except OSError:
        return forks
""", processes=4)
        self.assertLess(outcome.value, 4, outcome)

    def test_forks_that_fork_end_with_the_wall_clock(self) -> None:
        before = self.nobodys_processes()
        outcome = self.run_code_until(1.0, """
import contextlib
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass
""", cpu_s=1000)
        self.assertIn("no result", outcome.error)
        for _ in range(6000):  # a busy machine takes its time to kill thousands
            if self.nobodys_processes() <= before:
                return
            threading.Event().wait(0.01)
        self.fail("processes are left")

    def nobodys_processes(self) -> int:
        count = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                count += b"RLIMIT_NPROC" in file.read()
        return count

    def test_an_endless_loop_meets_the_processor_limit(self) -> None:
        outcome = self.run_code("def f(x):\n    while True: pass", cpu_s=1, wall_s=300)
        self.assertIn("1 s of processor time", outcome.error)

    def test_an_endless_sleep_meets_the_wall_clock(self) -> None:
        self.assertIn("no result within", self.run_code_until(1.0, "import time\ndef f(x): time.sleep(1000)").error)

    def test_memory_is_limited(self) -> None:
        self.assertIn("MemoryError", self.run_code("def f(x): return len(bytearray(1 << 30))").error)

    def test_limits_cannot_be_raised(self) -> None:
        outcome = self.run_code("""
import resource
def f(x): resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
""")
        self.assertRegex(outcome.error, "not allowed|Operation not permitted|ValueError")

    def test_there_is_no_network(self) -> None:
        outcome = self.run_code("""
import socket
def f(x): return [name for _, name in socket.if_nameindex()]
""")
        self.assertEqual(outcome.value, ["lo"])
        self.assertIn("Error", self.run_code("""
import socket
def f(x): socket.create_connection(("192.0.2.1", 80), 5)
""").error)

    def test_the_hosts_files_processes_and_variables_are_not_there(self) -> None:
        secret = os.path.abspath(__file__)
        with mock.patch.dict(os.environ, {"A_SECRET": "x"}):
            outcome = self.run_code(f"""
import contextlib
import os
def f(x):
    return [os.path.exists({secret!r}), os.path.exists("/etc/passwd"), os.path.exists("/root"), "A_SECRET" in os.environ,
            len([p for p in os.listdir("/proc") if p.isdigit()]) > 3, os.getppid() > 3]
""")
        self.assertEqual(outcome.value, [False] * 6)

    def test_no_process_of_the_sandbox_has_our_variables(self) -> None:
        os.environ["FOREBAY_SECRET_OF_A_TEST"] = "hush"
        self.addCleanup(os.environ.pop, "FOREBAY_SECRET_OF_A_TEST")
        read = """
def f(x):
    import glob
    def read(path):
        try:
            return open(path, "rb").read()
        except OSError:
            return b""
    return [path for path in glob.glob("/proc/[0-9]*/environ") if b"FOREBAY_SECRET" in read(path)]
"""
        self.assertEqual(self.run_code(read), Outcome([]))

    def test_nothing_can_be_written_but_a_small_tmp(self) -> None:
        outcome = self.run_code("""
def f(x):
    written = []
    for path in ("/x", "/dev/x", "/dev/shm/x", "/usr/x", "/tmp/x"):
        try:
            open(path, "w").write("x")
            written.append(path)
        except OSError:
            pass
    megabytes = 0
    try:
        for i in range(1000):
            open(f"/tmp/{i}", "wb").write(b"x" * (1 << 20))
            megabytes += 1
    except OSError:
        return [written, megabytes <= 16]
""")
        self.assertEqual(outcome.value, [["/tmp/x"], True])

    def test_calls_that_leave_it_or_that_no_limit_counts_fail(self) -> None:
        call = _seccomp.calls()
        outcome = self.run_code(f"""
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *arguments):
    try:
        call(*arguments)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def system(number, *arguments):
    if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), "")
def f(x):
    private, create = 0, 0o1600
    return [tried(socket.socket, socket.AF_VSOCK), tried(socket.socket, socket.AF_PACKET), tried(socket.socketpair),
            tried(socket.socket, socket.AF_INET), tried(os.memfd_create, "m"),
            tried(system, {call["shmget"]}, private, 4096, create), tried(system, {call["semget"]}, private, 4, create),
            tried(system, {call["msgget"]}, private, create), tried(system, {call["io_uring_setup"]}, 8, 0)]
""")
        self.assertEqual(outcome.value, ["EAFNOSUPPORT", "EAFNOSUPPORT", "done", "done"] + ["ENOSYS"] * 5, outcome.error)

    def test_there_are_no_namespaces_inside_where_memory_could_be_mounted(self) -> None:
        outcome = self.run_code("""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def f(x): return [libc.unshare(0x10000000), libc.unshare(0x10020000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)]
""")
        self.assertEqual(outcome.value, [-1, -1, -1], outcome.error)

    def test_ordinary_programs_work(self) -> None:
        limits = {"memory_bytes": 1 << 30, "processes": 16, "cpu_s": 60, "wall_s": 300, "file_bytes": 4 << 20}
        outcome = self.run_code("""
import asyncio, os, shutil, sqlite3, subprocess, sys, tempfile, threading, unittest
class Tests(unittest.TestCase):
    def test_threads(self):
        seen = []
        thread = threading.Thread(target=seen.append, args=(1,))
        thread.start()
        thread.join()
        self.assertEqual(seen, [1])
    def test_children(self):
        self.assertEqual(subprocess.check_output([sys.executable, "-c", "print(6 * 7)"]), b"42\\n")
        self.assertEqual(subprocess.check_output("echo a | tr a b", shell=True), b"b\\n")
    def test_an_event_loop_and_a_server(self):
        async def talk():
            async def echo(reader, writer):
                writer.write(await reader.readline())
                writer.close()
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\\n")
            return await reader.readline()
        self.assertEqual(asyncio.run(talk()), b"hello\\n")
    def test_files(self):
        with tempfile.TemporaryFile() as file: file.write(b"x")
        self.assertEqual(sqlite3.connect(":memory:").execute("select 40 + 2").fetchone(), (42,))
    def test_a_compiler(self):
        if not shutil.which("gcc"): return
        open("/tmp/a.c", "w").write("int main(void) { return 7; }")
        subprocess.run(["gcc", "-O1", "-o", "/tmp/a", "/tmp/a.c"], check=True)
        self.assertEqual(subprocess.run(["/tmp/a"]).returncode, 7)
def f(x):
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    return [result.testsRun, [error[-1000:] for _, error in result.errors + result.failures]]
""".replace("\\\\n", "\\n"), **limits)
        self.assertEqual(outcome.value, [5, []], outcome.error)

    def test_huge_output_is_cut(self) -> None:
        for fd in (1, 2):
            self.assertEqual(self.run_code(f"import os\ndef f(x):\n    os.write({fd}, b'x' * 1000000)\n    return 1"), Outcome(1))
        outcome = self.run_code("import os\ndef f(x):\n    while True: os.write(3, b'x' * 1000)")
        self.assertTrue(outcome.error)
        self.assertEqual(self.run_code("def f(x): return 'x' * 1000000").error, "too much output")

    def test_forged_replies_are_only_values(self) -> None:
        # It can say what it likes on our stream, but the right results are not inside.
        outcome = self.run_code("""
import contextlib
import os
for fd in range(3, 10):
    try: os.write(fd, b'{"call": 0, "value": 41}\\n{"call": 99}\\n[]\\nnot json\\n')
    except OSError: pass
os._exit(0)
""")
        self.assertEqual(outcome, Outcome(41))

    def test_what_ends_early_or_is_no_value_is_an_error(self) -> None:
        for code, text in (("import os\ndef f(x): os._exit(0)", "without a result"), ("def f(x): raise SystemExit(0)", "SystemExit"),
                           ("def f(x): return f", "TypeError"), ("def g(x): return 1", "no function f"), ("f = 3", "TypeError"),
                           ("def f(x: return", "SyntaxError"), ("import os, signal\ndef f(x): os.kill(0, 9)", "without"),
                           ("#" * 20000, "longer than"), ("def f(x):\n    l=[]\n    l.append(l)\n    return l", "ValueError")):
            self.assertIn(text, self.run_code(code).error, code)

    def test_results_before_a_crash_count(self) -> None:
        outcomes = Sandbox().run("import os\ndef f(x):\n    if x == 2: os._exit(1)\n    return x", "f", [[1], [2], [3]])
        self.assertEqual([o.value for o in outcomes], [1, None, None])


class FilterTest(unittest.TestCase):
    """The program of the filter, run by hand: also that of a machine that we are not on."""

    def verdict(self, machine: str, arch: int, number: int, argument: int = 0) -> int:
        data = struct.pack("=IIQQ", number, arch, 0, argument)
        code = list(struct.iter_unpack("=HBBI", _seccomp.program(machine)))
        value, at = 0, 0
        while True:
            operation, then, otherwise, constant = code[at]
            at += 1
            if operation == 0x20:
                value = int.from_bytes(data[constant:constant + 4], sys.byteorder)
            elif operation in (0x15, 0x35):
                at += then if (value == constant if operation == 0x15 else value >= constant) else otherwise
            else:
                self.assertEqual(operation, 0x06)
                return constant

    def test_it_refuses_what_it_should_and_nothing_else(self) -> None:
        allow, no_call, no_family = 0x7FFF0000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EAFNOSUPPORT
        refused = ("memfd_create", "memfd_secret", "shmget", "semget", "msgget", "io_uring_setup")
        for machine, arch, other_arch in (("x86_64", 0xC000003E, 0x40000003), ("aarch64", 0xC00000B7, 0x40000028)):
            call = _seccomp.calls(machine)
            sockets = (call["socket"], call["socketpair"])
            for number in set(range(600)) - set(sockets):
                wanted = no_call if number in [call[name] for name in refused] else allow
                self.assertEqual(self.verdict(machine, arch, number), wanted, (machine, number))
            for number in sockets:
                for family in range(64):
                    wanted = allow if family in (1, 2, 10, 16) else no_family  # Unix, IP, IPv6, netlink
                    self.assertEqual(self.verdict(machine, arch, number, family), wanted, (machine, number, family))
            self.assertEqual(self.verdict(machine, other_arch, 0), no_call)
        self.assertEqual(self.verdict("x86_64", 0xC000003E, 0x40000000 + 41), no_call)  # of x32
        with self.assertRaises(LookupError):
            _seccomp.program("vax")


class BrokenSandboxTest(unittest.TestCase):
    def test_a_missing_program_is_said_at_the_start(self) -> None:
        for sandbox, text in ((Sandbox(bwrap="/no/bwrap"), "bubblewrap"), (Sandbox(python="/opt/python"), "--python"),
                              (Sandbox(bwrap="/bin/false"), "user namespaces")):
            with self.assertRaisesRegex(SandboxError, text):
                sandbox.check()


if __name__ == "__main__":
    unittest.main()
