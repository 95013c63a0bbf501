"""A clock that goes faster than the machine's, and is the same in all processes of a test.

Its time is eight bytes of a file that all of them have mapped, and one of them sets it on.
"""

import math
import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Seconds of the machine's between two settings, and the most that one of them counts for: the clock of a machine that
# is so busy that nobody is served goes slower.
_TICK, _MOST = 0.01, 0.1


class Clock:
    """The clock whose time (seconds since 1970) is in that file.  It does not go beyond ``until``, if that is set in
    the process that sets it on."""

    def __init__(self, file: Path | str) -> None:
        with open(file, "r+b") as mapped:
            self._time = memoryview(mmap.mmap(mapped.fileno(), 8)).cast("d")
        self.until = math.inf

    def now(self) -> float:
        return self._time[0]

    def _go(self, speed: float, ended: threading.Event) -> None:
        last = time.monotonic()
        while not ended.wait(_TICK):
            machine = time.monotonic()
            self._time[0] = max(self.now(), min(self.now() + min(machine - last, _MOST) * speed, self.until))
            last = machine


@contextmanager
def going(file: Path, speed: float) -> Iterator[Clock]:
    """A new clock in that file, so many times as fast as the machine's, and set on meanwhile."""
    file.write_bytes(bytes(8))
    clock, ended = Clock(file), threading.Event()
    clock._time[0] = time.time()
    thread = threading.Thread(target=clock._go, args=(speed, ended))
    thread.start()
    try:
        yield clock
    finally:
        ended.set()
        thread.join()
