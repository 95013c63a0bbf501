"""Device information files: a device plugin writes one per allocated ID, and Multus passes it to the CNI plugin.

Source: network-attachment-definition-client, pkg/utils/devinfo.go.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import files, sysfs
from base.protocol import device_info
from base.protocol.spec import Json
from hardware.model import Device, Kind
from node.model import Offer, Resource, Unit
from node.offer.needs import vdpa_device

FOLDER: Final = "var/run/k8s.cni.cncf.io/devinfo/dp"
_END: Final = "-device.json"
# The ID of a PCI function or scalable function, or of one of its shares.
_ID: Final = re.compile(r"([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\w+\.\w+\.\d+)(-\d+)?")


def write(resource: Resource, unit: Unit, root: Path) -> None:
    """Write the file of a unit with one device that is a PCI function, or below one.

    A failed write does not refuse the device, because the CNI plugin can find the same facts itself.
    """
    address = _address(unit)
    if address:
        body = _body(resource, unit.devices[0], address, root)
        with suppress(OSError), files.open_directory(f"{root / FOLDER}", make=0o755) as folder:
            files.replace(folder, _name(resource, unit.id), device_info.text(body))


def clean(offers: Sequence[Offer], root: Path) -> None:
    """Remove the offered resources' files of devices that are gone.  Raises OSError.

    The file names of "a/b" and of another plugin's "a/b-c" begin alike, so an ID must follow the resource.
    """
    there = {_name(offer.resource, unit.id) for offer in offers for unit in offer.units}
    starts = tuple(_name(offer.resource, "").removesuffix(_END) for offer in offers)
    stale = [
        name
        for name in sysfs.names(f"{root / FOLDER}")
        if name not in there and name.endswith(_END)
        for start in starts
        if name.startswith(start) and _ID.fullmatch(name[len(start) : -len(_END)])
    ]
    for name in stale:
        with suppress(FileNotFoundError):
            os.unlink(root / FOLDER / name)


def _body(resource: Resource, device: Device, address: str, root: Path) -> Json:
    if vdpa := vdpa_device(resource, device, root):
        path = {"path": vdpa.node} if vdpa.node else {}
        known = {"parent-device": vdpa.name, "driver": device.vdpa, **path, "pci-address": address}
        return {"type": "vdpa", "vdpa": known}
    pf = device.pf if device.kind is Kind.VF else ""
    return {"pci": device_info.pci(address, pf, [rdma.name for rdma in device.rdma])}


def _address(unit: Unit) -> str:
    """The PCI address of the unit's one device, or of a scalable function's parent; empty without one."""
    if len(unit.devices) != 1:
        return ""
    device: Device = unit.devices[0]
    return device.pf if device.kind is Kind.SF else device.id if device.kind is not Kind.NETDEV else ""


def _name(resource: Resource, one: str) -> str:
    return f"{resource.full_name}-{one}{_END}".replace("/", "-")
