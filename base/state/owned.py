"""The owner of each device.  Only the journal records it, so nothing can contradict it.

There is no index of devices.  An older version would not maintain one, and after a rollback and an upgrade the index
would call a pod's device free.
"""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.state import durable, journal, locks, places
from base.state.locks import Lock
from base.state.record import Record

_PARENT: Final = re.compile(rb'"parent":(\d+)')


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

    - ``devices``: the owner of a device, by its bus address.
    - ``below``: the indexes of the interfaces that records name below theirs.
    """

    state_dirs: Sequence[Path]
    devices: dict[str, Record] = field(default_factory=dict)
    below: set[int] = field(default_factory=set)

    def attached_over(self, index: int) -> Record | None:
        """The attachment with this interface of the host as its master; None for none."""
        dirs = self.state_dirs if index in self.below else ()
        named = (record for one in dirs for record in journal.naming(one, index, "parent"))
        return next((r for r in named if r.of_this_boot and r.link.get("parent") == index and _is_the_hosts(r)), None)


def use(state_dirs: Sequence[Path], among: Collection[str]) -> Use:
    """The owners of these devices, at least, and the interfaces with one over them.  Most records are not decoded."""
    # The text with which the member "device" begins in the records of all these devices.
    written = [f'"device":{durable.canonical(device)}' for device in among]
    text = os.path.commonprefix(written).encode()  # noqa: RUF071  # by characters, as intended
    found = Use(state_dirs)
    for state_dir in state_dirs:
        for file, body in journal.texts(state_dir):
            if among and text in body and (record := journal.decoded(file, body)) and (device := record.device):
                found.devices[device] = record
            found.below.update(map(int, _PARENT.findall(body)))
    return found


def _is_the_hosts(record: Record) -> bool:
    """Whether the interface below is the host's, not one of the pod's own."""
    return not record.link.get("in_container")


def devices(state_dirs: Iterable[Path]) -> dict[str, Record]:
    """All devices that attachments own: bus address -> record."""
    return {device: r for one in state_dirs for r in journal.records(one) if (device := r.device)}


def owner(state_dirs: Sequence[Path], device: str) -> Record | None:
    """The attachment that owns a device, by its bus address or the host's name for its interface; None if none does."""
    named = (r for one in state_dirs for r in journal.naming(one, device)) if device else ()
    return next((r for r in named if r.device and device in (r.link["device"], r.link.get("netdev"))), None)
