"""What a container needs for its devices: device nodes, and information by provider.

The providers are those of sriov-network-device-plugin (its pkg/infoprovider).  ``obstacles`` reports why this machine
would prevent containers from using RDMA.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.kernel import budget, rdma_netlink, sysfs
from hardware.model import Device
from node.model import Offer, Resource, Sharing, Verbs, devices_of

RDMA_CM: Final = "/dev/infiniband/rdma_cm"
_VFIO: Final = "/dev/vfio/vfio"
_VHOST, _TUN = "/dev/vhost-net", "/dev/net/tun"
_UIO: Final = frozenset({"uio", *sysfs.UIO})  # drivers, as in sriov-network-device-plugin
_MANAGING: Final = frozenset({Verbs.MANAGEMENT, Verbs.ALL})
# The kernel module that makes a device node, by the start of the path.
_MODULES: Final = {
    RDMA_CM: "rdma_ucm",
    "/dev/infiniband/uverbs": "ib_uverbs",
    "/dev/infiniband/": "ib_umad",
    "/dev/vfio/": "vfio-pci",
    "/dev/vhost-vdpa": "vhost_vdpa",
    _VHOST: "vhost_net",
    _TUN: "tun",
    "/dev/uio": "uio_pci_generic",
}


@dataclass(frozen=True)
class Need:
    """One provider's information on a device, and its device nodes."""

    provider: str
    info: dict[str, str]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vdpa:
    """A vDPA device's name, and the path of its node; empty for virtio, which has an interface instead."""

    name: str
    node: str


def of(resource: Resource, device: Device, root: Path) -> list[Need]:
    """All needs of a container for one device of the resource."""
    found = [Need("generic", {"deviceID": device.id})]
    if device.rdma and resource.verbs is not Verbs.NONE:
        found.append(_rdma(resource, device, root))
    if device.driver == sysfs.VFIO:
        found.append(_vfio(device, root))
    if device.driver in _UIO:
        uio = [f"/dev/{name}" for name in sysfs.names(f"{_pci(device, root)}/uio")[:1]]
        found += [Need("uio", {"mount": node}, (node,)) for node in uio]
    if resource.vhost_net:
        found.append(Need("vhost", {"net-mount": _VHOST, "tun-mount": _TUN}, (_VHOST, _TUN)))
    if (vdpa := vdpa_device(resource, device, root)) and vdpa.node:
        found.append(Need("vdpa", {"mount": vdpa.node}, (vdpa.node,)))
    if extra := {**resource.extra.get("*", {}), **resource.extra.get(device.id, {})}:
        found.append(Need("extra", extra))
    return found


def nodes(resource: Resource, device: Device, root: Path) -> tuple[str, ...]:
    """The paths of the device nodes of one device of the resource."""
    return tuple(dict.fromkeys(node for need in of(resource, device, root) for node in need.nodes))


def common_nodes(offer: Offer, root: Path) -> tuple[str, ...]:
    """The device nodes that come with any device of the offer, for Verbs.ALL and Verbs.DIRECTORY."""
    if offer.resource.verbs is Verbs.DIRECTORY:
        folder = root / "dev/infiniband"  # with subdirectories that hold links
        return tuple(f"/dev/infiniband/{name}" for name in sysfs.names(f"{folder}") if not os.path.isdir(folder / name))
    if offer.resource.verbs is not Verbs.ALL:
        return ()
    with_rdma = [device for device in devices_of(offer.units) if device.rdma]
    return tuple(dict.fromkeys(node for device in with_rdma for node in _rdma(offer.resource, device, root).nodes))


def vdpa_device(resource: Resource, device: Device, root: Path) -> Vdpa | None:
    """The vDPA device of a function, if the resource selects vDPA devices."""
    if not device.vdpa or not any(selector.vdpa for selector in resource.selectors):
        return None
    for name in sysfs.names(_pci(device, root)):
        if name.startswith("vdpa"):
            below = sysfs.names(f"{_pci(device, root)}/{name}")
            return Vdpa(name, next((f"/dev/{one}" for one in below if one.startswith("vhost-vdpa-")), ""))
    return None


def module(node: str) -> str:
    """The kernel module that makes a device node."""
    return next((name for start, name in _MODULES.items() if node.startswith(start)), "")


def _rdma(resource: Resource, device: Device, root: Path) -> Need:
    """With rdma_cm for any device, because librdmacm, and so rping and UCX, need it.

    A machine whose devices have no RDMA CM, such as EFA, may lack the node."""
    kinds = {"uverbs": [one.uverbs for one in device.rdma if one.uverbs]}
    if resource.verbs in _MANAGING:
        kinds |= {
            "umad": [n for one in device.rdma for n in one.umad],
            "issm": [n for one in device.rdma for n in one.issm],
        }
    if os.path.exists(f"{root}{RDMA_CM}"):
        kinds["rdma_cm"] = [RDMA_CM]
    info = {kind: ",".join(paths) for kind, paths in kinds.items() if paths}
    info["rdma_dev"] = ",".join(one.name for one in device.rdma)
    if resource.verbs is Verbs.DIRECTORY:
        return Need("rdma", info)
    return Need("rdma", info, tuple(path for paths in kinds.values() for path in paths))


def _vfio(device: Device, root: Path) -> Need:
    """The group's node has another name if the machine has no IOMMU (vfio_group_init)."""
    group = sysfs.link(f"{_pci(device, root)}/iommu_group")
    if sysfs.line(f"{_pci(device, root)}/iommu_group/name") == "vfio-noiommu":
        group = f"noiommu-{group}"
    node = f"/dev/vfio/{group}"
    return Need("vfio", {"mount": _VFIO, "dev-mount": node}, (_VFIO, node))


def _pci(device: Device, root: Path) -> str:
    return f"{root}/sys/bus/pci/devices/{device.id}"


def obstacles(offers: Sequence[Offer], root: Path = Path("/")) -> tuple[str, ...]:
    """Remarks on RDMA on this machine, with remedies, that concern these offers."""
    budget.begin()
    is_exclusive = False
    with suppress(OSError):  # then the mode is unknown
        is_exclusive = bool(rdma_netlink.is_exclusive())
    return remarks(offers, is_exclusive=is_exclusive, has_rdma_cm=os.path.exists(f"{root}{RDMA_CM}"))


def remarks(offers: Sequence[Offer], *, is_exclusive: bool, has_rdma_cm: bool) -> tuple[str, ...]:
    """The remarks, given whether RDMA is in exclusive mode, and whether rdma_cm has its node; pure."""
    wanted = [offer for offer in offers if offer.resource.verbs is not Verbs.NONE]
    with_rdma = [offer for offer in wanted if any(device.rdma for device in devices_of(offer.units))]
    shared = [offer for offer in with_rdma if offer.resource.sharing is Sharing.SHARED]
    found = []
    if is_exclusive and shared:
        found.append(
            f"{_names(shared)}: RDMA is in exclusive mode, so only pods with the host's network can open the devices; "
            "run rdma system set netns shared, while no pod is there, or give pods VFs"
        )
    if not has_rdma_cm and with_rdma:
        found.append(
            f"{_names(with_rdma)}: containers get no {RDMA_CM}, which is missing; if their programs connect by RDMA "
            f"CM, load {module(RDMA_CM)}: modprobe {module(RDMA_CM)}"
        )
    return tuple(found)


def _names(offers: Sequence[Offer]) -> str:
    return ", ".join(offer.resource.full_name for offer in offers)
