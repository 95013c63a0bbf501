"""A clock that runs faster than the machine's clock and shows the same time in all processes of a test.

The time is eight bytes of a file that all processes map.  One process advances it.
"""

import math
import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Seconds of the machine's clock between two updates, and the most that one update counts for.  On a machine too busy to
# serve anyone, the clock therefore runs slower.
_TICK, _MOST = 0.01, 0.1


class Clock:
    """The clock that keeps its time (seconds since 1970) in that file.  It stops at ``until``, if the advancing process
    sets that."""

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
    """Create a clock in that file, this many times as fast as the machine's, and advance it for the duration of the
    context."""
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
