"""Seconds that work takes, but for those in which it could go on and had no processor: a busy machine gives it few."""

import time
from pathlib import Path


class Elapsed:
    """Of this thread from now on, and of other processes that work for it.

    man 5 proc has no schedstat; Documentation/scheduler/sched-stats.rst: the second number is the time in a queue for a
    processor, in nanoseconds.
    """

    def __init__(self, *pids: int) -> None:
        self._tasks = [Path(f"/proc/self/task/{Path('/proc/thread-self').readlink().name}")]
        self._others = [Path(f"/proc/{pid}/task") for pid in pids]
        self._since, self._waited = time.monotonic(), self._now()

    def seconds(self) -> float:
        took = time.monotonic() - self._since
        return took - (self._now() - self._waited)

    def _now(self) -> float:
        tasks = self._tasks + [task for folder in self._others for task in folder.iterdir()]
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9


def children(pid: int) -> list[int]:
    """It and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
