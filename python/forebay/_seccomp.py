"""The seccomp filter of sandboxes: which system calls fail in them, whatever the limits say.

Refused are sockets but those of Unix, IP and netlink (a namespace of networks does not hold others, a virtual machine's
host for one); io_uring, which makes sockets without asking; and memory that no limit of a process counts (memfd, System
V). Also the calls of other architectures, by whose numbers the same could be had. The program is that of forebay/env/subprocess/confine.cc; a test there compares them.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from typing import Dict, List, Tuple

# Of a machine: its AUDIT_ARCH, where other numbers for the same calls begin (x32), and the numbers of the calls.
_MACHINES = {
    "x86_64": (0xC000003E, 0x40000000, {
        "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "semget": 64, "msgget": 68, "io_uring_setup": 425,
        "socket": 41, "socketpair": 53}),
    "aarch64": (0xC00000B7, 0xFFFFFFFF, {
        "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "semget": 190, "msgget": 186, "io_uring_setup": 425,
        "socket": 198, "socketpair": 199}),
}

# struct seccomp_data: the call's number, the architecture, and the arguments, whose low words come first.
_NR, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # opcodes of classic BPF
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_AF_NETLINK = 16


def calls(machine: str = "") -> Dict[str, int]:
    """The numbers of the calls that are refused, some of them for some arguments; LookupError as below."""
    return _MACHINES[machine or platform.machine()][2]


def program(machine: str = "") -> bytes:
    """As bwrap --seccomp and seccomp(2) take it; LookupError: not for this machine ("": the one we run on)."""
    arch, other_calls, call = _MACHINES[machine or platform.machine()]
    code: List[Tuple[int, int, int, int]] = []

    def load(offset: int) -> None:
        code.append((_LOAD, 0, 0, offset))

    def when(test: int, value: int, then: int, otherwise: int) -> None:  # jumps count the instructions that they pass
        code.append((test, then, otherwise, value))

    load(_ARCH)
    when(_EQUAL, arch, 0, 17)
    load(_NR)
    when(_AT_LEAST, other_calls, 15, 0)
    for passed, refused in enumerate(("memfd_create", "memfd_secret", "shmget", "semget", "msgget", "io_uring_setup")):
        when(_EQUAL, call[refused], 14 - passed, 0)
    when(_EQUAL, call["socket"], 1, 0)
    when(_EQUAL, call["socketpair"], 0, 6)
    load(_FIRST_ARGUMENT)
    when(_EQUAL, int(socket.AF_UNIX), 4, 0)
    when(_EQUAL, int(socket.AF_INET), 3, 0)
    when(_EQUAL, int(socket.AF_INET6), 2, 0)
    when(_EQUAL, _AF_NETLINK, 1, 0)
    code.append((_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT))
    code.append((_RETURN, 0, 0, _ALLOW))
    code.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
