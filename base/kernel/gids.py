"""The GID tables of RDMA devices, read in a namespace's own /sys (Documentation/ABI/stable/sysfs-class-infiniband).

/sys shows the devices of the namespace in which it was mounted.  A pod's /sys needs no mount point: syscalls.py returns
it as a file descriptor.

A table holds the entries of all namespaces.  An entry's interface name is a name in the entry's namespace.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

ROCE_V2: Final = "RoCE v2"


@dataclass(frozen=True)
class GidEntry:
    """One entry in use: the port's table holds ``gid`` at ``index``, because the interface ``netdev`` has the address.
    ``kind`` is "IB/RoCE v1" or ROCE_V2."""

    device: str
    port: int
    index: int
    gid: IPv6Address
    kind: str
    netdev: str


@dataclass(frozen=True)
class Table:
    """A RoCE port's table: its ``length`` in places, and the entries in use."""

    device: str
    port: int
    length: int
    entries: frozenset[GidEntry]

    @property
    def free(self) -> int:
        """The number of places without an entry."""
        return self.length - len(self.entries)


def mount_sysfs(ns_fd: int) -> AbstractContextManager[int]:
    """The namespace's /sys as a directory's descriptor, usable by any thread.  Raises OSError."""
    from base.kernel import syscalls  # noqa: PLC0415  # every ADD imports this module, and few have an RDMA device

    return syscalls.mounted_sysfs(ns_fd)


def tables(root: int, device: str) -> list[Table]:
    """The tables of a device's RoCE ports.  InfiniBand ports are left out: their GIDs do not come from addresses.
    ``root`` is a descriptor of a directory like /sys.  Raises OSError, ENOENT if the device is not there."""
    ports = f"/proc/self/fd/{root}/class/infiniband/{device}/ports"
    return [
        _table(f"{ports}/{port}", device, int(port))
        for port in sorted(os.listdir(ports), key=int)
        if _text(f"{ports}/{port}/link_layer") == "Ethernet"
    ]


def _table(path: str, device: str, port: int) -> Table:
    places = os.listdir(f"{path}/gids")
    entries = set()
    for place in places:
        gid = IPv6Address(_text(f"{path}/gids/{place}") or 0)
        # Reading the attributes of an empty or just removed entry fails with EINVAL.
        kind = int(gid) and _text(f"{path}/gid_attrs/types/{place}")
        netdev = kind and _text(f"{path}/gid_attrs/ndevs/{place}")
        if kind and netdev:
            entries.add(GidEntry(device, port, int(place), gid, kind, netdev))
    return Table(device, port, len(places), frozenset(entries))


def _text(path: str) -> str:
    """A file's text without surrounding white space, decoded like a name; empty if the kernel refuses to return it."""
    with open(path, "rb", buffering=0) as file:
        try:
            return os.fsdecode(file.read(4096)).strip()
        except OSError:
            return ""
