"""A clock that goes faster than the machine's, and is the same in all processes of a test."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """``base`` is its time (seconds since 1970) when the machine's monotonic clock said ``start``."""

    start: float
    base: float
    speed: float

    def now(self) -> float:
        return self.base + (time.monotonic() - self.start) * self.speed
