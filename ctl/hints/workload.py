"""What ADD made for a pod, as a program in the pod needs it: pure, from the attachments that the journal has."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from base.protocol.spec import Json

# The interface that a pod of Kubernetes has of the cluster's own network.
CLUSTERS: Final = "eth0"
_V2: Final = "RoCE v2"


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device that the pod has: ``index`` and ``family`` (4 or 6) are those of its best GID of type
    RoCE v2, IPv4 before IPv6; 0 is the family where there is none, as on InfiniBand."""

    device: str
    number: int
    index: int = 0
    family: int = 0

    def __str__(self) -> str:
        """As NCCL, UCX and NVSHMEM write a port."""
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Workload:
    """A pod's attachments: the names of the ``interfaces``, in their order, the RDMA ``ports`` of all of them, the
    interface ``socket`` by which programs find each other, and the ``traffic_class`` that all devices have; None if
    they differ, or nobody knows."""

    interfaces: tuple[str, ...]
    ports: tuple[Port, ...]
    socket: str = CLUSTERS
    traffic_class: int | None = None

    @property
    def index(self) -> int | None:
        """The GID index that all ports share; None if they differ, or one has no GID."""
        indexes = {port.index if port.family else None for port in self.ports}
        return indexes.pop() if len(indexes) == 1 else None

    @property
    def has_gids(self) -> bool:
        """Whether any port has a GID."""
        return any(port.family for port in self.ports)

    @property
    def only_ipv6(self) -> bool:
        """Whether every port that has a GID has one of an IPv6 address, and none of IPv4."""
        return {port.family for port in self.ports if port.family} == {6}

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the RDMA devices' names begin with, for pods that are not there yet: mlx5 of mlx5_4."""
        return tuple(dict.fromkeys(prefix(port.device) for port in self.ports))


@dataclass(frozen=True)
class Seen:
    """What the pod's namespace tells besides: the ``names`` of its interfaces, None if unknown; and of RDMA devices the
    numbers of their ``ports`` and their traffic ``classes``, where they are known."""

    names: Sequence[str] | None = None
    ports: Mapping[str, Sequence[int]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)


def of(attachments: Iterable[Json], seen: Seen) -> Workload:
    """The workload of a pod's attachments, as cni/attachments.py describes them.

    A device without GIDs has the ports that were seen, or port 1, the first.
    """
    rails = sorted(attachments, key=lambda a: _natural(a["ifname"]))
    found = dict[str, Port]()
    for a in rails:
        for device in a["rdma"]["devices"]:
            gids = [gid for gid in a["rdma"]["gids"] if gid["device"] == device]
            for number in sorted({gid["port"] for gid in gids}) or seen.ports.get(device) or [1]:
                port = _port(device, number, gids)
                found.setdefault(f"{port}", port)
    interfaces, ports = tuple(a["ifname"] for a in rails), tuple(found.values())
    socket = CLUSTERS if seen.names is None or CLUSTERS in seen.names else interfaces[0]
    classes = {seen.classes.get(port.device) for port in ports}
    return Workload(interfaces, ports, socket, classes.pop() if len(classes) == 1 else None)


def prefix(device: str) -> str:
    """The part of an RDMA device's name that its neighbours have too: mlx5 of mlx5_4, rocep of rocep26s0."""
    before, underscore, _ = device.rpartition("_")
    return before if underscore and before else re.match(r"\D*", device)[0] or device  # type: ignore[index]  # matches


def _port(device: str, number: int, gids: Sequence[Json]) -> Port:
    usable = [gid for gid in gids if gid["port"] == number and gid["type"] == _V2]
    choices = sorted((ip_address(gid["address"]).version, gid["index"]) for gid in usable)
    family, index = choices[0] if choices else (0, 0)
    return Port(device, number, index, family)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts hpn2 before hpn10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
