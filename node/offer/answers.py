"""What a container gets for the IDs that kubelet chose: environment, device nodes, CDI names, and a device information
file for Multus.

The variables are named and filled as sriov-network-device-plugin has them (pkg/resources/pool_stub.go), and are given a
second time under a name that a shell can read: that plugin leaves hyphens in the name.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hardware.model import Device
from node.model import Grant, Offer, Resource, Unit, devices_of
from node.offer import cdi, device_info, needs

ROOT: Final = Path("/")
# Device information files that one container gets at most: Multus takes a file for each of a pod's networks, in this
# order, and each takes a tenth of a millisecond in which nobody else is answered.
_FILES: Final = 256


class Refused(Exception):
    """A container cannot have what kubelet chose for it.  kubelet shows the sentence in the pod's events."""


def grant(offer: Offer, ids: Sequence[str], root: Path = ROOT) -> Grant:
    """What a container gets for these IDs of the offer.  Raises Refused.

    The order is that of the IDs as text, in which Multus gives them to a pod's networks.
    """
    resource = offer.resource
    there = {unit.id: unit for unit in offer.units}
    units = [_unit(resource, there, one) for one in sorted(set(ids))]
    devices = devices_of(units)
    for device in devices:
        _refuse_gone(resource, device, root)  # guard: gone
    own = {device.id: needs.nodes(resource, device, root) for device in devices}
    common = needs.common_nodes(offer, root)
    nodes = tuple(dict.fromkeys(node for group in (*own.values(), common) for node in group))
    for node in nodes:
        _refuse_missing(resource, node, root)  # guard: missing
    for unit in units[:_FILES]:
        device_info.write(resource, unit, root)
    env = _env(resource, devices, root)
    if resource.cdi:
        return Grant(env, cdi=tuple(cdi.name(resource, device) for device in devices if own[device.id] or common))
    return Grant(env, nodes=nodes)


def publish(offers: Sequence[Offer], root: Path = ROOT) -> None:
    """Put into files what others read of the offers: CDI specifications.  Remove what earlier offers have left.

    For whenever the offers have changed.  Raises OSError.
    """
    cdi.write(offers, root)
    device_info.clean(offers, root)


def _unit(resource: Resource, there: Mapping[str, Unit], one: str) -> Unit:
    if one in there:
        return there[one]
    raise Refused(
        f"{resource.full_name}: this node does not have {one!r} now, and kubelet has been told; delete the pod, and "
        "its successor gets another device"
    )


def _refuse_gone(resource: Resource, device: Device, root: Path) -> None:
    sys = f"{root}/sys"
    places = (
        f"{sys}/bus/pci/devices/{device.id}",
        f"{sys}/bus/auxiliary/devices/{device.id}",
        f"{sys}/class/net/{device.id}",
    )
    if not any(map(os.path.exists, places)):
        raise Refused(
            f"{resource.full_name}: device {device.id} was removed from this node; delete the pod, and its successor "
            "gets another device"
        )


def _refuse_missing(resource: Resource, node: str, root: Path) -> None:
    if not os.path.exists(f"{root}{node}"):
        module = needs.module(node)
        raise Refused(f"{resource.full_name}: {node} is missing on this node; load {module}: modprobe {module}")


def _env(resource: Resource, devices: Sequence[Device], root: Path) -> dict[str, str]:
    information = {
        device.id: {need.provider: need.info for need in needs.of(resource, device, root)} for device in devices
    }
    name = f"PCIDEVICE_{resource.prefix}_{resource.name}".replace(".", "_").upper()
    told = {
        "": ",".join(device.id for device in devices),
        "_INFO": json.dumps(information, sort_keys=True, separators=(",", ":")),
    }
    names = (name, re.sub("[^A-Z0-9_]", "_", name))
    return {f"{one}{what}": text for one in dict.fromkeys(names) for what, text in told.items()}
