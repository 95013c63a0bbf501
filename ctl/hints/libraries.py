"""The variables of each communication library for a pod's interfaces, and their formats: pure.

docs/user/rdma.md explains each variable, by these sources:

NCCL 2.18 to 2.30          src/misc/socket.cc, src/misc/utils.cc, src/debug.cc, src/transport/net_ib.cc, net_ib/
UCX 1.22                   src/ucp/core/ucp_context.c, src/uct/api/uct.h, src/uct/ib/base/
Open MPI 4.1.6 and 5.0     docs/tuning-apps/networking/, orte/mca/oob/tcp/oob_tcp_component.c of 4.1.6
PRRTE                      docs/configuration.rst
NVSHMEM 3.4.5              src/include/host/env/env_defs.h, src/modules/, its release notes
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from base.kernel.sysfs import natural
from base.protocol.spec import Json
from base.table import printable

LIBRARIES: Final = ("nccl", "ucx", "mpi", "nvshmem")
FORMS: Final = ("env", "conf", "yaml")

# A Kubernetes pod's interface to the cluster network.
CLUSTERS: Final = "eth0"
_V2: Final = "RoCE v2"
# Releases of NCCL 2: from the first it chooses a GID itself; from the second it also ignores GIDs of other namespaces.
_CHOOSES: Final = 21
_CHOOSES_IN_A_CONTAINER: Final = 26
_GID_INDEX: Final = "NCCL_IB_GID_INDEX"
# UCX truncates longer device names, and then finds no such device (UCT_MD_NAME_MAX in src/uct/api/uct.h).
_LONGEST_OF_UCX: Final = 15


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
    """Facts from the pod's namespace: the interfaces, None if unknown; the known ports and classes of RDMA devices."""

    names: Sequence[str] | None = None
    ports: Mapping[str, Sequence[int]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)


def of(attachments: Iterable[Json], seen: Seen) -> Workload:
    """The workload of a pod's attachments.  A device without GIDs has the ports in ``seen``, or else port 1."""
    rails = sorted(attachments, key=lambda a: natural(a["ifname"]))
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


@dataclass(frozen=True)
class Line:
    """A variable and its value; one to leave unset, and why, if the value is None; only a sentence without a name."""

    name: str = ""
    value: str | None = None
    why: str = ""


def lines(library: str, workload: Workload, release: int | None = None, *, template: bool = False) -> list[Line]:
    """The lines for one of LIBRARIES.

    ``release`` is NCCL's: 26 for version 2.26; None if unknown.  ``template`` restricts them to values that all pods of
    the template share (NCCL only).
    """
    match library:
        case "nccl":
            return list(_nccl(workload, release, template=template))
        case "ucx":
            return list(_ucx(workload))
        case "mpi":
            return list(_mpi(workload))
        case _:
            return list(_nvshmem(workload))


def _nccl(workload: Workload, release: int | None, *, template: bool) -> Iterator[Line]:
    if not workload.ports:
        yield Line("NCCL_IB_DISABLE", "1")
    yield Line("NCCL_SOCKET_IFNAME", workload.socket)
    # Without "=", mlx5_1 would also match mlx5_10.
    exact = "=" * bool(workload.ports) + _list(workload.ports)
    yield Line("NCCL_IB_HCA", ",".join(workload.prefixes) if template else exact)
    yield Line("NCCL_DEBUG", "INFO")
    yield from _class(workload, "NCCL_IB_TC")
    if workload.only_ipv6 and (release is None or release >= _CHOOSES):
        yield Line("NCCL_IB_ADDR_FAMILY", "AF_INET6")
    if not template:
        yield from _gid_of_nccl(workload, release)
        yield from _without_gid(workload)
    elif workload.has_gids and release is not None and release < _CHOOSES_IN_A_CONTAINER:
        newer = f"2.{_CHOOSES_IN_A_CONTAINER}"
        yield Line(why=f"NCCL 2.{release} may need an {_GID_INDEX}, another in each pod: use {newer}")


def _gid_of_nccl(workload: Workload, release: int | None) -> Iterator[Line]:
    """Lines about NCCL's one GID index for all ports."""
    leave, newer = "NCCL chooses the GID itself", f"2.{_CHOOSES_IN_A_CONTAINER}"
    if not workload.has_gids:
        return
    if release is None:
        older = f"needs {workload.index}" if workload.index is not None else f"takes {_differ(workload)}"
        yield Line(_GID_INDEX, why=f"{leave} since {newer}; an older one {older}")
    elif release >= _CHOOSES_IN_A_CONTAINER:
        yield Line(_GID_INDEX, why=leave)
    elif workload.index is not None:
        yield Line(_GID_INDEX, str(workload.index))
    else:
        yield Line(why=f"NCCL 2.{release} takes {_differ(workload)}: use {newer}")


