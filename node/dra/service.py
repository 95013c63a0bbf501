"""The part of hpn node for DRA: its offers and their health, their slices, and the driver at kubelet."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from base.protocol.errors import CniError
from base.state import claims
from hardware.neighbors import Neighbor
from node.dra.claims import devices, kept, status
from node.dra.claims.devices import Devices
from node.dra.claims.driver import Driver
from node.dra.claims.status import Status
from node.dra.helpers import Helpers
from node.dra.slices import content, ledger
from node.dra.slices.content import Entry
from node.dra.slices.publisher import HELD, Publisher
from node.dra.slices.view import View
from node.health.status import FIRMWARE, NEEDED, NO_DRIVER, Health, HealthKey
from node.kubelet.allocations import Allocations, Name
from node.kubelet.served import Served
from node.log import Topics
from node.model import Offer, devices_of

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
        self._publisher = Publisher(loop, topics, View(kubelet, kubeconfig), allocations, changed)
        self._devices = Devices(self._publisher)
        allocations.tell(self._publisher.granted)
        self._loop, self._topics, self._kubeconfig = loop, topics, kubeconfig
        self._helpers = Helpers(loop)
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
        self._devices.offer(self.offers)

    def update(self, health: Mapping[HealthKey, Health], neighbors: Mapping[str, Neighbor]) -> None:
        """Publish the offers with this health, and with these switch ports of PFs."""
        self._devices.update(health, neighbors)
        unhealthy = {
            (name, key.id): word
            for name, served in self.served.items()
            for key in served.devices
            if (word := _word(health[key]))
        }
        self._publisher.offer(self.offers, unhealthy, neighbors)
        if self._driver:
            self._driver.changed()

    def without_claimed(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """The plugin's offers without the units that claims or slices have.  While claims cannot be read, no unit is
        offered that was not before."""
        if self._driver:
            kept.sweep()
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

        def granted(one: claims.ClaimedDevice) -> Mapping[str, Any]:
            found = among().get((one.resource, one.id))
            now = devices.granted_now(found) if found else {}
            return now if now.get("nodes") else {}  # its driver may be away for a moment

        if self._driver:
            kept.renew(granted)

    def driver(self, path: Path, leave: Callable[[], None]) -> Driver:
        """The driver of these devices, for the socket at ``path``.  ``leave`` ends it at kubelet."""
        self._publisher.hosted(partial(_leave, leave))
        do, registered = self._helpers.do, self._publisher.registered
        self._status = Status(self._loop, self._topics, lambda due: do(partial(status.write, self._kubeconfig, due)))
        self._driver = Driver(path, self._devices, self._status, self._helpers, registered, self._kubeconfig)
        return self._driver

    def close(self) -> None:
        """Stop; slices and prepared claims stay."""
        if self._again:
            self._again.cancel()
        if self._status:
            self._status.close()
        self._helpers.close()
        self._publisher.close()

    def _look_again(self) -> None:
        self._again = None
        self._changed()


def _leave(leave: Callable[[], None]) -> Sequence[str]:
    """Let the driver leave kubelet, unless kubelet needs it.  Return the claims that kubelet has not given up, also
    unreadable ones."""
    listed = claims.listed()
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
