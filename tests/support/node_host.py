"""A host with two VFs, as hpn node offers them to containers."""

from pathlib import Path
from typing import Any

from hardware.model import Device, Kind, RdmaDevice
from node.model import Offer, Resource, Sharing, Unit

PF = "0000:3b:00.0"


def rdma(number: int) -> tuple[RdmaDevice, ...]:
    umad, issm = f"/dev/infiniband/umad{number}", f"/dev/infiniband/issm{number}"
    return (RdmaDevice(f"mlx5_{number}", f"/dev/infiniband/uverbs{number}", (umad,), (issm,)),)


def vf(number: int, **fields: Any) -> Device:
    return Device(f"0000:3b:00.{number}", Kind.VF, pf=PF, **{"driver": "mlx5_core", "rdma": rdma(number)} | fields)


def resource(**fields: Any) -> Resource:
    return Resource(
        **{"prefix": "nvidia.com", "name": "rail-0", "sharing": Sharing.EXCLUSIVE, "selectors": ()} | fields
    )


def exclusive(*devices: Device, **fields: Any) -> Offer:
    return Offer(resource(**fields), tuple(Unit(device.id, (device,)) for device in devices))


def host(tmp_path: Path) -> Path:
    """Make a host with the VFs 1 and 2, their RDMA devices, and all other device nodes that a container may need."""
    nodes = [f"infiniband/{kind}{n}" for kind in ("uverbs", "umad", "issm") for n in (1, 2)]
    nodes += [
        "infiniband/rdma_cm",
        "vfio/vfio",
        "vfio/12",
        "vfio/noiommu-12",
        "vhost-net",
        "net/tun",
        "uio3",
        "vhost-vdpa-0",
    ]
    for node in nodes:
        (tmp_path / "dev" / node).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / node).touch()
    (tmp_path / "dev/infiniband/by-ibdev").mkdir()
    for number in (1, 2):
        (tmp_path / f"sys/bus/pci/devices/0000:3b:00.{number}").mkdir(parents=True)
    return tmp_path


def function(root: Path, number: int = 1) -> Path:
    return root / f"sys/bus/pci/devices/0000:3b:00.{number}"


def nodes(*names: str) -> tuple[str, ...]:
    return tuple(f"/dev/infiniband/{name}" for name in names)
