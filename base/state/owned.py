"""Who has a device: an attachment of the journal, or a prepared claim, attached or not.

ADD and Prepare ask one question, for every way to name a device, under one lock: ``held``.  It includes the device's
relatives (base/kernel/sysfs.py): a pod with a whole PF also has its VFs and SFs.  Records that cannot be read for a
shortage, and claims that cannot be read, raise, because their devices are not known to be free.

There is no index of devices on disk.  An older version would not maintain one, and after a rollback and an upgrade the
index would call a pod's device free.  A warm worker remembers the records, by the kernel's reports (remembered.py).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from base.kernel import sysfs
from base.kernel.sysfs import Relatives
from base.protocol import location
from base.protocol.errors import DeviceInUse, IoFailure
from base.protocol.spec import Json
from base.state import claims, durable, journal, locks
from base.state.claims import Claim, ClaimedDevice
from base.state.locks import Lock, Mode
from base.state.record import Record


def lock(device: str, timeout: float | None = None, mode: Mode = Mode.ALONE) -> Lock:
    """Lock the choice of devices, by a device's bus address or the name of an interface of software.

    A device and its relatives have one lock, for claims and for attachments.  Users of a master take it
    with Mode.SHARED.  Take it inside an attachment's lock, never around one.  Raises TryAgain after ``timeout`` seconds
    (locks.SHARED by default), IoFailure.
    """
    most = locks.SHARED if timeout is None else timeout
    # A configuration may name no device that is there.  Without a name, the lock is that of many devices.
    return journal.locked(location.state_dir(), "device", sysfs.top(device) or "none", most, mode)


def rebinding(device: str) -> int:
    """Open the lock of a function's bindings to drivers, for ``base.kernel.pci``.  Every user, and every pod, can open
    the function's directory in /sys, and hold its lock.  Raises OSError, IoFailure, InvalidConfig."""
    path = f"{location.state_dir()}/locks/rebind-{device}"
    return durable.with_directory(path, lambda: locks.opened(path))


@dataclass(frozen=True)
class Use:
    """The owners of devices and interfaces, from one scan of the journal.

    - ``devices``: the attachment that owns a device, by its bus address.
    - ``claimed``: the claim that another pod has a device by, and the device, by its ID.
    - ``below``: the indexes of the interfaces that records name below theirs.
    - ``lost``: the files of records that may own any device, because they cannot be read, or one of the devices,
      because they are damaged.
    """

    state_dir: Path | None
    devices: dict[str, Record] = field(default_factory=dict)
    claimed: Mapping[str, tuple[Claim, ClaimedDevice]] = field(default_factory=dict)
    below: set[int] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    def refuse_unknown(self, address: str) -> None:
        """Raise IoFailure if a record that cannot be read may have this device as its master.

        A master stays on the host, so its interface there proves nothing.  A VF counts as no master, or one such record
        would keep each pod from its VF.
        """
        if self.lost and not sysfs.is_vf(sysfs.pci_of(address)):
            raise IoFailure(
                f"{address!r} may be the master of an attachment whose record cannot be read: {self.lost[0]}; if that "
                "pod has ended, remove the file"
            )

    def attached_over(self, index: int) -> Iterator[Record]:
        """The attachments with this interface of the host as their master."""
        named = journal.naming(self.state_dir, index, "parent") if self.state_dir and index in self.below else ()
        return (r for r in named if r.of_this_boot and r.link.get("parent") == index and _is_the_hosts(r))


@dataclass(frozen=True)
class Holder:
    """Another holder of a device or of a relative, for a message: the fact, and the remedy if it is an unusual one.
    ``device`` is the bus address in an attachment's record; empty for a claim."""

    fact: str
    remedy: str = ""
    device: str = ""


def use(state_dir: Path | None, among: Collection[str], claim: str | None = None) -> Use:
    """The owners of these devices, and the interfaces with one over them.  Most records are not decoded.

    Without ``state_dir`` it asks the claims only.
    ``claim`` is the asking attachment's (Record.claim), empty for none; None asks the journal only.
    """
    written = {durable.canonical(device).encode() for device in among}
    found = Use(state_dir, claimed={} if claim is None else claims.allocated(among, claim))
    for file, text in journal.texts(state_dir, found.lost) if state_dir else ():
        if not written.isdisjoint(text.devices):
            record = journal.decoded(file, text.body)
            if not record:
                found.lost.append(file)
            elif device := record.device:
                found.devices[device] = record
        found.below.update(map(int, text.parents))
    return found


