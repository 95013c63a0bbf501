"""Work of the daemon in the background: a child process at a time, begun when it is due, with its answer to the loop.

The loop never waits, because a server or kubelet may answer late.
"""

import asyncio
from collections.abc import Callable

from base.child_process import Child


class Background:
    """Calls ``begin`` when work is due, until ``close``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        self._loop, self._begin = loop, begin
        self._next: asyncio.TimerHandle | None = None
        self._child: Child | None = None
        self._end: Callable[[Child], None] | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether a child works, and its answer was not taken yet."""
        return self._child is not None

    @property
    def due(self) -> float | None:
        """When ``begin`` is called, by the loop's clock; None if nothing is due."""
        return self._next.when() if self._next else None

    def after(self, seconds: float) -> None:
        """Call ``begin`` in ``seconds``, unless an earlier call is due."""
        if self._next and self._next.when() <= self._loop.time() + seconds:
            return
        if self._next:
            self._next.cancel()
        self._next = self._loop.call_later(seconds, self._call)

    def cancel(self) -> None:
        """Call ``begin`` only after another ``after``."""
        if self._next:
            self._next.cancel()
        self._next = None

    def start(self, work: Callable[[], object], end: Callable[[Child], None]) -> None:
        """Do the work in a child, and call ``end`` with it when it has an answer.  Raises OSError."""
        self._child, self._end = Child(work), end
        self._loop.add_reader(self._child.fd, self._finish)

    def close(self) -> None:
        """Stop, without waiting for the child."""
        self.cancel()
        if self._child:
            self._loop.remove_reader(self._child.fd)
            self._child.leave()
            self._child = None

    def _call(self) -> None:
        self._next = None
        self._begin()

    def _finish(self) -> None:
        child, self._child = self._child, None
        if child and self._end:
            self._loop.remove_reader(child.fd)
            self._end(child)