def _ucx(workload: Workload) -> Iterator[Line]:
    yield Line("UCX_NET_DEVICES", _list(workload.ports) or ",".join(workload.interfaces))
    if workload.index is not None:
        yield Line("UCX_IB_GID_INDEX", str(workload.index))
    elif workload.has_gids:
        yield Line("UCX_IB_GID_INDEX", why=f"it is {_differ(workload)}; UCX chooses the GID itself")
    yield from _class(workload, "UCX_IB_TRAFFIC_CLASS")
    if long := [port.device for port in workload.ports if len(port.device) > _LONGEST_OF_UCX]:
        yield Line(why=f"UCX finds no device whose name has more than {_LONGEST_OF_UCX} characters: {', '.join(long)}")
    yield from _without_gid(workload)


def _mpi(workload: Workload) -> Iterator[Line]:
    yield Line("OMPI_MCA_pml", "ucx" if workload.ports else "ob1")
    yield Line("OMPI_MCA_btl_tcp_if_include", ",".join(workload.interfaces))
    yield Line("OMPI_MCA_oob_tcp_if_include", workload.socket)  # Open MPI 4
    yield Line("PRTE_MCA_prte_if_include", workload.socket)  # and 5
    if workload.ports:
        yield from _ucx(workload)


def _nvshmem(workload: Workload) -> Iterator[Line]:
    yield Line("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", workload.socket)
    if not workload.ports:
        yield Line("NVSHMEM_REMOTE_TRANSPORT", "none")
        return
    yield Line("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1")
    yield Line("NVSHMEM_HCA_LIST", _list(workload.ports))
    if workload.prefixes != ("mlx5",) and len(workload.prefixes) == 1:
        yield Line("NVSHMEM_HCA_PREFIX", workload.prefixes[0])
    yield from _class(workload, "NVSHMEM_IB_TRAFFIC_CLASS")
    if workload.only_ipv6:
        yield Line("NVSHMEM_IB_ADDR_FAMILY", "AF_INET6")
    if workload.has_gids:
        yield Line("NVSHMEM_IB_GID_INDEX", why=f"NVSHMEM 3.4 chooses the GID itself; there are {_indexes(workload)}")
    yield from _without_gid(workload)


def _class(workload: Workload, name: str) -> Iterator[Line]:
    if workload.traffic_class is not None:
        yield Line(name, str(workload.traffic_class))


def _without_gid(workload: Workload) -> Iterator[Line]:
    if without := [port for port in workload.ports if not port.family]:
        yield Line(why=f"ADD found no GID on {_list(without)}: InfiniBand needs none; on RoCE see: hpn inspect")


def _differ(workload: Workload) -> str:
    return f"one index for all ports, and theirs differ ({_indexes(workload)})"


def _list(ports: Sequence[Port]) -> str:
    return ",".join(map(str, ports))


def _indexes(workload: Workload) -> str:
    return ", ".join(f"{port} {port.index if port.family else 'none'}" for port in workload.ports)


def write(lines: Sequence[Line], form: str) -> str:
    """The lines in one of FORMS: for a shell, as KEY=VALUE for /etc/nccl.conf, or as ``env`` of a container.

    Unprintable characters are escaped: a newline in a name must not begin a new line.
    """
    head = "env:\n" if form == "yaml" and any(line.value is not None for line in lines) else ""
    return head + "".join(f"{_written(line, form)}\n" for line in lines)


def _written(line: Line, form: str) -> str:
    if line.value is None:
        why = printable(line.why)
        if not line.name:
            return f"# {why}"
        # The other forms allow a comment only at the start of a line.
        return f"unset {line.name}  # {why}" if form == "env" else f"# leave {line.name} out: {why}"
    value = printable(line.value)
    if form == "yaml":
        return f"- name: {line.name}\n  value: {json.dumps(value)}"
    # /etc/nccl.conf uses the rest of the line as it is.
    return f"export {line.name}={shlex.quote(value) if value else ''}" if form == "env" else f"{line.name}={value}"
