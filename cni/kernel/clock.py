"""Whether something keeps the kernel's clock right (man 2 adjtimex)."""

import ctypes
from typing import Final

_STA_UNSYNC: Final = 0x40
_libc = ctypes.CDLL(None)


class _Timex(ctypes.Structure):
    """struct timex up to its status; the rest is not looked at."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def is_synchronized() -> bool:
    """Whether a program has told the kernel, in the last hours, that the clock is right: an NTP client does so.

    False where the kernel may not be asked: a unit's SystemCallFilter can forbid it.
    """
    found = _Timex()
    return _libc.adjtimex(ctypes.byref(found)) >= 0 and not found.status & _STA_UNSYNC