def held(use: Use, asked: Relatives, *, is_alone: bool = True) -> Holder | None:
    """The holder that keeps all others from the device now; None if there is none.

    ``is_alone``: whether the asking one wants it alone, not as a master beside others.  ``use`` must be that of
    ``asked.all``.  Raises IoFailure.
    """
    for names, which in (
        (asked.own, ""),
        (asked.above, ", which it is a part of,"),
        (asked.below if is_alone else (), ", a part of it,"),
    ):
        for name in names:
            if record := use.devices.get(name):
                return Holder(f"{name!r}{which} belongs to {record.title}, since {record.time}", device=name)
            claim, device = use.claimed.get(name, (None, None))
            shares = device and device.is_shared and (not is_alone or name in asked.above)
            if claim and not shares and (remedy := _remedy(claim)) is not None:
                return Holder(f"Kubernetes allocated {name!r}{which} to {claim.title}", remedy)
        if use.lost and (away := _away(names)):
            raise IoFailure(
                f"{away!r}{which} has no interface on this host, and may belong to an attachment whose record cannot "
                f"be read: {use.lost[0]}; if that pod has ended, remove the file"
            )
    return None


def _away(names: Iterable[str]) -> str:
    """A device among these names whose interface is not on the host, so that a pod may have it; empty if none is.  A
    virtio NIC's interface belongs to one of its two addresses."""
    found = [one for name in names if (one := sysfs.device(name))]
    there = {sysfs.pci_of(one.address) for one in found if one.netdevs}
    return next((one.address for one in found if sysfs.pci_of(one.address) not in there), "")


def _remedy(claim: Claim) -> str | None:
    """What frees a claim's device, if it is not the end of its pod.  None if the device is free, because the claim has
    ended, and its attachments too."""
    if not claim.ended:
        return ""
    from base.state import gates  # noqa: PLC0415  # few claims have ended

    if any(gates.records(claim.uid)):
        return "the claim has ended, and its pod is not detached yet; if that stays, run hpn gc on the node"
    return None  # hpn node removes it soon


def refuse_held(use: Use, asked: Relatives, *, prefix: str = "", is_alone: bool = True) -> None:
    """Raise DeviceInUse if another one has the device, as ``held`` finds it."""
    if by := held(use, asked, is_alone=is_alone):
        if by.device:
            raise DeviceInUse(f"{prefix}{by.fact}; delete that first", by.device)
        remedy = by.remedy or "choose another device, or end the claim's pod"
        raise DeviceInUse(f"{prefix}{by.fact}, and this attachment is not that claim's; {remedy}")


def _is_the_hosts(record: Record) -> bool:
    """Whether the interface below is the host's, not one of the pod's own."""
    return not record.link.get("in_container")


def devices(state_dir: Path, lost: list[str] | None = None) -> dict[str, Record]:
    """All devices that attachments own: bus address -> record; ``lost`` as in ``journal.texts``.  Raises IoFailure."""
    texts = ((file, text.body) for file, text in journal.texts(state_dir, lost) if text.devices)
    return {device: r for file, body in texts if (r := journal.decoded(file, body)) and (device := r.device)}


def owner(state_dir: Path, device: str) -> Record | None:
    """The attachment that owns a device, by its bus address or one of its interface's names on the host, altnames
    included; None if none does.  Raises IoFailure."""
    named = journal.naming(state_dir, device) if device else ()
    return next((r for r in named if r.device and device in _names(r.link)), None)


def _names(link: Json) -> tuple[str, ...]:
    return link["device"], link.get("netdev", ""), *(link.get("home") or {}).get("altnames", ())


def of_address(address: object) -> str:
    """The attachments of this boot that have the address on any link, for people; empty for none."""
    begins = f'"{address}/'
    texts = journal.texts(location.state_dir())
    records = (journal.decoded(file, text.body) for file, text in texts if begins.encode() in text.body)
    return ", ".join(
        record.title
        for record in records
        if record and record.of_this_boot and begins in durable.canonical(record.result.get("ips", ()))
    )
