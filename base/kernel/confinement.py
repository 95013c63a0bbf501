"""A process that gives up its rights for good, before it reads what a stranger has written.

It keeps its open files and its memory.  Without capabilities alone, root's files and the sockets of runtimes would be
open to it.  So a filter of system calls refuses to open, connect, signal and start anything (man 2 seccomp).  Rejected:
another user, because the daemon's unit would need CAP_SETUID; and Landlock, which does not stop a connection to a
socket with a path.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import Final

from base.kernel.syscalls import checked, libc

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_CAPABILITY_VERSION: Final = 0x20080522
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_LOAD_WORD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_INSTRUCTION: Final = struct.Struct("=HBBI")  # struct sock_filter
_PROGRAM: Final = struct.Struct("@HP")  # struct sock_fprog
# Reading and writing open files, waiting, memory, and the end.  The numbers are those of x86_64, and those of newer
# architectures, where -1 stands for none (asm-generic/unistd.h).
_CALLS: Final = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "poll": (7, -1),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "exit": (60, 93),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "ppoll": (271, 73),
}
_ARCHITECTURES: Final = {  # AUDIT_ARCH_* (linux/audit.h)
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
    "riscv64": (0xC00000F3, 1),
}


def confine() -> None:
    """Give up all capabilities, and all system calls but those of the list, which then fail with EPERM.

    Raises OSError: ENOSYS on an architecture whose numbers are not known here, or on a kernel without filters.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known")
    audit, column = _ARCHITECTURES[machine]
    numbers = [numbers[column] for numbers in _CALLS.values() if numbers[column] >= 0]
    whom = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0))
    checked(libc.capset(whom, ctypes.create_string_buffer(24)), "giving up capabilities: ")
    _prctl(_SET_NO_NEW_PRIVS, 1, 0)
    program = ctypes.create_string_buffer(_filter(audit, numbers))
    count = (len(program) - 1) // _INSTRUCTION.size
    head = ctypes.create_string_buffer(_PROGRAM.pack(count, ctypes.addressof(program)))
    _prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(head))


def _prctl(what: int, first: int, second: int) -> None:
    words = (ctypes.c_ulong(one) for one in (first, second, 0, 0))
    checked(libc.prctl(ctypes.c_int(what), *words), "giving up system calls: ")


def _filter(audit: int, numbers: Sequence[int]) -> bytes:
    """Allow these system calls of this architecture.  A jump counts the instructions that it skips."""
    steps = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 0, len(numbers) + 1, audit),  # another one has other numbers for the same calls
        (_LOAD_WORD, 0, 0, _NUMBER),
        *((_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(_INSTRUCTION.pack(*step) for step in steps)
