"""Publishes the node's ResourceSlices: a round compares those of the API server with the wanted ones.

A child process does each round, because the API server and kubelet may answer late.  Rounds come at events and at
intervals, because others may remove slices.

They also come often for some minutes after each registration at kubelet, while they succeed.  A starting kubelet
removes all slices of the node in the background, once.  It tries that until the API server answers, with pauses that
double, for 306 s at most (kubernetes: pkg/kubelet/cm/dra/plugin, wipeResourceSlices).  So after a cold start of the
cluster its attempt may come minutes after the first round that succeeds.

Without a resource by DRA all slices must go.  After a rollback of the chart no credential may remove them.  Then the
driver leaves kubelet, which removes them 30 s later (kubernetes: pkg/kubelet/cm/dra/plugin).  A device that is in a
slice even then cannot get to a claim's pod: no driver prepares the claim.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from base.child_process import Child
from base.protocol.errors import CniError
from base.state import durable
from hardware.model import Device
from hardware.neighbors import Neighbor
from node.background import Background
from node.dra.slices import ledger
from node.dra.slices.view import Report, View
from node.kubelet.allocations import Allocations, Name
from node.log import Topics, cause, some
from node.model import Offer, devices_of

# All times are in seconds.
EVERY: Final = 600.0  # between rounds
JITTER: Final = 0.2  # of EVERY, OFTEN and AGAIN, so that the rounds of many nodes do not coincide
AGAIN: Final = 5.0  # from a failed round to the next; twice as long after each further failure, up to LONGEST
LONGEST: Final = 120.0
REST: Final = 0.5  # from an event to its round
HELD: Final = 5.0  # between queries of PodResources, while a pod has a device from the plugin
# After a registration: so long, and from a round that succeeded to the next.  kubelet's own heartbeat asks as often.
REGISTERED: Final = 330.0
OFTEN: Final = 10.0
WIPED: Final = 35.0  # after the driver has left kubelet, which then removes the slices
TOPIC: Final = "dra"  # the problem's name in metrics
FILE: Final = ".hpn-dra.json"  # beside the sockets; kubelet ignores its name


class Publisher:
    """Schedules the rounds.  Calls ``changed`` when the plugin may offer devices again that were in slices, and when
    the node's name is known."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        view: View,
        allocations: Allocations,
        changed: Callable[[], None],
    ) -> None:
        """``view`` has kubelet's directory and the kubeconfig."""
        self._loop, self._topics, self._changed = loop, topics, changed
        self._allocations = allocations
        self._leave: Callable[[], Sequence[str]] | None = None
        self._file = view.kubelet / "plugins_registry" / FILE
        self.published = _read(self._file)
        """The ids of devices that may be in slices, now or by the round that runs."""
        self.node = ""
        """The node's name at the API server; empty until a round knows it."""
        self._view = view
        self._running = view
        self._cleared = dict[str, frozenset[str]]()  # the IDs of units, by resource
        self._background = Background(loop, self._start)
        self._has_changed = True
        self._failures = 0
        self._in_vain = 0
        self._look: asyncio.TimerHandle | None = None
        self._often_until = 0.0  # by the loop's clock
        self._wiped: asyncio.TimerHandle | None = None

    def offer(
        self, offers: tuple[Offer, ...], unhealthy: Mapping[Name, str], neighbors: Mapping[str, Neighbor]
    ) -> None:
        """Publish these offers, without what pods have from the plugin.  Pairs of resource and device id have a reason
        in ``unhealthy``, and addresses of PFs a switch port in ``neighbors``."""
        others = unhealthy, neighbors
        if others != (self._view.unhealthy, self._view.neighbors) or not _is_alike(offers, self._view.offers):
            self._has_changed = True
            now = _units(offers)
            self._cleared = {name: ids & now[name] for name, ids in self._cleared.items() if name in now}
            self._view = replace(self._view, is_same=False)
        self._view = replace(self._view, offers=offers, unhealthy=unhealthy, neighbors=neighbors)
        if self._has_changed:
            self._background.after(REST)

    def registered(self) -> None:
        """Compare the slices often for a while, because kubelet may have started."""
        self._forget_wipe()
        self._often_until = self._loop.time() + REGISTERED
        self._failures = 0
        self._has_changed = True
        self._background.after(REST)

    def granted(self, units: Collection[Name]) -> None:
        """Give no claim these units, which the plugin has given, or a relative, until a round has asked kubelet."""
        if self._withhold(units):
            self._has_changed = True
            self._background.after(REST)

    def _withhold(self, units: Collection[Name]) -> bool:
        """Whether a unit of DRA's offers is one of these, or a relative; those are no longer cleared."""
        held = ledger.withheld(self._view.offers, ledger.Holds(frozenset(), frozenset()), units)
        for name, one in held:
            self._cleared[name] = self._cleared.get(name, frozenset()) - {one}
        return bool(held)

    def is_cleared(self, unit: Name) -> bool:
        """Whether no pod has the unit from the plugin."""
        return unit[1] in self._cleared.get(unit[0], ())

    def close(self) -> None:
        """Stop.  Slices stay; kubelet removes them if the driver does not return within 30 s."""
        self._forget_wipe()
        if self._look:
            self._look.cancel()
        self._background.close()

    def hosted(self, leave: Callable[[], Sequence[str]]) -> None:
        """The driver is at kubelet, which therefore leaves the slices alone.  ``leave`` ends it there, unless kubelet
        needs it for prepared claims, whose titles it returns."""
        self._forget_wipe()
        self._leave = leave

    def _forget_wipe(self) -> None:
        if self._wiped:
            self._wiped.cancel()
        self._wiped = None

    def _start(self, *, is_look: bool = False) -> None:
        if is_look:
            self._look = None
        if self._background.is_at_work:  # it may lack the newest offers
            self._has_changed = self._has_changed or not is_look
            return
        self._has_changed = self._has_changed and is_look
        ids = _ids(self._view.offers)
        leaves = not self.published <= ids
        self._running = replace(self._view, allocated=self._allocations.units, is_look=is_look, leaves=leaves)
        self._view = replace(self._view, is_same=True)  # until the offers change, or the round fails
        try:
            self._keep(self.published | ids)
            self._background.start(partial(self._round, self._running), self._finish)
        except (OSError, CniError) as e:
            why = e.msg if isinstance(e, CniError) else cause(e)
            self._failed(f"the node's ResourceSlices stay as they are: {why}")

    def _round(self, view: View) -> Report:
        """Do a round.  For a child process."""
        from node.dra.slices.round import publish  # noqa: PLC0415  # for the child only

        return publish(view)

    def _finish(self, child: Child) -> None:
        try:
            self._take(child.answer())
        except (OSError, EOFError) as e:
            self._failed(f"the node's ResourceSlices cannot be brought up to date: the process of the round {e}")
        if self._has_changed:
            self._background.after(REST)
        if self._view.withheld and not self._look:
            # While another program's plugin offers a resource of DRA's, each look asks the API server too.
            seconds = min(HELD * 2 ** min(self._in_vain, 16), LONGEST)
            self._look = self._loop.call_later(seconds, partial(self._start, is_look=True))

    def _take(self, report: Report) -> None:
        """Note a round's result, and schedule the next."""
        self._note_node(report.node)
        if report.withheld is not None:
            asked_in_vain = not report.is_look and report.withheld == self._view.withheld
            self._in_vain = self._in_vain + 1 if asked_in_vain else 0
            self._view = replace(self._view, withheld=report.withheld)
            for name, units in _units(self._running.offers).items():
                self._cleared[name] = frozenset(one for one in units if (name, one) not in report.withheld)
            # The round did not know of these.
            self._withhold(self._allocations.units - self._running.allocated)
        if report.problem:
            if not (self._leave and report.is_barred) or self._view.offers:
                self._failed(report.problem)
            elif needed := self._leave():
                self._failed(f"{report.problem}; kubelet removes them after these have ended: {some(needed)}")
            else:
                self._await_wipe(report.problem)
            return
        if report.is_look:  # the API server was not asked, so failures count on
            self._view = replace(self._view, is_same=self._view.is_same and self._running.is_same)
            return
        self._failures = 0
        # What an API server does not store may be stored by the next one.
        self._view = replace(self._view, known=report.known, is_same=self._view.is_same and not report.notes)
        self._topics.report(TOPIC, *report.notes, *report.strangers, is_problem=bool(report.strangers))
        if self._view.offers:
            self._background.after(_about(OFTEN if self._loop.time() < self._often_until else EVERY))
        ids = _ids(self._running.offers)
        if ids != self.published:
            try:
                self._keep(ids)
            except CniError as e:
                self._failed(e.msg)
            self._changed()

    def _note_node(self, name: str) -> None:
        """Note the node's name.  kubelet gets the health of devices under it."""
        if name not in ("", self.node):
            self.node = name
            self._changed()

    def _await_wipe(self, why: str) -> None:
        """Let kubelet remove the slices, because the driver has left it; no round follows."""
        self._forget_wipe()
        self._background.cancel()
        self._leave, self._has_changed = None, False
        what = f"the driver leaves kubelet, which removes them, and in {WIPED:g} s the device plugin has their devices"
        self._topics.problem(TOPIC, f"{why}; {what}")
        self._wiped = self._loop.call_later(WIPED, self._forget)

    def _forget(self) -> None:
        self._topics.forget(TOPIC)
        try:
            self._keep(set())
        except CniError as e:
            self._failed(e.msg)
        self._changed()

    def _failed(self, why: str) -> None:
        # Else an API server of a restored etcd would refuse each list: it has not reached the known versions yet.
        self._view = replace(self._view, is_same=False, known={})
        self._topics.problem(TOPIC, why)
        self._failures += 1
        self._background.after(_about(min(AGAIN * 2 ** min(self._failures - 1, 16), LONGEST)))

    def _keep(self, ids: set[str]) -> None:
        """Note the devices that may be in slices, for a start without their resources.  Raises CniError."""
        if ids != self.published or not self._file.exists():
            if ids:
                durable.write(self._file, {"devices": sorted(ids)}, makes=False)
            else:
                durable.remove(self._file)
            self.published = ids


