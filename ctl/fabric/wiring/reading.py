"""The wires of all nodes, from the API server's ResourceSlices, and those of this node."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from base.kernel import private_flags, sysfs
from base.protocol.errors import LinkUnavailable
from base.protocol.spec import Json
from base.table import printable
from ctl.api_objects import inside
from ctl.fabric.wiring.findings import Miswired
from ctl.fabric.wiring.groups import Wire
from hardware import inventory, neighbors
from hardware.model import Device, Kind
from hardware.neighbors import Neighbor
from node.dra.slices import content

_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_OURS: Final = "fieldSelector=spec.driver%3Dhpn-cni.io&"
_UNKNOWN: Final = "it does not serve resource.k8s.io/v1, which Kubernetes has from 1.34 on"
_NONE: Final = (
    "no ResourceSlice of hpn-cni.io names a leaf; set lldp: true in the nodes' device files, and by: dra for their "
    "resources"
)
_HERE: Final = (
    "hpn node hears no neighbor on this node; set lldp: true in its device file, then: systemctl reload hpn-node"
)


def of_cluster(kubeconfig: Path) -> list[Wire]:
    """The wires of all nodes.  Raises CniError if the API server gives no slices, or none names a leaf."""
    found = of_operator(kubeconfig)
    if not any(one.leaf for one in found):
        raise LinkUnavailable(_NONE)
    return found


def of_operator(kubeconfig: Path) -> list[Wire]:
    """The wires of all nodes, perhaps without any leaf.  Raises CniError if the API server gives no slices."""
    from base.kubernetes import client  # noqa: PLC0415  # it loads TLS, which this node's own view does not need

    with closing(client.of_operator(kubeconfig)) as server:
        return of_slices(server.listed(_SLICES, _UNKNOWN, _OURS))


def of_slices(slices: Iterable[Json]) -> list[Wire]:
    """The wires of Ethernet PFs, from the slices of any node and generation; of a pool the newest counts."""
    found = dict[tuple[str, str], tuple[int, Wire]]()
    for one in slices:
        spec = inside(one, "spec")
        number, node, devices = inside(spec, "pool").get("generation"), f"{spec.get('nodeName')}", spec.get("devices")
        generation = number if type(number) is int else 0
        for device in devices if isinstance(devices, list) else ():
            attributes = inside(device, "attributes") if isinstance(device, dict) else {}
            at = node, _text(attributes, "pfPciAddress")
            # The VFs of a PF have its wire.
            is_new = at not in found or generation > found[at][0]
            if is_new and at[1] and _text(attributes, "linkType") == "ether":
                found[at] = generation, _wire(node, attributes)
    return [wire for _, wire in found.values()]


def _wire(node: str, attributes: Json) -> Wire:
    pf = _text(attributes, "pf") or _text(attributes, "pfPciAddress")
    rail = inside(attributes, "rail").get("int")
    return Wire(
        node,
        f"{rail}" if type(rail) is int else pf,
        pf,
        _text(attributes, "leaf"),
        _text(attributes, "leafPort"),
        _number(attributes, "leafVlan"),
        _number(attributes, "leafMaxFrame"),
        _number(attributes, "speed"),
    )


def _text(attributes: Json, name: str) -> str:
    found: Any = inside(attributes, name).get("string")
    return printable(found) if isinstance(found, str) else ""


def _number(attributes: Json, name: str) -> int:
    found: Any = inside(attributes, name).get("int")
    return found if type(found) is int else 0


def of_this_node(root: Path = sysfs.SYS) -> list[Wire]:
    """The wires of this node's Ethernet PFs.  Raises LinkUnavailable if hpn node does not hear their neighbors."""
    file = neighbors.file_of(root)
    if not file.exists():
        raise LinkUnavailable(_HERE)
    devices = inventory.devices(root, inventory.MEMORY if root == sysfs.SYS else None)
    return list(of_devices(devices, neighbors.read(file)))


def of_devices(devices: Iterable[Device], heard: Mapping[str, Neighbor]) -> Iterator[Wire]:
    """The wires of the Ethernet PFs among this node's devices; ``heard`` has the neighbors by the PFs' addresses."""
    node = os.uname().nodename
    for one in devices:
        if one.kind is Kind.PF and one.link_type == "ether":
            pf, rail = one.pf_netdev or one.id, content.rail(one)
            wire = Wire(node, pf if rail is None else f"{rail}", pf)
            if at := heard.get(one.id):
                wire = Wire(node, wire.rail, pf, at.leaf, at.leaf_port, at.vlan, at.max_frame, at.speed)
            yield wire


def of_firmware(wires: Iterable[Wire]) -> Iterator[Miswired]:
    """A finding for each PF of this node whose firmware takes the frames."""
    for one in wires:
        if remedy := neighbors.taken_by_firmware(one.pf, private_flags.read(one.pf)):
            evidence = f"{one.node}: an agent in the firmware of {one.pf} takes LLDP's frames"
            yield Miswired("firmware", one.node, (one.rail,), evidence, f"run: {remedy}")
