"""Which way has a device now: the device plugin, or DRA.  No unit of a resource is offered by both.

kubelet lists the units that pods got from the plugin; it never reports their end.  So a unit enters a slice when it is
no longer listed.  Nothing is kept on disk for that: a restart asks again.

A kubelet that has just started lists no pod until the API server has named them.  Its checkpoint has their devices at
once, and keeps ended pods too; a pod's directory shows that it is there (kubernetes: pkg/kubelet/cm/devicemanager).
Without the list, the checkpoint or those directories nothing is known to be free.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from base.kernel import sysfs
from base.kubelet import client
from base.protocol import location
from base.protocol.errors import TryAgain
from base.state import claims, kubelet_checkpoint, owned
from hardware.model import Device
from node.kubelet.allocations import Name
from node.model import Offer, Sharing, Unit, devices_of

TIMEOUT: Final = 10.0  # seconds for kubelet's list


@dataclass(frozen=True)
class Holds:
    """What pods have from the device plugin.

    - ``units``: those of kubelet's list, of any plugin.
    - ``devices``: bus addresses of devices that are attached to a pod without a claim.
    """

    units: frozenset[Name]
    devices: frozenset[str]


def holds(kubelet: Path) -> Holds:
    """What pods have from the device plugin.  ``kubelet`` is its directory.  Raises TryAgain if that is unknown, and
    IoFailure, RecordUnreadable for claims and attachments.

    For a child process, because kubelet may answer late.
    """
    listed = client.listed(kubelet / "pod-resources/kubelet.sock", TIMEOUT)
    if listed is None:
        raise TryAgain(
            f"kubelet lists no pods' devices at {kubelet}/pod-resources/kubelet.sock, and a device in a slice could be "
            "a pod's.  No slice changes until it does.  In a container, mount that directory"
        )
    units = {(held.resource, one) for held in listed for one in held.ids} | _of_checkpoint(kubelet)
    of_claims = {device.id for claim in claims.prepared() for device in claim.own}
    attached = owned.devices(location.state_dir()).keys() - of_claims
    return Holds(frozenset(units), frozenset(attached))


def _of_checkpoint(kubelet: Path) -> set[Name]:
    """The units in kubelet's checkpoint of pods that are there.  Raises TryAgain if it cannot be read."""
    file, pods = kubelet_checkpoint.file(kubelet), kubelet / "pods"
    try:
        there = {*os.listdir(pods)}
        given = [one for one in kubelet_checkpoint.read(kubelet) if one.pod_uid in there]
        return {(one.resource, unit) for one in given for unit in one.ids}
    except OSError as e:
        why, remedy = f"{e.strerror}: {e.filename}", f"in a container, mount {file.parent} and {pods}"
    except ValueError:
        why, remedy = "its format is unknown", "use a version of hpn that knows this kubelet's"
    raise TryAgain(
        f"kubelet's checkpoint {file} cannot be read ({why}), and a device in a slice could be a pod's.  No slice "
        f"changes until it can; {remedy}"
    )


def withheld(offers: Iterable[Offer], held: Holds, allocated: Collection[Name] = ()) -> frozenset[Name]:
    """The units of DRA's offers that pods have from the device plugin."""
    units = {*held.units, *allocated}
    # The ID of a share has a number after its device's.
    alone = held.devices | {one for _, one in units}
    kin = _Kin.of(alone, alone)
    return frozenset(
        (offer.resource.full_name, unit.id)
        for offer in offers
        for alike in [_alike(offer, units)]
        for unit in offer.units
        if (offer.resource.full_name, unit.id) in units
        or _has_other(offer, unit, alike, held.devices)
        or any(kin.has(one, offer.resource.sharing) for one in unit.devices)
    )


def _alike(offer: Offer, units: Collection[Name]) -> frozenset[str]:
    """The devices that a resource of another name gave, by the IDs of units.  A unit has its device's ID; a shared one
    has a number after it."""
    found = set[str]()
    for resource, one in units:
        if resource != offer.resource.full_name:
            found |= {one, one.rpartition("-")[0]}
    return frozenset(found)


def _has_other(offer: Offer, unit: Unit, alike: Collection[str], attached: Collection[str]) -> bool:
    """Whether a pod has the unit's device by another resource, or alone and without a resource."""
    is_alone = offer.resource.sharing is Sharing.EXCLUSIVE
    return any(one.id in alike or (is_alone and one.id in attached) for one in unit.devices)


def without_claimed(offers: Iterable[Offer], published: Collection[str]) -> tuple[Offer, ...]:
    """The plugin's offers without the units that DRA still has: prepared claims, and devices in slices (by id).  Raises
    IoFailure, RecordUnreadable."""
    claimed = [device for claim in claims.prepared() for device in claim.own]
    used = Counter(device.id for device in claimed)
    kin = _Kin.of([device.id for device in claimed if not device.is_shared], [*used])
    return tuple(replace(offer, units=tuple(_left(offer, used, kin, published))) for offer in offers)


@dataclass(frozen=True)
class _Kin:
    """Devices that are in use, and the functions that they are parts of.

    - ``alone``: those that one pod has alone: no other pod may have a part of them.
    - ``above``: no pod may have these alone.
    """

    alone: frozenset[str]
    above: frozenset[str]

    @classmethod
    def of(cls, alone: Iterable[str], used: Iterable[str]) -> Self:
        above = (name for one in used for name in sysfs.relatives(one, has_parts=False).above)
        return cls(frozenset(alone), frozenset(above))

    def has(self, device: Device, sharing: Sharing) -> bool:
        """Whether a relative of the device keeps it from a pod."""
        is_whole = sharing is Sharing.EXCLUSIVE and device.id in self.above
        return is_whole or (device.pf != device.id and device.pf in self.alone)


def _left(offer: Offer, used: Mapping[str, int], kin: _Kin, published: Collection[str]) -> Iterable[Unit]:
    """The units of the offer that the plugin may give.  A claim has one share of a shared device."""
    if not used and not published:
        return offer.units
    shares, sharing = {one.id: _shares(one, used) for one in devices_of(offer.units)}, offer.resource.sharing
    left = list[Unit]()
    for unit in reversed(offer.units):
        taken = [one.id for one in unit.devices if shares[one.id] or one.id in published or kin.has(one, sharing)]
        if not taken:
            left.append(unit)
        for one in taken:
            shares[one] = max(shares[one] - 1, 0)
    return left[::-1]


def _shares(device: Device, used: Mapping[str, int]) -> int:
    return sum(used[name] for name in {device.id, *device.names} if name in used)
