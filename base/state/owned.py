"""The owner of each device: an attachment of the journal, or a prepared claim that is not attached yet; and of an
address.

There is no index of devices.  An older version would not maintain one, and after a rollback and an upgrade the index
would call a pod's device free.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.protocol.errors import DeviceInUse
from base.protocol.spec import Json
from base.state import claims, durable, journal, locks, places
from base.state.claims import Claim, Device
from base.state.locks import Lock
from base.state.record import Record

_PARENT: Final = re.compile(rb'"parent":(\d+)')
_DEVICE: Final = re.compile(rb'"device":("[^"]*")')


def lock(device: str) -> Lock:
    """Lock the choice of devices, by the bus address of the device or its PF: one lock for all attachments, in any
    stateDir.  Take it inside an attachment's lock, never around one.  Raises TryAgain, IoFailure."""
    return journal.locked(Path(places.COMMON), "device", device, locks.SHARED)


def rebinding(device: str) -> int:
    """Open the lock of a function's bindings to drivers, for ``base.kernel.pci``.  Every user, and every pod, can open
    the function's directory in /sys, and hold its lock.  Raises OSError, IoFailure, InvalidConfig."""
    path = f"{places.COMMON}/locks/rebind-{device}"
    return durable.with_directory(path, lambda: locks.opened(path))


@dataclass(frozen=True)
class Use:
    """The owners of devices and interfaces, from one scan of the journal.

    - ``devices``: the attachment that owns a device, by its bus address.
    - ``claimed``: the claim that another pod has a device by, and the device, by its ID.
    - ``below``: the indexes of the interfaces that records name below theirs.
    """

    state_dirs: Sequence[Path]
    devices: dict[str, Record] = field(default_factory=dict)
    claimed: Mapping[str, tuple[Claim, Device]] = field(default_factory=dict)
    below: set[int] = field(default_factory=set)

    def attached_over(self, index: int) -> Record | None:
        """The attachment with this interface of the host as its master; None for none."""
        dirs = self.state_dirs if index in self.below else ()
        named = (record for one in dirs for record in journal.naming(one, index, "parent"))
        return next((r for r in named if r.of_this_boot and r.link.get("parent") == index and _is_the_hosts(r)), None)


def use(state_dirs: Sequence[Path], among: Collection[str], claim: str | None = None) -> Use:
    """The owners of these devices, and the interfaces with one over them.  Most records are not decoded.

    ``claim`` is the asking attachment's (Record.claim), empty for none; None asks the journal only.
    """
    written = {durable.canonical(device).encode() for device in among}
    found = Use(state_dirs, claimed={} if claim is None else claims.allocated(among, claim))
    for state_dir in state_dirs:
        for file, body in journal.texts(state_dir):
            is_one = not written.isdisjoint(_DEVICE.findall(body))
            if is_one and (record := journal.decoded(file, body)) and (device := record.device):
                found.devices[device] = record
            found.below.update(map(int, _PARENT.findall(body)))
    return found


def refuse_claimed(
    claimed: Mapping[str, tuple[Claim, Device]], names: Iterable[str], *, prefix: str = "", as_master: bool = False
) -> None:
    """Raise DeviceInUse if another pod has the device of these names by a claim.  A master may have other claims."""
    for name in names:
        claim, device = claimed.get(name, (None, None))
        if claim and device and not (as_master and device.is_shared):
            raise DeviceInUse(
                f"{prefix}Kubernetes allocated {name!r} to {claim.title}, and this attachment is not that claim's; "
                "choose another device, or end the claim's pod"
            )


def _is_the_hosts(record: Record) -> bool:
    """Whether the interface below is the host's, not one of the pod's own."""
    return not record.link.get("in_container")


def devices(state_dirs: Iterable[Path]) -> dict[str, Record]:
    """All devices that attachments own: bus address -> record."""
    return {device: r for one in state_dirs for r in journal.records(one) if (device := r.device)}


def owner(state_dirs: Sequence[Path], device: str) -> Record | None:
    """The attachment that owns a device, by its bus address, or the host's name or altname for its interface; None if
    none does."""
    named = (r for one in state_dirs for r in journal.naming(one, device)) if device else ()
    return next((r for r in named if r.device and device in _names(r.link)), None)


def _names(link: Json) -> tuple[str, ...]:
    return link["device"], link.get("netdev", ""), *(link.get("home") or {}).get("altnames", ())


def of_address(address: object) -> str:
    """The attachments of this boot that have the address on any link, for people; empty for none."""
    begins = f'"{address}/'
    texts = (found for one in places.distinct_state_dirs() for found in journal.texts(one))
    records = (journal.decoded(file, body) for file, body in texts if begins.encode() in body)
    return ", ".join(
        record.title
        for record in records
        if record and record.of_this_boot and begins in durable.canonical(record.result.get("ips", ()))
    )
