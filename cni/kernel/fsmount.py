"""A file system that is mounted nowhere (man 2 fsopen, fsconfig, fsmount; Linux 5.2)."""

import ctypes
import os
from typing import Final

# The numbers are the same on all architectures (include/uapi/asm-generic/unistd.h).
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC: Final = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_CREATE: Final = 6  # FSCONFIG_CMD_CREATE
_READ_ONLY: Final = 0xF  # MOUNT_ATTR_RDONLY, NOSUID, NODEV, NOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def sysfs() -> int:
    """A descriptor of /sys as the calling thread's network namespace has it; the caller closes it.

    Raises OSError: EPERM without CAP_SYS_ADMIN.
    """
    context = _call(_FSOPEN, b"sysfs", _CLOEXEC)
    try:
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, _READ_ONLY)
    finally:
        os.close(context)


def _call(number: int, *arguments: bytes | int | None) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _error(ctypes.get_errno())
    return result


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
