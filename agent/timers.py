"""A timer that a thread can wait for beside other descriptors, and that another thread sets (man 2 timerfd_create)."""

import ctypes
import os
import struct
import time
from contextlib import suppress
from typing import Final

# struct itimerspec: four longs, of 64 bits each where we run.  man 2 timerfd_settime; os has it from Python 3.13 on.
_ITIMERSPEC: Final = struct.Struct("=4q")
_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """Its descriptor is readable once the time has passed; it does not repeat."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK))
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")

    def set(self, seconds: float) -> None:
        """Make it readable after so many seconds, and not before."""
        whole, rest = divmod(max(1, int(seconds * 1e9)), 10**9)  # 0 would disarm the timer
        _libc.timerfd_settime(self.fd, 0, _ITIMERSPEC.pack(0, 0, whole, rest), None)

    def has_ended(self) -> bool:
        """Whether the time has passed since it was last set.  After that it is not readable until it is set again."""
        with suppress(BlockingIOError):
            os.read(self.fd, 8)
            return True
        return False

    def close(self) -> None:
        os.close(self.fd)
