"""The GIDs of an attachment's addresses, the destinations of RDMA traffic: wait for them, find them, count them.

The kernel makes GIDs by itself, a moment after an address is added.  On a RoCE port each address gets one entry of type
RoCE v1 and one of v2.  The port's table has a fixed length, and applications use an index in it ("GID index").
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

from base.kernel import gids
from base.kernel.gids import ROCE_V2, GidEntry, Table
from base.kernel.links import Link
from base.protocol.errors import CheckFailed, GidTableFull, LinkUnavailable
from base.protocol.result import Address
from base.protocol.spec import Json
from base.state.pod import Pod
from base.state.record import Record

if TYPE_CHECKING:
    from cni.features.expected import Expected
    from cni.models import Rdma

_POLL: Final = 0.01


def refuse_full(wanted: "Rdma", devices: Sequence[str], addresses: int) -> None:
    """Raise GidTableFull if RDMA is required and no table has room for an interface with so many addresses, plus the
    kernel's link-local one.  An attachment that does not require RDMA may share a full table."""
    if not wanted.required or not devices:
        return
    root = os.open("/sys", os.O_PATH)
    try:
        roomiest = max(_tables(root, devices), key=lambda t: t.free, default=None)
    finally:
        os.close(root)
    if roomiest:
        need = (addresses + 1) * (len({e.kind for e in roomiest.entries}) or 2)
        if roomiest.free < need:
            raise GidTableFull(f"rdma.required: {_full(roomiest)}; this attachment takes {need} or more")


@dataclass
class Watch:
    """The tables of an attachment's RDMA devices, watched from before the attachment has addresses.

    The tables contain the entries of all namespaces, and two networks may give the same address to interfaces of the
    same name.  So ``theirs`` are the entries from before, which are other pods'.
    """

    root: int
    devices: Sequence[str]
    theirs: frozenset[GidEntry] = field(default_factory=frozenset)

    def find(self, netdev: str, addresses: Sequence[Address], wanted: "Rdma", log: list[str]) -> list[Json]:
        """Wait until all addresses of the pod's interface are in the tables, and return their places.

        If an address is late, raises LinkUnavailable or GidTableFull if RDMA is required, else writes to the log.
        """
        deadline = time.monotonic() + wanted.timeout
        while True:
            tables = _tables(self.root, self.devices)
            now = frozenset(e for table in tables for e in table.entries)
            self.theirs &= now  # an entry that went and came again is ours
            ours = [e for e in now - self.theirs if e.netdev == netdev]
            missing = [a for a in addresses if not any(e.kind == ROCE_V2 and e.gid == gid(a) for e in ours)]
            full = next((table for table in tables if not table.free), None)
            if not tables or not missing or not wanted.timeout:
                break
            if full or time.monotonic() > deadline:
                late = f"{', '.join(self.devices)} got none in {wanted.timeout:g} s (rdma.gidTimeout); {_reason(now)}"
                why = f"{', '.join(map(str, missing))} has no RoCE v2 GID: {_full(full) if full else late}"
                if wanted.required:
                    raise (GidTableFull if full else LinkUnavailable)(f"rdma.required: {why}")
                log.append(why)
                break
            time.sleep(_POLL)
        return [
            {"address": str(a), "device": e.device, "port": e.port, "index": e.index, "type": e.kind}
            for a in addresses
            for e in sorted(ours, key=lambda e: (e.device, e.port, e.index))
            if e.gid == gid(a)
        ]


@contextmanager
def watch(pod: Pod, devices: Sequence[str]) -> Iterator[Watch]:
    """Watch the devices' tables.  Call this before the interface gets addresses.  Raises OSError."""
    with ExitStack() as stack:
        root = stack.enter_context(gids.mount_sysfs(pod.fd)) if devices else -1
        yield Watch(root, devices, frozenset(e for table in _tables(root, devices) for e in table.entries))


def check(record: Record, pod: Pod, link: Link, expected: "Expected") -> None:
    """Raise CheckFailed unless the GIDs of expected addresses are where ADD found them."""
    addresses = {str(ip.address.ip) for ip in expected.ips}
    wanted = [found for found in record.gids if found["address"] in addresses]
    if not wanted:
        return
    devices = sorted({w["device"] for w in wanted})
    with gids.mount_sysfs(pod.fd) as root:
        present = {e for table in _tables(root, devices) for e in table.entries}
    for w in wanted:
        address, place = w["address"], f"GID index {w['index']} of {w['device']} port {w['port']}"
        entry = GidEntry(w["device"], w["port"], w["index"], gid(ip_address(address)), w["type"], link.name)
        if entry not in present:
            raise CheckFailed(f"{address} of {link.name} is not at {place} any more")


def gid(address: Address) -> IPv6Address:
    """Return the address's GID, for IPv4 the IPv4-mapped IPv6 address (ipv6_addr_set_v4mapped)."""
    return IPv6Address(0xFFFF << 32 | int(address)) if isinstance(address, IPv4Address) else address


def _tables(root: int, devices: Sequence[str]) -> list[Table]:
    """Return the tables of the devices that exist.  rdma.py reports missing devices."""
    found = []
    for device in devices:
        try:
            found += gids.tables(root, device)
        except FileNotFoundError:
            continue
    return found


def _reason(entries: frozenset[GidEntry]) -> str:
    """Return why addresses have no GID.

    The kernel gives each RoCE port GIDs of its own.  Only a PF in switchdev mode has none, because its RDMA device
    sends raw Ethernet (raw_eth_profile of mlx5_ib).
    """
    if entries:
        return "is the port ACTIVE? see: rdma link; and the table: /sys/class/infiniband/<device>/ports/<port>/gids"
    return (
        "its table is empty, as that of a PF in switchdev mode, which has no RoCE; see: devlink dev eswitch show "
        "pci/ADDRESS; give pods its VFs or scalable functions, or set the mode legacy"
    )


def _full(table: Table) -> str:
    return (
        f"the GID table of {table.device} port {table.port} has {table.free} of {table.length} entries free; detach "
        "pods or addresses from its interfaces, use another master, or give the pod a VF, with its own table"
    )
