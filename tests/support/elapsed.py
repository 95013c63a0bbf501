"""Measure work on a busy machine: elapsed seconds without the wait for a processor, or processor seconds."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class Elapsed:
    """Measure the time of this thread from now on, and of other processes that work for it.

    man 5 proc does not describe schedstat.  By Documentation/scheduler/sched-stats.rst its second number is the time in
    a processor's queue, in nanoseconds.
    """

    def __init__(self, *pids: int) -> None:
        self._folders = [Path(f"/proc/{pid}/task") for pid in pids]
        self._own = Path(f"/proc/self/task/{Path('/proc/thread-self').readlink().name}")
        self._since, self._waited = time.monotonic(), self._waits()

    def seconds(self) -> float:
        took = time.monotonic() - self._since
        return took - sum(now - self._waited.get(task, 0) for task, now in self._waits().items()) / 1e9

    def _waits(self) -> dict[Path, int]:
        found = dict[Path, int]()
        for task in [self._own, *(task for folder in self._folders for task in folder.iterdir())]:
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
                found[task] = int((task / "schedstat").read_text().split()[1])
        return found


def children(pid: int) -> list[int]:
    """Return the process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def cost(work: Callable[[], object]) -> float:
    """Return the least processor seconds of three runs in this process, for comparison with smaller or larger work."""

    def once() -> float:
        before = time.process_time()
        work()
        return time.process_time() - before

    return min(once() for _ in range(3))


def is_proportional(cost_of: Callable[[int], float], few: int, many: int) -> bool:
    """Return whether the cost grows as the size, and not as its square: the limit is their geometric mean.

    Caches that other programs empty make large work up to three times as dear, so the sizes are far apart.
    """
    return cost_of(many) < (many / few) ** 1.5 * cost_of(few)
