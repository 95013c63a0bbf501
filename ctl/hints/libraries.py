"""The variables of each communication library for a pod's interfaces, and their formats: pure.

docs/user/workloads.md gives the source of each variable's meaning, format and version.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from base.table import printable
from ctl.hints.workload import Port, Workload

LIBRARIES: Final = ("nccl", "ucx", "mpi", "nvshmem")

# Releases of NCCL 2: from the first it chooses a GID itself; from the second it also ignores GIDs of other namespaces.
_CHOOSES: Final = 21
_CHOOSES_IN_A_CONTAINER: Final = 26
_GID_INDEX: Final = "NCCL_IB_GID_INDEX"
# UCX truncates longer device names, and then finds no such device (UCT_MD_NAME_MAX in src/uct/api/uct.h).
_LONGEST_OF_UCX: Final = 15


@dataclass(frozen=True)
class Set:
    """A variable to set."""

    name: str
    value: str


@dataclass(frozen=True)
class Unset:
    """A variable to leave unset, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Note:
    """A sentence for people."""

    text: str


Line = Set | Unset | Note

FORMS: Final = ("env", "conf", "yaml")


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
        yield Set("NCCL_IB_DISABLE", "1")
    yield Set("NCCL_SOCKET_IFNAME", workload.socket)
    yield Set("NCCL_IB_HCA", ",".join(workload.prefixes) if template else _exactly(workload.ports))
    yield Set("NCCL_DEBUG", "INFO")
    yield from _class(workload, "NCCL_IB_TC")
    if workload.only_ipv6 and (release is None or release >= _CHOOSES):
        yield Set("NCCL_IB_ADDR_FAMILY", "AF_INET6")
    if template:
        yield from _gid_of_a_template(workload, release)
    else:
        yield from _gid_of_nccl(workload, release)
        yield from _without_gid(workload)


def _gid_of_a_template(workload: Workload, release: int | None) -> Iterator[Line]:
    if workload.has_gids and release is not None and release < _CHOOSES_IN_A_CONTAINER:
        yield Note(f"NCCL 2.{release} may need an {_GID_INDEX}, another in each pod: use 2.{_CHOOSES_IN_A_CONTAINER}")


def _gid_of_nccl(workload: Workload, release: int | None) -> Iterator[Line]:
    """Lines about NCCL's one GID index for all ports."""
    leave, newer = "NCCL chooses the GID itself", f"2.{_CHOOSES_IN_A_CONTAINER}"
    if not workload.has_gids:
        return
    if release is None:
        older = f"needs {workload.index}" if workload.index is not None else f"takes {_differ(workload)}"
        yield Unset(_GID_INDEX, f"{leave} since {newer}; an older one {older}")
    elif release >= _CHOOSES_IN_A_CONTAINER:
        yield Unset(_GID_INDEX, leave)
    elif workload.index is not None:
        yield Set(_GID_INDEX, str(workload.index))
    else:
        yield Note(f"NCCL 2.{release} takes {_differ(workload)}: use {newer}")


def _exactly(ports: Sequence[Port]) -> str:
    """These ports only: without "=", mlx5_1 would also match mlx5_10."""
    return "=" * bool(ports) + _list(ports)


def _ucx(workload: Workload) -> Iterator[Line]:
    yield Set("UCX_NET_DEVICES", _list(workload.ports) or ",".join(workload.interfaces))
    if workload.index is not None:
        yield Set("UCX_IB_GID_INDEX", str(workload.index))
    elif workload.has_gids:
        yield Unset("UCX_IB_GID_INDEX", f"it is {_differ(workload)}; UCX chooses the GID itself")
    yield from _class(workload, "UCX_IB_TRAFFIC_CLASS")
    if long := [port.device for port in workload.ports if len(port.device) > _LONGEST_OF_UCX]:
        yield Note(f"UCX finds no device whose name has more than {_LONGEST_OF_UCX} characters: {', '.join(long)}")
    yield from _without_gid(workload)


def _mpi(workload: Workload) -> Iterator[Line]:
    yield Set("OMPI_MCA_pml", "ucx" if workload.ports else "ob1")
    yield Set("OMPI_MCA_btl_tcp_if_include", ",".join(workload.interfaces))
    yield Set("OMPI_MCA_oob_tcp_if_include", workload.socket)  # Open MPI 4
    yield Set("PRTE_MCA_prte_if_include", workload.socket)  # and 5
    if workload.ports:
        yield from _ucx(workload)


def _nvshmem(workload: Workload) -> Iterator[Line]:
    yield Set("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", workload.socket)
    if not workload.ports:
        yield Set("NVSHMEM_REMOTE_TRANSPORT", "none")
        return
    yield Set("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1")
    yield Set("NVSHMEM_HCA_LIST", _list(workload.ports))
    if workload.prefixes != ("mlx5",) and len(workload.prefixes) == 1:
        yield Set("NVSHMEM_HCA_PREFIX", workload.prefixes[0])
    yield from _class(workload, "NVSHMEM_IB_TRAFFIC_CLASS")
    if workload.only_ipv6:
        yield Set("NVSHMEM_IB_ADDR_FAMILY", "AF_INET6")
    if workload.has_gids:
        yield Unset("NVSHMEM_IB_GID_INDEX", f"NVSHMEM 3.4 chooses the GID itself; there are {_indexes(workload)}")
    yield from _without_gid(workload)


def _class(workload: Workload, name: str) -> Iterator[Line]:
    if workload.traffic_class is not None:
        yield Set(name, str(workload.traffic_class))


def _without_gid(workload: Workload) -> Iterator[Line]:
    if without := [port for port in workload.ports if not port.family]:
        yield Note(f"ADD found no GID on {_list(without)}: InfiniBand needs none; on RoCE see: hpn inspect")


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
    written = {"env": _env, "conf": _conf, "yaml": _yaml}[form]([_printable(line) for line in lines])
    return "".join(f"{line}\n" for line in written)


def _printable(line: Line) -> Line:
    match line:
        case Set(name, value):
            return Set(name, printable(value))
        case Unset(name, why):
            return Unset(name, printable(why))
        case Note(text):
            return Note(printable(text))


def _env(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        match line:
            case Set(name, value):
                yield f"export {name}={shlex.quote(value) if value else ''}"
            case Unset(name, why):
                yield f"unset {name}  # {why}"
            case Note(text):
                yield f"# {text}"


def _conf(lines: Sequence[Line]) -> Iterator[str]:
    """Such a file uses the rest of a line as it is, and allows a comment only at the start of a line."""
    for line in lines:
        match line:
            case Set(name, value):
                yield f"{name}={value}"
            case _:
                yield _comment(line)


def _yaml(lines: Sequence[Line]) -> Iterator[str]:
    if any(isinstance(line, Set) for line in lines):
        yield "env:"
    for line in lines:
        match line:
            case Set(name, value):
                yield f"- name: {name}"
                yield f"  value: {json.dumps(value)}"
            case _:
                yield _comment(line)


def _comment(line: Unset | Note) -> str:
    return f"# {line.text}" if isinstance(line, Note) else f"# leave {line.name} out: {line.why}"
