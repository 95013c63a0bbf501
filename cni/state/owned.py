"""Whose a device is.  Only the journal says that, so nothing can contradict it.

There is no index of devices.  A version that does not know it would not keep it, and after a rollback and an upgrade it
would call a device free that a pod has.
"""

from collections.abc import Collection
from pathlib import Path

from cni.state import journal
from cni.state.record import Record


def devices(state_dir: Path, among: Collection[str] | None = None) -> dict[str, Record]:
    """The devices that attachments have: bus address -> record; all of them, or at least those ``among`` these."""
    records = journal.records(state_dir) if among is None else journal.naming(state_dir, *among, member="device")
    return {device: r for r in records if (device := r.device)}


def owner(state_dir: Path, device: str) -> Record | None:
    """The attachment that has a device, by its bus address or the host's name for its interface; None if none has."""
    named = journal.naming(state_dir, device) if device else ()
    return next((r for r in named if r.device and device in (r.link["device"], r.link.get("netdev"))), None)
