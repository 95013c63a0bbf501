"""The ports of the node and of its pods, read once."""

import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from cni.kernel import sysfs
from cni.state import journal, places
from cni.state.record import Record
from ctl.traffic.counted import Totals, read
from node.metrics import inside
from node.metrics.ports import Owner, Port, every

# A port's device by name, and its number.
Name = tuple[str, str]


@dataclass(frozen=True)
class Seen:
    """A port at one moment: its state as the kernel names it ("ACTIVE"), who has it, and what it has counted."""

    state: str
    owner: Owner
    totals: Totals

    @property
    def pod(self) -> str:
        """The pod by namespace and name, or by the name that it has without one; empty for nobody."""
        return "/".join(filter(None, self.owner))


@dataclass(frozen=True)
class Sample:
    """All ports, and when they were read, in seconds of the monotonic clock.

    ``wanted``: the devices, ports and pods that were asked for; all if it is empty.
    """

    at: float
    ports: Mapping[Name, Seen]
    wanted: Set[str] = frozenset()

    @property
    def shown(self) -> Mapping[Name, Seen]:
        """The ports that were asked for.  The others are there to compare these with."""
        return {
            name: seen
            for name, seen in self.ports.items()
            if not self.wanted or not self.wanted.isdisjoint(_words(name, seen))
        }


def sample(wanted: Set[str], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Sample:
    """Read all ports.  ``remark`` is told what cannot be seen."""
    records = [record for folder in places.state_dirs() for _, record in journal.files(folder) if record]
    found = every(records, remark, root)
    ports = {(port.rdma_dev, port.number): _seen(port, records, remark) for port in found}
    return Sample(time.monotonic(), ports, wanted)


def _words(name: Name, seen: Seen) -> set[str]:
    """What a person may call it by."""
    return {name[0], "/".join(name), seen.owner[1], seen.pod} - {""}


def _seen(port: Port, records: Iterable[Record], remark: Callable[[str], None]) -> Seen:
    return Seen(port.state.rpartition(": ")[2], port.owner, _totals(port, records, remark))


def _totals(port: Port, records: Iterable[Record], remark: Callable[[str], None]) -> Totals:
    """What it has counted.  A pod's soft-RoCE device is over an interface in the pod, also where the host sees the
    device."""
    found = read(port, port.root)
    for record in records:
        if not found.known and port.rdma_dev in record.rdma_devs:
            with inside.sysfs(record, remark) as root:
                found = read(port, root) if root else found
    return found