def _about(seconds: float) -> float:
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311


def _read(file: Path) -> set[str]:
    """The devices in the file; none if it is missing or unreadable: kubelet removes the slices of a driver that is
    gone."""
    try:
        return {str(one) for one in (durable.read(file) or {"devices": []})["devices"]}
    except (CniError, LookupError, TypeError):
        return set()


def _ids(offers: Iterable[Offer]) -> set[str]:
    return {one.id for offer in offers for one in devices_of(offer.units)}


def _units(offers: Iterable[Offer]) -> dict[str, frozenset[str]]:
    """The IDs of units, by resource."""
    return {offer.resource.full_name: frozenset(unit.id for unit in offer.units) for offer in offers}


def _is_alike(offers: Sequence[Offer], before: Sequence[Offer]) -> bool:
    """Whether both make the same slices.  A device changes otherwise whenever a pod gets it or returns it."""
    if [offer.resource for offer in offers] != [offer.resource for offer in before]:
        return False
    return all(_key(offer) == _key(old) for offer, old in zip(offers, before, strict=True) if offer is not old)


def _key(offer: Offer) -> list[object]:
    return [(unit.id, [_of_slice(one) for one in unit.devices]) for unit in offer.units]


def _of_slice(one: Device) -> object:
    """What content.py reads of a device."""
    names = one.names, one.pf_netdev, one.pf_altnames, one.pf
    return one.id, one.kind, names, one.link_type, bool(one.rdma), one.vendor, one.product, one.index, one.numa
