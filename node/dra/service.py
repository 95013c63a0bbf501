"""The part of hpn node for DRA: its offers and their health, their slices, and the driver at kubelet."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from base.protocol.errors import CniError
from base.state import claims
from node.dra.claims import devices, status
from node.dra.claims.driver import Driver
from node.dra.claims.prepare import Found
from node.dra.claims.status import Status
from node.dra.slices import content, ledger
from node.dra.slices.content import Entry, Index
from node.dra.slices.publisher import HELD, Publisher
from node.dra.slices.view import View
from node.health.status import FIRMWARE, NEEDED, NO_DRIVER, Health
from node.kubelet.allocations import Allocations, Name
from node.kubelet.plugin import HealthKey, Served
from node.log import Topics
from node.model import Offer, Sharing, devices_of

_UNREAD: Final = "claims"
_WORDS: Final = {NO_DRIVER: "no-driver", FIRMWARE: "firmware", NEEDED: "needed"}


class Service:
    """Offers the devices of resources by DRA until ``close``.  Calls ``changed`` when the plugin may offer others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        kubelet: Path,
        kubeconfig: str,
        allocations: Allocations,
        changed: Callable[[], None],
    ) -> None:
        """``kubelet`` is its directory; ``allocations`` are those of the plugin."""
        self.served = dict[str, Served]()
        self._index: Index | None = None  # of the offers, made when a claim is prepared
        self._publisher = Publisher(loop, topics, View(kubelet, kubeconfig), allocations, changed)
        allocations.granted = self._publisher.granted
        self._health: Mapping[HealthKey, Health] = {}
        self._loop, self._topics, self._kubeconfig = loop, topics, kubeconfig
        self._driver: Driver | None = None
        self._status: Status | None = None
        self._changed = changed
        self._again: asyncio.TimerHandle | None = None
        self._left = frozenset[Name]()  # the units that the plugin offers

    @property
    def offers(self) -> tuple[Offer, ...]:
        return tuple(served.offer for served in self.served.values())

    def offer(self, offers: Mapping[str, Offer]) -> None:
        """Replace all offers; the next ``update`` publishes them."""
        self.served = {name: Served(offer) for name, offer in offers.items()}
        self._index = None

    def update(self, health: Mapping[HealthKey, Health]) -> None:
        """Publish the offers with this health."""
        self._health = health
        unhealthy = {
            (name, key.id): word
            for name, served in self.served.items()
            for key in served.devices
            if (word := _word(health[key]))
        }
        self._publisher.offer(self.offers, unhealthy)
        if self._driver:
            self._driver.changed()

    def without_claimed(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """The plugin's offers without the units that claims or slices have.  While claims cannot be read, no unit is
        offered that was not before."""
        if self._driver:
            self._driver.sweep()
        all_units = tuple(offers)
        try:
            left = ledger.without_claimed(all_units, self._publisher.published - _ids(self.offers))
            is_known = True
            self._topics.solved(_UNREAD)
        except CniError as e:
            left, is_known = tuple(_only(offer, self._left) for offer in all_units), False
            why = "; ".join(filter(None, (e.msg, e.details)))
            self._topics.problem(_UNREAD, f"the device plugin offers no further unit; a claim may have it: {why}")
        self._left = _names(left)
        if (left != all_units or not is_known) and not self._again:
            # No event reports the end of a claim's attachment.
            self._again = self._loop.call_later(HELD, self._look_again)
        return left

    def publish(self, offers: Iterable[Offer]) -> None:
        """Write the present device nodes and variables into the files of claims.  Raises CniError, OSError.

        ``offers`` are those of both ways: a claim keeps its devices if their resource goes back to the plugin.
        """

        @cache  # only with claims, because a node may have thousands of devices
        def among() -> Mapping[tuple[str, str], Entry]:
            return {(one.resource.full_name, one.multus_id): one for one in content.entries("", offers)}

        def granted(one: claims.Device) -> Mapping[str, Any]:
            found = among().get((one.resource, one.id))
            now = devices.granted_now(found) if found else {}
            return now if now.get("nodes") else {}  # its driver may be away for a moment

        if self._driver:
            self._driver.renew(granted)

    def driver(self, path: Path, leave: Callable[[], None]) -> Driver:
        """The driver of these devices, for the socket at ``path``.  ``leave`` ends it at kubelet."""
        self._publisher.hosted(partial(_leave, leave))
        self._status = Status(self._loop, self._topics, partial(status.write, self._kubeconfig))
        self._driver = Driver(path, self.found, self.states, self.registered, self._status, self._kubeconfig)
        return self._driver

    def registered(self) -> None:
        """kubelet has registered the driver, so it may have started."""
        self._publisher.registered()

    def find(self, pool: str, name: str) -> tuple[Entry, str] | None:
        """A device of the slices, and why no claim may have it now; None if this node offers none of that name."""
        if self._index is None:
            self._index = content.index(self.offers)
        found = content.find(self._index, pool, name)
        return (found, self._problem(found)) if found else None

    def found(self, pool: str, name: str) -> Found | None:
        """A device of the slices for Prepare; None if this node offers none of that name."""
        found = self.find(pool, name)
        return devices.found(*found) if found else None

    def states(self) -> Iterator[tuple[str, str, str]]:
        """Each device's pool and name, and why it is unhealthy; empty if it is healthy."""
        for entry in content.entries(self._publisher.node, self.offers) if self._publisher.node else ():
            yield entry.pool, entry.name, self._fault(entry, lambda health: health.reason)

    def close(self) -> None:
        """Stop; slices and prepared claims stay."""
        if self._again:
            self._again.cancel()
        if self._status:
            self._status.close()
        self._publisher.close()

    def _look_again(self) -> None:
        self._again = None
        self._changed()

    def _problem(self, entry: Entry) -> str:
        name = entry.resource.full_name
        if not any(self._publisher.is_cleared((name, unit.id)) for unit in entry.units):
            return (
                "a pod has it from the device plugin, or kubelet has not listed its pods' devices yet; it is tried "
                "again until that pod has ended"
            )
        return self._fault(entry, lambda health: health.lost)

    def _fault(self, entry: Entry, of: Callable[[Health], str]) -> str:
        """The fault that all devices of the entry have; empty if one has none."""
        is_shared = entry.resource.sharing is Sharing.SHARED
        found = [of(self._health.get(HealthKey(one.id, is_shared), Health())) for one in entry.devices]
        return found[0] if all(found) else ""


def _leave(leave: Callable[[], None]) -> Sequence[str]:
    """Let the driver leave kubelet, unless kubelet needs it.  Return the claims that kubelet has not given up, also
    unreadable ones."""
    listed = claims.listed(claims.FOLDER)
    needed = [claim.title if claim else file for file, claim in listed if not (claim and claim.ended)]
    if not needed:
        leave()
    return needed


def _ids(offers: Iterable[Offer]) -> set[str]:
    return {one.id for offer in offers for one in devices_of(offer.units)}


def _names(offers: Iterable[Offer]) -> frozenset[Name]:
    return frozenset((offer.resource.full_name, unit.id) for offer in offers for unit in offer.units)


def _only(offer: Offer, names: Collection[Name]) -> Offer:
    """The offer with only the units of these names."""
    return replace(offer, units=tuple(unit for unit in offer.units if (offer.resource.full_name, unit.id) in names))


def _word(health: Health) -> str:
    """The reason of a taint: a label's value has no blanks."""
    if health.lost:
        return next((word for text, word in _WORDS.items() if health.lost.startswith(text)), "gone")
    return "no-link" if health.down else ""
