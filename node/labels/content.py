"""The labels of a node, from its offers; pure but for what /sys knows of a link.

A rail is a PF with an RDMA device whose own device, VF or SF the device file offers.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from hardware.model import Device
from hardware.neighbors import Neighbor
from node.dra import DRIVER
from node.dra.slices import content
from node.model import Offer, devices_of

_PROTOCOLS: Final = {"1": "roce", "4": "iwarp"}  # enum rdma_node_type: RDMA_NODE_IB_CA, RDMA_NODE_RNIC
_DIGITS: Final = 16  # of the hash of leaves; a label's value has at most 63 characters
_MEGABIT: Final = 1000  # in a gigabit


def labels(
    offers: Iterable[Offer],
    devices: Mapping[str, Device],
    neighbors: Mapping[str, Neighbor] | None,
    *,
    hca: bool = False,
    root: Path = sysfs.SYS,
) -> Mapping[str, str]:
    """The labels by name.  An empty value is unknown now, as while a link is down: the last one stays.

    ``devices`` are all of the node, by id.  ``neighbors`` are the switch ports of PFs by their addresses; None if
    nothing hears them.  ``hca``: also the label ``rdma=hca``.
    """
    if not (pfs := rails(offers, devices)):
        return {}
    slowest = min(_speed(one, root) for one in pfs)
    found = {
        "rails": f"{len(pfs)}",
        "rdma": _protocol([_protocol_of(one, root) for one in pfs]),
        "speed": f"{slowest}" if slowest > 0 else "",
    }
    ethernet = [one.id for one in pfs if one.link_type == "ether"]
    if neighbors is not None and ethernet:
        leaves = [heard.leaf for one in ethernet if (heard := neighbors.get(one))]
        found["leaves"] = _digest(leaves) if len(leaves) == len(ethernet) else ""
    return {f"{DRIVER}/{name}": value for name, value in found.items()} | ({"rdma": "hca"} if hca else {})


def rails(offers: Iterable[Offer], devices: Mapping[str, Device]) -> Sequence[Device]:
    """The PFs, in the order of their rails' numbers, and then of their names."""
    of = {one.pf for offer in offers for one in devices_of(offer.units)}
    pfs = [device for pf in of if (device := devices.get(pf)) and device.rdma]
    name = {one.id: sysfs.natural(one.pf_netdev or one.id) for one in pfs}
    return sorted(pfs, key=lambda one: (content.rail(one) is None, content.rail(one) or 0, name[one.id]))


def _protocol(found: Sequence[str]) -> str:
    """The protocol of most rails; of as many, the first in the alphabet."""
    return max(sorted(set(found)), key=found.count) if all(found) else ""


def _protocol_of(one: Device, root: Path) -> str:
    if one.link_type == "infiniband":
        return "infiniband"
    kind, _, _ = sysfs.line(root / "class/infiniband" / one.rdma[0].name / "node_type").partition(":")
    return _PROTOCOLS.get(kind, "")


def _speed(one: Device, root: Path) -> int:
    """In Gb/s; 0 if the link is down, or in a pod."""
    return max((sysfs.number(root / "class/net" / name / "speed") // _MEGABIT for name in one.netdevs[:1]), default=0)


def _digest(leaves: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(leaves).encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
