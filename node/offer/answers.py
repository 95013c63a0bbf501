"""What a container gets for its IDs: environment, device nodes or CDI names, and device information files for Multus.

Names and values of the variables are those of sriov-network-device-plugin (pkg/resources/pool_stub.go).  Since its
names may have hyphens, each variable comes a second time under a name that a shell can read.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.kernel import sysfs
from base.protocol.errors import CniError
from base.protocol.location import CLAIMS_DIR
from hardware.model import Device, Kind
from node.model import Grant, Offer, Resource, Sharing, devices_of
from node.offer import cdi, device_info, needs

ROOT: Final = Path("/")
# Device information files per container: Multus reads one for each network of a pod, in this order.  Each takes a tenth
# of a millisecond, during which other calls wait.
_FILES: Final = 256


class AllocateRefused(Exception):
    """A container cannot get the allocated device; kubelet shows the message in the pod's events."""


def grant(offer: Offer, ids: Sequence[str], root: Path = ROOT) -> Grant:
    """What a container gets for these IDs of the offer.  Raises AllocateRefused.

    The IDs are sorted as text, the order in which Multus assigns them to a pod's networks.
    """
    resource = offer.resource
    there = {unit.id: unit for unit in offer.units}
    if missing := sorted(set(ids) - there.keys()):
        raise AllocateRefused(
            f"{resource.full_name}: this node does not have {missing[0]!r} now, and kubelet knows; delete the pod, and "
            "its successor gets another device"
        )
    units = [there[one] for one in sorted(set(ids))]
    devices = devices_of(units)
    for device in devices:
        refuse_gone(resource, device, root)
        if device.needed and resource.sharing is Sharing.EXCLUSIVE:
            raise AllocateRefused(
                f"{resource.full_name}: the host needs device {device.id} now: {device.needed}; delete the pod, and "
                "its successor gets another device"
            )
    _refuse_claimed(resource, devices, root)
    own = {device.id: needs.nodes(resource, device, root) for device in devices}
    common = needs.common_nodes(offer, root)
    nodes = tuple(dict.fromkeys(node for group in (*own.values(), common) for node in group))
    for node in nodes:
        refuse_missing(resource, node, root)
    for unit in units[:_FILES]:
        device_info.write(resource, unit, root)
    env = environment(resource.full_name, information(resource, devices, root))
    if resource.cdi:
        return Grant(env, cdi=tuple(cdi.name(resource, device) for device in devices if own[device.id] or common))
    return Grant(env, nodes=nodes)


def publish(offers: Sequence[Offer], root: Path = ROOT) -> None:
    """Write the CDI specifications of the offers, and remove files of earlier offers.

    To be called after each change of the offers.  Raises OSError.
    """
    cdi.write(offers, root)
    device_info.clean(offers, root)


def refuse_gone(resource: Resource, device: Device, root: Path = ROOT) -> None:
    """Raise AllocateRefused if the device is not on this node."""
    sys = f"{root}/sys"
    places = (
        f"{sys}/bus/pci/devices/{device.id}",
        f"{sys}/bus/auxiliary/devices/{device.id}",
        f"{sys}/class/net/{device.id}",
    )
    if not any(map(os.path.exists, places)):
        raise AllocateRefused(
            f"{resource.full_name}: device {device.id} was removed from this node; delete the pod, and its successor "
            "gets another device"
        )


def _refuse_claimed(resource: Resource, devices: Sequence[Device], root: Path) -> None:
    """Raise AllocateRefused if a prepared claim has one of the devices, or a relative of it.

    No event reports a claim, so the offer may be older.

    An attachment is ADD's concern: it ends with its pod, and a pod that this refuses never starts.
    """
    if not any(one.endswith(".json") for one in sysfs.names(CLAIMS_DIR)):
        return
    from base.state import owned  # noqa: PLC0415  # most nodes have no claims

    is_alone = resource.sharing is Sharing.EXCLUSIVE
    for device in devices:
        try:
            is_interface = device.kind is Kind.NETDEV
            asked = sysfs.relatives_of(device.id, root / "sys", is_interface=is_interface, has_parts=is_alone)
            by = owned.held(owned.use(None, asked.all, ""), asked, is_alone=is_alone)
        except (CniError, OSError) as e:
            why = e.msg if isinstance(e, CniError) else f"{e}"
            raise AllocateRefused(f"{resource.full_name}: device {device.id} may be a claim's: {why}") from e
        if by:
            remedy = by.remedy or "delete the pod, and its successor gets another device"
            raise AllocateRefused(f"{resource.full_name}: device {device.id}: {by.fact}; {remedy}")


def refuse_missing(resource: Resource, node: str, root: Path = ROOT) -> None:
    """Raise AllocateRefused if the device node does not exist."""
    if not os.path.exists(f"{root}{node}"):
        module = needs.module(node)
        raise AllocateRefused(f"{resource.full_name}: {node} is missing on this node; load {module}: modprobe {module}")


def information(resource: Resource, devices: Sequence[Device], root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """What a container learns of devices, by their ids and the providers."""
    return {device.id: {need.provider: need.info for need in needs.of(resource, device, root)} for device in devices}


def environment(resource: str, of_devices: Mapping[str, Any]) -> dict[str, str]:
    """The variables for devices of a resource, by its full name, with their ``information``."""
    name = f"PCIDEVICE_{resource}".replace("/", "_").replace(".", "_").upper()
    values = {
        "": ",".join(of_devices),
        "_INFO": json.dumps(of_devices, sort_keys=True, separators=(",", ":")),
    }
    names = (name, re.sub("[^A-Z0-9_]", "_", name))
    return {f"{one}{what}": text for one in dict.fromkeys(names) for what, text in values.items()}
