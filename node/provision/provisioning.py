"""Schedules provisioning: of all PFs at the start and on reload, and of a new PF alone.

A child process does the work, because a driver takes seconds to make VFs, and kubelet must not wait.  Later changes by
others stay: two programs that both repaired them would never end.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from base.child_process import Child
from base.kernel import sysfs
from hardware.model import Device, Kind
from node.log import Topics, log
from node.model import Settings
from node.provision.matching import Seen, lasting, only, seen, without

# Seconds that the start waits for provisioning; then devices are offered, and later ones when they appear.
START: Final = 60.0
# Seconds until a number of VFs that the driver refuses is tried again; twice as long after each time, up to LONGEST.
AGAIN: Final = 60.0
LONGEST: Final = 3600.0
_TOPIC: Final = "provisioning"
_ALL: Final = ""  # in place of an address: a whole run, with the RDMA mode


@dataclass(frozen=True)
class _Run:
    """A child at work.

    ``begun``: its PFs, as they were when it began; ``alone``: their addresses if it concerns only some, else empty.
    """

    child: Child
    begun: frozenset[Seen]
    alone: frozenset[str] = frozenset()


class Held:
    """Withholds new VFs until the child for their PF has ended: a pod could get one that differs from the file."""

    def __init__(self) -> None:
        self._offered = frozenset[int]()
        self.some = False
        """Whether the last ``without`` withheld any."""

    def pass_all(self) -> None:
        """Withhold no VF that exists now: pods may have them, and kubelet would count them as gone."""
        there = sysfs.names(f"{sysfs.SYS}/bus/pci/devices")
        self._offered = frozenset(sysfs.incarnation(address) for address in there)

    def without(self, devices: tuple[Device, ...], busy: Collection[str]) -> tuple[Device, ...]:
        """The devices without the new VFs of the PFs at the addresses ``busy``.

        A VF that an earlier call returned is not withheld.
        """
        vfs = {device.id: sysfs.incarnation(device.id) for device in devices if device.kind is Kind.VF}
        held = {d.id for d in devices if d.id in vfs and d.pf in busy and vfs[d.id] not in self._offered}
        self.some = bool(held)
        self._offered = frozenset(number for address, number in vfs.items() if address not in held)
        return tuple(device for device in devices if device.id not in held)


class Provisioning:
    """Runs provisioning for the present configuration."""

    def __init__(self, loop: asyncio.AbstractEventLoop, topics: Topics, made: Callable[[], None]) -> None:
        """Calls ``made`` when devices must be read again: something was changed, or is no longer withheld."""
        self._loop, self._topics, self._made = loop, topics, made
        self._settings = Settings((), "")
        self._run: _Run | None = None
        self._is_stale = False
        # The PFs that a child has handled, and those that exist.
        self._seen = self._there = frozenset[Seen]()
        self._refused: tuple[str, ...] = ()
        self._held = Held()
        # By the address of a PF whose driver refused the number of VFs.
        self._again = dict[str, asyncio.TimerHandle]()
        self._pauses = dict[str, float]()

    async def start(self, settings: Settings) -> None:
        """Set the configuration, and wait until its run has ended, START seconds at most."""
        self.configure(settings)
        if run := self._run:
            is_over = asyncio.Event()
            self._loop.add_reader(run.child.fd, is_over.set)
            try:
                await asyncio.wait_for(is_over.wait(), START)
            except TimeoutError:
                self._loop.add_reader(run.child.fd, partial(self._end, run))
                log(f"not ready after {START:g} s: VFs that are made from now on are offered when all are ready")
            else:
                self._end(run, is_awaited=True)

    def configure(self, settings: Settings) -> None:
        """Set the configuration, and begin a run for all of it."""
        if not (self._run and self._settings.pfs):
            self._held.pass_all()
        self._settings = settings
        self._seen, self._refused = frozenset(), ()
        self._pauses.clear()
        self._topics.forget(_TOPIC)  # each SIGHUP gets an answer
        if self._run:
            self._is_stale = True
        elif settings.pfs or settings.rdma_exclusive is not None:
            self._begin_with_all()

    def update(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Begin a run for the PFs that are new, or newly have a driver or an interface.

        All others stay as they are.  Return the devices that may be offered.
        """
        if not self._settings.pfs:
            return devices
        self._there = seen(self._settings.pfs, devices)
        self._seen = lasting(self._seen, devices)
        if not self._run:
            self._begin_with_new()
        all_of_them = {one.address for one in self._there}
        return self._held.without(devices, (self._run.alone or all_of_them) if self._run else ())

    def _plan_again(self, begun: Collection[str], refused: Collection[str]) -> None:
        """Try a number of VFs again that a driver refuses: firmware may not be ready at boot.  More and more rarely for
        each PF, because each attempt takes away the VFs that are there.  ``begun`` are the PFs of the run."""
        for address in begun:
            if timer := self._again.pop(address, None):
                timer.cancel()
            if address in refused:
                pause = self._pauses.get(address, AGAIN)
                self._again[address] = self._loop.call_later(pause, self._try_again, address)
                self._pauses[address] = min(2 * pause, LONGEST)
            else:
                self._pauses.pop(address, None)

    def _try_again(self, address: str) -> None:
        self._again.pop(address, None)
        if address == _ALL:
            self._is_stale = True
            self._go_on()
            return
        self._seen = frozenset(one for one in self._seen if one.address != address)
        if not self._run:
            self._begin_with_new()

    def close(self) -> None:
        """End without waiting for the child."""
        for timer in self._again.values():
            timer.cancel()
        if self._run:
            self._loop.remove_reader(self._run.child.fd)
            self._run.child.leave()
            self._run = None

    def _begin_with_all(self) -> None:
        self._begin(self._settings, self._there)

    def _begin_with_new(self) -> None:
        if new := self._there - self._seen:
            alone = frozenset(one.address for one in new)
            narrowed = replace(self._settings, pfs=only(self._settings.pfs, alone), rdma_exclusive=None)
            self._begin(narrowed, new, alone)

    def _begin(self, settings: Settings, begun: frozenset[Seen], alone: frozenset[str] = frozenset()) -> None:
        try:
            run = _Run(Child(partial(_work, settings)), begun, alone)
        except OSError as e:
            self._topics.problem(_TOPIC, f"the node cannot be made ready: {e.strerror}; it is tried again")
            self._seen |= begun
            self._plan_again(alone or {_ALL}, alone or {_ALL})
            return
        self._run = run
        self._loop.add_reader(run.child.fd, partial(self._end, run))

    def _end(self, run: _Run, *, is_awaited: bool = False) -> None:
        self._run = None
        self._loop.remove_reader(run.child.fd)
        self._seen |= run.begun
        done: tuple[str, ...] = ()
        try:
            report = run.child.answer()
        except (ChildProcessError, OSError) as e:
            # The kernel may have killed it for memory.
            self._refuse(run, f"the process that makes the node ready {e}; it is tried again")
            self._plan_again(run.alone or {_ALL}, run.alone or {_ALL})
        else:
            done = report.done
            for change in done:
                log(f"made ready: {change}")
            self._refuse(run, *report.refused)
            self._seen |= report.seen
            self._plan_again({one.address for one in run.begun | report.seen}, report.again)
        if (done or self._held.some) and not is_awaited:
            self._made()
        self._go_on()

    def _go_on(self) -> None:
        if self._run:  # ``made`` has led to an update, and that to the next run
            return
        if self._is_stale:
            self._is_stale = False
            self._begin_with_all()
        else:
            self._begin_with_new()

    def _refuse(self, run: _Run, *sentences: str) -> None:
        """Log the refusals of a run.  Earlier ones about other PFs still hold."""
        self._refused = (*(without(self._refused, run.alone) if run.alone else ()), *sentences)
        self._topics.report(_TOPIC, *self._refused, is_problem=bool(self._refused))


def _work(settings: Settings) -> object:
    from node.provision import apply  # noqa: PLC0415  # its imports are for the child only

    return apply.apply(settings)
