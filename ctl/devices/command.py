"""hpn devices: the node's NICs, who has them, and what is near them."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cni.kernel import sysfs
from cni.protocol.errors import IoFailure, LinkUnavailable
from cni.protocol.spec import Json
from ctl.command_line import add_state_dir, as_document, parser_for, state_dirs
from ctl.devices import ibdev2netdev, rows, stanza
from ctl.hardware import functions
from ctl.hardware.functions import Function, Node
from ctl.hardware.rdma import Hca
from ctl.screen import Table, text
from node.model import Kind

_MODES = {True: "exclusive, each is in one network namespace", False: "shared, every network namespace sees all"}


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises CniError, OSError where /sys shows no devices, and
    SystemExit for wrong options."""
    options = _parser().parse_args(words)
    sysfs.refuse_hidden(root)
    looked_in = state_dirs(options) if options.state_dir else None
    try:
        node = functions.node(root, looked_in)
    except OSError as e:
        raise IoFailure(f"the kernel does not say where the default route is: {e.strerror}") from e
    found = list(_chosen(node.functions, options.device))
    if options.device and not found:
        there = ", ".join(one.device.id for one in node.functions) or "nothing"
        raise LinkUnavailable(f"no NIC here is called {options.device!r}; there is {there}")
    if options.json:
        return as_document(_document(node, found)), 0
    return text(_parts(node, found, options.verbose, root)), 0


def _parser() -> argparse.ArgumentParser:
    about = "Show the node's NICs with their VFs: who has them, their RDMA devices, the nearest GPUs."
    parser = parser_for("devices", about, "example: hpn devices -v rail0")
    parser.add_argument(
        "device",
        nargs="?",
        default="",
        help="an interface, PCI address or RDMA device, a PF with its VFs; default: all",
    )
    parser.add_argument(
        "-v", "--verbose", action="count", default=0,
        help="ibdev2netdev's lines, and selectors for hpn node and sriov-network-device-plugin; -vv ibdev2netdev -v's",
    )  # fmt: skip
    add_state_dir(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    return parser


def _chosen(found: Iterable[Function], name: str) -> Iterator[Function]:
    """Those with that name, a PF with all that is below it."""
    for one in found:
        if not name or name in _names(one):
            yield one
        else:
            yield from (lower for lower in one.below if name in _names(lower))


def _names(one: Function) -> set[str]:
    return {one.device.id, *one.device.names, *(rdma.name for rdma in one.device.rdma), *(hca.name for hca in one.hcas)}


def _parts(node: Node, found: list[Function], verbose: int, root: Path) -> Iterator[Table | str]:
    if found:
        yield rows.table(found)
    else:
        yield "there is no NIC here"
    if node.exclusive is not None:
        yield f"RDMA devices are {_MODES[node.exclusive]}"
    yield from node.unread
    if verbose:
        hcas = [hca for one in functions.flat(found) for hca in one.hcas]
        yield from _section(ibdev2netdev.lines(hcas, root, verbose=verbose > 1))
        yield from _section(stanza.hpn_node(found).splitlines())
        yield from _section(stanza.sriov_network_device_plugin(found).splitlines())


def _section(lines: Iterable[str]) -> Iterator[str]:
    """The lines with an empty one above them, if there are any."""
    if found := list(lines):
        yield "\n".join(["", *found])


def _document(node: Node, found: Iterable[Function]) -> Json:
    mode = None if node.exclusive is None else "exclusive" if node.exclusive else "shared"
    return {"rdmaNamespaces": mode, "devices": [_described(one) for one in found], "unread": list(node.unread)}


def _described(one: Function) -> Json:
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
        "usedBy": rows.used_by(one),
    }
    if device.kind is not Kind.PF:
        return described | ({"index": device.index} if device.index >= 0 else {})
    if one.total_vfs is not None:
        described["sriov"] = {"numVfs": device.vfs, "totalVfs": one.total_vfs, "free": one.free}
    described |= {"eswitch": one.eswitch, "gpus": [vars(gpu) for gpu in one.gpus]}
    return described | {"below": [_described(replace(lower, below=())) for lower in one.below]}


def _described_hca(hca: Hca) -> Json:
    ports = [
        {"port": p.number, "state": p.state_name, "linkLayer": p.link_layer, "rate": p.rate, "netdev": p.netdev}
        for p in hca.ports
    ]
    return {"device": hca.name, "fwVer": hca.fw_ver, "ports": ports}
