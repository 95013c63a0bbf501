"""Whose a device is.  Only the journal says that, so nothing can contradict it.

There is no index of devices.  A version that does not know it would not keep it, and after a rollback and an upgrade it
would call a device free that a pod has.
"""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.state import durable, journal, places
from base.state.locks import Lock
from base.state.record import Record

_PARENT: Final = re.compile(rb'"parent":(\d+)')


def lock(device: str) -> Lock:
    """Lock the choice of devices, by the bus address of the device or its PF: one lock for all attachments, wherever
    their state is.

    The lock is taken inside an attachment's lock, never around one.  Raises TryAgain, IoFailure.
    """
    return journal.locked(Path(places.COMMON), "device", device)  # guard: device-lock (device -> f"{os.urandom(9)!r}")


@dataclass(frozen=True)
class Use:
    """Who has devices and interfaces, as one look at the journal has found it.

    - ``devices``: who has a device, by its bus address.
    - ``below``: the indexes of the interfaces that records name below theirs.
    """

    state_dirs: Sequence[Path]
    devices: dict[str, Record] = field(default_factory=dict)
    below: set[int] = field(default_factory=set)

    def has_over(self, index: int) -> Record | None:
        """The attachment of which this interface of the host is the master; None for none."""
        dirs = self.state_dirs if index in self.below else ()
        named = (record for one in dirs for record in journal.naming(one, index, "parent"))
        # guard below: over-the-hosts ((r)), over-in-this-boot (of_this_boot)
        return next((r for r in named if r.of_this_boot and r.link.get("parent") == index and _is_the_hosts(r)), None)


def use(state_dirs: Sequence[Path], among: Collection[str]) -> Use:
    """Who has these devices, at least, and what has an interface below it.  Most records are not decoded."""
    found, text = Use(state_dirs), _common(among)
    for state_dir in state_dirs:
        for file, body in journal.texts(state_dir):
            if among and text in body and (record := journal.decoded(file, body)) and (device := record.device):
                found.devices[device] = record
            found.below.update(map(int, _PARENT.findall(body)))
    return found


def _is_the_hosts(record: Record) -> bool:
    """Whether the interface below is the host's, and not one of the pod's own."""
    return not record.link.get("in_container")


def _common(devices: Collection[str]) -> bytes:
    """What is in the record of each of these devices."""
    written = [f'"device":{durable.canonical(device)}' for device in devices]
    return os.path.commonprefix(written).encode()  # noqa: RUF071  # by characters, as is meant


def devices(state_dirs: Iterable[Path]) -> dict[str, Record]:
    """All devices that attachments have: bus address -> record."""
    return {device: r for one in state_dirs for r in journal.records(one) if (device := r.device)}


def owner(state_dirs: Sequence[Path], device: str) -> Record | None:
    """The attachment that has a device, by its bus address or the host's name for its interface; None if none has."""
    named = (r for one in state_dirs for r in journal.naming(one, device)) if device else ()
    # guard below: owner-by-name (netdev), owner-of-a-device (r.device)
    return next((r for r in named if r.device and device in (r.link["device"], r.link.get("netdev"))), None)
