"""hpn devices: the node's NICs, their users, and nearby GPUs."""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from base.kernel import private_flags, sysfs
from base.protocol.errors import IoFailure, LinkUnavailable
from base.protocol.spec import Json
from ctl.command_line import add_state_dir, as_document, parser_for, state_dir
from ctl.devices import formats
from ctl.screen import Table, text
from hardware import functions, neighbors
from hardware.functions import Function, Node
from hardware.model import Kind
from hardware.neighbors import Neighbor
from hardware.rdma_devices import Hca

_MODES = {True: "exclusive: each is in one network namespace", False: "shared: every network namespace sees all"}


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """The command's output and exit status."""
    options = _parser().parse_args(words)
    sysfs.refuse_hidden(root)
    try:
        node = functions.node(root, state_dir(options))
    except OSError as e:
        raise IoFailure(f"reading the default route from the kernel: {e.strerror}") from e
    found = list(_chosen(node.functions, options.device))
    if options.device and not found:
        there = ", ".join(one.device.id for one in node.functions) or "none"
        raise LinkUnavailable(f"no NIC here is called {options.device!r}; the NICs are: {there}")
    heard = neighbors.read(neighbors.file_of(root))
    if options.json:
        mode = None if node.exclusive is None else "exclusive" if node.exclusive else "shared"
        devices = [_described(one, heard) for one in found]
        return as_document({"rdmaNamespaces": mode, "devices": devices, "unread": list(node.unread)}), 0
    return text(_parts(node, found, heard, options.verbose, root)), 0


