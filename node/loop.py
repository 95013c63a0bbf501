"""One thread that waits for descriptors and times, and wakes up for nothing else."""

import heapq
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final

_ALARMS: Final = 64


@dataclass(order=True)
class Alarm:
    """A call that is due once, unless it is cancelled before."""

    due: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Call no more, and let go at once of what would have been called: the alarm itself may stay for minutes."""
        self.cancelled, self.call = True, _nothing


def _nothing() -> None:
    pass


class Loop:
    """Calls back when a descriptor is readable or a time has come.  While nothing happens it sleeps without end."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._calls = dict[int, tuple[Callable[[], None], Callable[[], None] | None]]()
        self._alarms = list[Alarm]()
        self._most = _ALARMS  # before those that are cancelled are thrown away
        self._numbers = count()
        self._running = False

    def watch(self, fd: int, readable: Callable[[], None], writable: Callable[[], None] | None = None) -> None:
        """Call back whenever the descriptor is readable, or has ended; with ``writable`` also when it takes more.
        What was watched of it before is replaced."""
        self._register(fd, select.EPOLLIN | (select.EPOLLOUT if writable else 0), (readable, writable))

    def watch_urgent(self, fd: int, call: Callable[[], None]) -> None:
        """Call back whenever the descriptor has something urgent, such as a change of /proc/self/mountinfo."""
        self._register(fd, select.EPOLLPRI, (call, None))

    def _register(self, fd: int, events: int, calls: tuple[Callable[[], None], Callable[[], None] | None]) -> None:
        if fd in self._calls:
            self._poll.modify(fd, events)
        else:
            self._poll.register(fd, events)
        self._calls[fd] = calls

    def unwatch(self, fd: int) -> None:
        """Forget the descriptor, before it is closed.  It may be one that is not watched."""
        if self._calls.pop(fd, None):
            with suppress(OSError):
                self._poll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Call once, so many seconds from now."""
        if len(self._alarms) > self._most:
            self._alarms = [alarm for alarm in self._alarms if not alarm.cancelled]
            heapq.heapify(self._alarms)
            self._most = 2 * len(self._alarms) + _ALARMS
        alarm = Alarm(time.monotonic() + seconds, next(self._numbers), call)
        heapq.heappush(self._alarms, alarm)
        return alarm

    def run(self) -> None:
        """Go on until ``stop``."""
        self._running = True
        while self._running:
            self.turn(self._until_next_alarm())

    def turn(self, timeout: float | None) -> None:
        """Wait for one event, or ``timeout`` seconds (None: without end), and make the calls that are due."""
        for fd, event in self._poll.poll(timeout):
            readable, writable = self._calls.get(fd, (None, None))
            if writable and event & select.EPOLLOUT:
                writable()
            # The first call may have ended the watch.
            if readable and fd in self._calls and event & ~select.EPOLLOUT:
                readable()
        while self._alarms and (self._alarms[0].cancelled or self._alarms[0].due <= time.monotonic()):
            alarm = heapq.heappop(self._alarms)
            if not alarm.cancelled:
                alarm.call()

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        self._poll.close()

    def _until_next_alarm(self) -> float | None:
        while self._alarms and self._alarms[0].cancelled:
            heapq.heappop(self._alarms)
        return max(self._alarms[0].due - time.monotonic(), 0) if self._alarms else None
