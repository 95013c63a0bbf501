"""When the node is made ready: all of it at the start and when the file is read anew; a PF that has come, alone.

A process of its own does it: a driver takes seconds to make VFs, and must not keep kubelet waiting.  What somebody
else changes afterwards is left alone, because two programs that both put things right would never end.
"""

import asyncio
import select
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from base.child_process import Child
from base.kernel import sysfs
from hardware.model import Device, Kind
from node.log import Topics, say
from node.model import Settings
from node.provision.matching import Seen, lasting, only, seen, without

# How long the start waits: afterwards devices are offered, and what is made later is offered when it is there.
START: Final = 60.0
_TOPIC: Final = "provisioning"


@dataclass(frozen=True)
class _Turn:
    """A child at work.  ``begun``: the PFs that it is for, as they were when it began; ``alone``: their addresses, if
    it leaves all others alone."""

    child: Child
    begun: frozenset[Seen]
    alone: frozenset[str] = frozenset()


class Held:
    """Which VFs are not offered until the process has ended that makes their PF ready: a pod could take one that is not
    as the file asks."""

    def __init__(self) -> None:
        self._offered = frozenset[int]()
        self.some = False
        """Whether there were any at the last look."""

    def pass_all(self) -> None:
        """Hold back none of those that are there now.  Pods may have them, and kubelet would take them for gone."""
        there = sysfs.names(f"{sysfs.SYS}/bus/pci/devices")
        self._offered = frozenset(sysfs.incarnation(address) for address in there)

    def without(self, devices: tuple[Device, ...], busy: Collection[str]) -> tuple[Device, ...]:
        """The devices but for VFs that have come since PFs are ``busy``, by address.  A VF that was let through before
        is not held back."""
        vfs = {device.id: sysfs.incarnation(device.id) for device in devices if device.kind is Kind.VF}
        # guard below: offered-before (_offered), of-that-pf (busy)
        held = {d.id for d in devices if d.id in vfs and d.pf in busy and vfs[d.id] not in self._offered}
        self.some = bool(held)
        self._offered = frozenset(number for address, number in vfs.items() if address not in held)
        return tuple(device for device in devices if device.id not in held)


class Provisioning:
    """Makes the node as a file asks, again and again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, topics: Topics, made: Callable[[], None]) -> None:
        """``made`` is called when devices are to be looked at: something was changed, or waits no more."""
        self._loop, self._topics, self._made = loop, topics, made
        self._settings = Settings((), "")
        self._turn: _Turn | None = None
        self._is_stale = False
        # The PFs that a child has looked at, and those that are there.
        self._seen = self._there = frozenset[Seen]()
        self._refused: tuple[str, ...] = ()
        self._held = Held()

    def start(self, settings: Settings) -> None:
        """Take a file, begin, and wait until that has ended, or for START seconds."""
        self.configure(settings)
        if turn := self._turn:
            poll = select.poll()
            poll.register(turn.child.fd, select.POLLIN)
            if poll.poll(START * 1000):
                self._end(turn, is_awaited=True)
            else:
                say(f"not ready after {START:g} s: VFs that are made from now on are offered when all are ready")

    def configure(self, settings: Settings) -> None:
        """Take another file, and begin with all that it asks for."""
        if not (self._turn and self._settings.pfs):
            self._held.pass_all()  # guard: those-that-are-there
        self._settings = settings
        self._seen, self._refused = frozenset(), ()
        self._topics.forget(_TOPIC)  # each SIGHUP has an answer
        if self._turn:
            self._is_stale = True
        elif settings.pfs or settings.rdma_exclusive is not None:
            self._begin_with_all()

    def look(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Begin with the PFs that are new among these, or have a driver or an interface since.  The others are left
        alone, whatever they are like.  The devices that may be offered."""
        if not self._settings.pfs:
            return devices
        self._there = seen(self._settings.pfs, devices)
        self._seen = lasting(self._seen, devices)
        if not self._turn:
            self._begin_with_new()
        all_of_them = {one.address for one in self._there}
        # guard below: while-it-works (alone or all_of_them)
        return self._held.without(devices, (self._turn.alone or all_of_them) if self._turn else ())

    def close(self) -> None:
        """Have nothing more done, and wait for nothing."""
        if self._turn:
            self._loop.remove_reader(self._turn.child.fd)
            self._turn.child.leave()
            self._turn = None

    def _begin_with_all(self) -> None:
        self._begin(self._settings, self._there)

    def _begin_with_new(self) -> None:
        if new := self._there - self._seen:
            alone = frozenset(one.address for one in new)
            narrowed = replace(self._settings, pfs=only(self._settings.pfs, alone), rdma_exclusive=None)
            self._begin(narrowed, new, alone)

    def _begin(self, settings: Settings, begun: frozenset[Seen], alone: frozenset[str] = frozenset()) -> None:
        try:
            turn = _Turn(Child(partial(_work, settings)), begun, alone)
        except OSError as e:
            self._topics.problem(_TOPIC, f"the node cannot be made ready: {e.strerror}; run: systemctl reload hpn-node")
            return
        self._turn = turn
        self._loop.add_reader(turn.child.fd, partial(self._end, turn))

    def _end(self, turn: _Turn, *, is_awaited: bool = False) -> None:
        self._turn = None
        self._loop.remove_reader(turn.child.fd)
        self._seen |= turn.begun
        done: tuple[str, ...] = ()
        try:
            report = turn.child.answer()
        except (ChildProcessError, OSError) as e:
            self._refuse(turn, f"the process that makes the node ready {e}; run: systemctl reload hpn-node")
        else:
            done = report.done
            for change in done:
                say(f"made ready: {change}")
            self._refuse(turn, *report.refused)
            self._seen |= report.seen
        if (done or self._held.some) and not is_awaited:  # guard: are-not-forgotten (_held)
            self._made()
        self._go_on()

    def _go_on(self) -> None:
        if self._turn:  # what was made has led to a look, and that to the next turn
            return
        if self._is_stale:
            self._is_stale = False
            self._begin_with_all()
        else:
            self._begin_with_new()

    def _refuse(self, turn: _Turn, *sentences: str) -> None:
        """Say what is left as it is.  What was said of PFs that the child has left alone is true still."""
        self._refused = (*(without(self._refused, turn.alone) if turn.alone else ()), *sentences)
        self._topics.say_new(_TOPIC, *self._refused, is_problem=bool(self._refused))


def _work(settings: Settings) -> object:
    # It imports what knows the journal and the kernel, for the process that ends.
    from node.provision import apply  # noqa: PLC0415

    return apply.apply(settings)