def _parser() -> argparse.ArgumentParser:
    about = "Show the node's NICs and VFs: their users, their RDMA devices, the nearest GPUs."
    parser = parser_for("devices", about, "example: hpn devices -v rail0")
    parser.add_argument(
        "device",
        nargs="?",
        default="",
        help="an interface, PCI address or RDMA device; a PF includes its VFs; default: all",
    )
    parser.add_argument(
        "-v", "--verbose", action="count", default=0,
        help="ibdev2netdev's lines, and selectors for hpn node and sriov-network-device-plugin; -vv ibdev2netdev -v's",
    )  # fmt: skip
    add_state_dir(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    return parser


def _chosen(found: Iterable[Function], name: str) -> Iterator[Function]:
    """The devices with that name; a PF with its VFs and subfunctions."""
    for one in found:
        if not name or name in _names(one):
            yield one
        else:
            yield from (lower for lower in one.below if name in _names(lower))


def _names(one: Function) -> set[str]:
    return {one.device.id, *one.device.names, *(rdma.name for rdma in one.device.rdma), *(hca.name for hca in one.hcas)}


def _parts(
    node: Node, found: list[Function], heard: Mapping[str, Neighbor], verbose: int, root: Path
) -> Iterator[Table | str]:
    if found:
        yield table(found, heard)
    else:
        yield "there is no NIC here"
    if node.exclusive is not None:
        yield f"RDMA devices are {_MODES[node.exclusive]}"
    yield from node.unread
    if root == sysfs.SYS and os.path.exists(neighbors.file_of(root)):  # false for users who may not know
        yield from _agents(found)
    if verbose:
        hcas = [hca for one in functions.flat(found) for hca in one.hcas]
        yield from _section(formats.ibdev2netdev(hcas, root, verbose=verbose > 1))
        yield from _section(formats.hpn_node(found).splitlines())
        yield from _section(formats.sriov_network_device_plugin(found).splitlines())


def _agents(found: Iterable[Function]) -> Iterator[str]:
    """A sentence for each PF whose firmware takes the frames that would name its neighbor."""
    for name in (name for one in found if one.device.kind is Kind.PF for name in one.device.netdevs):
        if remedy := neighbors.taken_by_firmware(name, private_flags.read(name)):
            yield f"{name} has no neighbor, because an agent in its firmware takes LLDP's frames; run: {remedy}"


def _section(lines: Iterable[str]) -> Iterator[str]:
    """The lines below an empty one; nothing without lines."""
    if found := list(lines):
        yield "\n".join(["", *found])


def _described(one: Function, heard: Mapping[str, Neighbor]) -> Json:
    device = one.device
    described: Json = {
        "device": device.id,
        "kind": device.kind.value,
        "netdevs": list(device.names),
        "vendor": device.vendor,
        "product": device.product,
        "driver": device.driver,
        "numa": device.numa if device.numa >= 0 else None,
        "linkType": device.link_type,
        "rdma": [_described_hca(hca) for hca in one.hcas] or [{"device": rdma.name} for rdma in device.rdma],
        "usedBy": used_by(one),
    }
    if device.kind is not Kind.PF:
        return described | ({"index": device.index} if device.index >= 0 else {})
    if one.total_vfs is not None:
        described["sriov"] = {"numVfs": device.vfs, "totalVfs": one.total_vfs, "free": one.free}
    neighbor = heard.get(device.id)
    described |= {"eswitch": one.eswitch, "gpus": [vars(gpu) for gpu in one.gpus]}
    described |= {"neighbor": neighbor.shown(neighbors.now()) if neighbor else None}
    return described | {"below": [_described(replace(lower, below=()), heard) for lower in one.below]}


def _described_hca(hca: Hca) -> Json:
    ports = [
        {"port": p.number, "state": p.state_name, "linkLayer": p.link_layer, "rate": p.rate, "netdev": p.netdev}
        for p in hca.ports
    ]
    return {"device": hca.name, "fwVer": hca.fw_ver, "ports": ports}


_COLUMNS: Final = (
    "DEVICE", "NETDEV", "ID", "DRIVER", "NUMA", "VFS", "ESWITCH", "RDMA", "STATE", "LINK", "GPUS", "NEIGHBOR",
    "USED BY",
)  # fmt: skip
_MAY_GO: Final = ("ESWITCH", "GPUS", "NEIGHBOR")  # columns that are omitted if they are empty
_NONE: Final = "-"


def table(found: Iterable[Function], heard: Mapping[str, Neighbor]) -> Table:
    """A line for each device; VFs and subfunctions follow their PF."""
    rows = [row for one in found for row in _tree(one, _phrase(heard.get(one.device.id), neighbors.now()))]
    gone = [n for n, name in enumerate(_COLUMNS) if name in _MAY_GO and all(row[n] == _NONE for row in rows)]
    header, *kept = (tuple(cell for n, cell in enumerate(row) if n not in gone) for row in (_COLUMNS, *rows))
    return Table(header, kept)


def _phrase(neighbor: Neighbor | None, now: int) -> str:
    """The neighbor, with the time at which it was heard if it no longer counts."""
    if not neighbor:
        return ""
    phrase, age = f"{neighbor.leaf} {neighbor.leaf_port}", neighbor.age(now)
    past = "" if neighbor.is_current(now) else f" ({'heard' if neighbor.ttl else 'withdrawn'} {_duration(age)} ago)"
    return f"{phrase}{past}"


def _duration(seconds: int) -> str:
    """ "50 s", "3 min", "7 h"."""
    for unit, size in (("s", 1), ("min", 60)):
        if seconds < 100 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds // 3600} h"


def _tree(one: Function, neighbor: str) -> Iterator[tuple[str, ...]]:
    yield _row(one, one.device.id if one.device.kind in (Kind.PF, Kind.NETDEV) else _title(one), neighbor)
    yield from (_row(lower, f"  {_title(lower)}") for lower in one.below)


def _title(one: Function) -> str:
    return f"{one.device.kind.value}{one.device.index} {one.device.id}"


def _row(one: Function, title: str, neighbor: str = "") -> tuple[str, ...]:
    device = one.device
    ports = [(f"{hca.name}/{port.number}", port) for hca in one.hcas for port in hca.ports]
    hidden = [rdma.name for rdma in device.rdma if rdma.name not in {hca.name for hca in one.hcas}]
    cells = (
        title,
        ", ".join(device.names),
        f"{device.vendor}:{device.product}" if device.vendor else "",
        device.driver,
        f"{device.numa}" if device.numa >= 0 else "",
        _vfs(one),
        one.eswitch,
        ", ".join([name for name, _ in ports] + hidden),
        ", ".join(port.state_name for _, port in ports),
        ", ".join(dict.fromkeys(port.link_layer for _, port in ports)) or device.link_type,
        ", ".join(f"{gpu.address} {gpu.word}" for gpu in one.gpus),
        neighbor,
        used_by(one),
    )
    return tuple(cell or _NONE for cell in cells)


def _vfs(one: Function) -> str:
    """ "2/8, 1 free"."""
    if one.total_vfs is None:
        return ""
    count = f"{one.device.vfs}/{one.total_vfs}"
    return f"{count}, {one.free} free" if one.device.vfs else count


def used_by(one: Function) -> str:
    """A phrase for the device's user; empty for a PF that has none as a whole."""
    if one.holder or one.device.kind in (Kind.PF, Kind.NETDEV):
        return one.holder or ("host" if one.device.reserved else "")
    return "host" if one.device.needed else "free"
