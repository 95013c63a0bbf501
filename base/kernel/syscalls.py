"""System calls without a Python function.

- A mount of a file system without a mount point (man 2 fsopen, fsconfig, fsmount; Linux 5.2).
- Whether the kernel's clock is synchronized (man 2 adjtimex).
- The death of this process with its parent (man 2 prctl).
"""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from base.kernel.netns import run_in

# System calls.  Numbers from 424 on are the same on every architecture (include/uapi/asm-generic/unistd.h).
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC: Final = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_CMD_CREATE: Final = 6
_READ_ONLY: Final = 0x1  # MOUNT_ATTR_RDONLY
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_HARMLESS: Final = 0xE  # MOUNT_ATTR_NOSUID, NODEV, NOEXEC
libc = ctypes.CDLL(None, use_errno=True)
_STA_UNSYNC: Final = 0x40


def mount_sysfs(*, writable: bool = False) -> int:
    """A directory's descriptor: /sys of the calling thread's network namespace.  The caller closes it.  Raises OSError:
    EPERM without CAP_SYS_ADMIN."""
    context = _call(_FSOPEN, b"sysfs", _CLOEXEC)
    try:
        _call(_FSCONFIG, context, _CMD_CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, _HARMLESS if writable else _HARMLESS | _READ_ONLY)
    finally:
        os.close(context)


@contextmanager
def mounted_sysfs(ns_fd: int | None, *, writable: bool = False) -> Iterator[int]:
    """``mount_sysfs`` in a namespace, or in ours for None, while the context lasts.  Raises OSError."""
    mount = partial(mount_sysfs, writable=writable)
    root = mount() if ns_fd is None else run_in(ns_fd, mount)
    try:
        yield root
    finally:
        os.close(root)


def _call(number: int, *arguments: bytes | int | None) -> int:
    """A system call without a function in the C library (man 2 syscall).  Raises OSError."""
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *plain), "mounting /sys: ")


def checked(result: int, what: str = "") -> int:
    """The result of a C function.  Raises OSError if it is negative; ``what`` begins the error's text."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}{os.strerror(number)}")
    return result


def die_with_parent(parent: int) -> None:
    """In a child of the process ``parent``: have the kernel kill this one when the thread that forked it ends, also by
    SIGKILL.  End with status 1 if that has happened already."""
    libc.prctl(ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


class _Timex(ctypes.Structure):
    """struct timex up to its status; the rest is not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def is_clock_synchronized() -> bool:
    """Whether a program, such as an NTP client, has synchronized the kernel's clock in the last hours.  False if the
    kernel may not be asked: a unit's SystemCallFilter can forbid it."""
    found = _Timex()
    return libc.adjtimex(ctypes.byref(found)) >= 0 and not found.status & _STA_UNSYNC
