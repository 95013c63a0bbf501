"""When the node is made ready: at the start, when the file is read anew, and when a PF has come.

A process of its own does it: a driver takes seconds to make VFs, and must not keep kubelet waiting.  What somebody
else changes afterwards is left alone, because two programs that both put things right would never end.
"""

import os
import select
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from node.apart import Child
from node.loop import Loop
from node.model import Device, Settings
from node.provision.matching import Seen, seen
from node.saying import Topics, say

# How long the start waits: afterwards devices are offered, and what is made later is offered when it is there.
START: Final = 60.0
_TOPIC: Final = "provisioning"


class Provisioning:
    """Makes the node as a file asks, again and again."""

    def __init__(self, loop: Loop, topics: Topics, made: Callable[[], None]) -> None:
        """``made`` is called when something was changed, but for what was waited for."""
        self._loop, self._topics, self._made = loop, topics, made
        self._settings = Settings((), "")
        self._child: Child | None = None
        self._is_stale = False
        # The PFs that a child has looked at, those that are there, and those that were when the child began.
        self._seen = self._there = self._begun = frozenset[Seen]()

    def start(self, settings: Settings) -> None:
        """Take a file, begin, and wait until that has ended, or for START seconds."""
        self.configure(settings)
        if child := self._child:
            poll = select.poll()
            poll.register(child.fd, select.POLLIN)
            if poll.poll(START * 1000):
                self._end(child, is_awaited=True)

    def configure(self, settings: Settings) -> None:
        """Take another file, and begin."""
        self._settings = settings
        self._seen = frozenset()
        self._topics.forget(_TOPIC)  # each SIGHUP has an answer
        if settings.pfs or settings.rdma_exclusive is not None:
            self._begin()

    def look(self, devices: Sequence[Device]) -> None:
        """Begin again if these have a PF that is new, or has a driver or a name since."""
        if not self._settings.pfs:
            return
        self._there = seen(self._settings.pfs, devices)
        if not self._child and self._there - self._seen:
            self._begin()

    def close(self) -> None:
        """Wait for nothing more."""
        if self._child:
            self._loop.unwatch(self._child.fd)
            os.close(self._child.fd)
            self._child = None

    def _begin(self) -> None:
        if self._child:
            self._is_stale = True
            return
        self._begun = self._there
        try:
            self._child = Child(partial(_work, self._settings))
        except OSError as e:
            self._topics.problem(_TOPIC, f"the node cannot be made ready: {e.strerror}; run: systemctl reload hpn-node")
            return
        self._loop.watch(self._child.fd, partial(self._end, self._child))

    def _end(self, child: Child, *, is_awaited: bool = False) -> None:
        self._child = None
        self._loop.unwatch(child.fd)
        try:
            report = child.answer()
        except (ChildProcessError, OSError) as e:
            self._topics.problem(_TOPIC, f"the process that makes the node ready {e}; run: systemctl reload hpn-node")
            self._seen |= self._begun
        else:
            for change in report.done:
                say(f"made ready: {change}")
            self._topics.say_new(_TOPIC, *report.refused, is_problem=bool(report.refused))
            self._seen |= report.seen | self._begun
            if report.done and not is_awaited:
                self._made()
        if self._is_stale or self._there - self._seen:
            self._is_stale = False
            self._begin()


def _work(settings: Settings) -> object:
    # It imports what knows the journal and the kernel, for the process that ends.
    from node.provision import acting  # noqa: PLC0415

    return acting.apply(settings)
