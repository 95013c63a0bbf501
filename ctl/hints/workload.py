"""A pod's attachments, as a program in the pod needs them: pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from base.protocol.spec import Json

# A Kubernetes pod's interface to the cluster network.
CLUSTERS: Final = "eth0"
_V2: Final = "RoCE v2"


@dataclass(frozen=True)
class Port:
    """A port of the pod's RDMA device.

    - ``index``, ``family`` (4 or 6): of its best RoCE v2 GID, IPv4 before IPv6.  ``family`` is 0 without one, as on
      InfiniBand.
    """

    device: str
    number: int
    index: int = 0
    family: int = 0

    def __str__(self) -> str:
        """The port in the notation of NCCL, UCX and NVSHMEM."""
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Workload:
    """A pod's attachments.

    - ``interfaces``: their names, in order.  ``ports``: all RDMA ports.
    - ``socket``: the interface on which programs find each other.
    - ``traffic_class``: of all devices; None if they differ or it is unknown.
    """

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
        """True if any port has a GID."""
        return any(port.family for port in self.ports)

    @property
    def only_ipv6(self) -> bool:
        """True if all ports with a GID have only IPv6 ones."""
        return {port.family for port in self.ports if port.family} == {6}

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Common prefixes of the RDMA devices' names, for pods that do not exist yet: mlx5 for mlx5_4."""
        return tuple(dict.fromkeys(prefix(port.device) for port in self.ports))


@dataclass(frozen=True)
class Seen:
    """Facts from the pod's namespace: the interfaces' ``names``, None if unknown; and for RDMA devices their ``ports``
    and traffic ``classes``, if known."""

    names: Sequence[str] | None = None
    ports: Mapping[str, Sequence[int]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)


def of(attachments: Iterable[Json], seen: Seen) -> Workload:
    """The workload of a pod's attachments, in the format of cni/attachments.py.

    A device without GIDs has the ports in ``seen``, or else port 1.
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
    """The prefix that an RDMA device's name shares with its neighbours: mlx5 for mlx5_4, rocep for rocep26s0."""
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
