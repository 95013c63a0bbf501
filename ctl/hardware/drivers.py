"""What verbs say of a device, and neither /sys nor RDMA netlink does: it is known of the drivers here.

| driver | where it says so |
|---|---|
| mlx5_core, mlx5_core.sf | mlx5_ib_query_device, mlx5_query_port_roce (drivers/infiniband/hw/mlx5/main.c) |
| erdma | erdma_query_device, erdma_query_port (drivers/infiniband/hw/erdma/erdma_verbs.c) |
| ice, i40e | irdma_query_device (drivers/infiniband/hw/irdma/verbs.c) |
| soft-RoCE | rxe_init_device_param, rxe_set_mtu (drivers/infiniband/sw/rxe/rxe.c) |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cni.kernel import sysfs
from ctl.hardware.rdma import ROCE, Hca, Port

MTU_4096: Final = 5
_MTUS: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, MTU_4096: 4096}  # enum ib_mtu
_MELLANOX: Final = 0x02C9  # the IEEE's number, which mlx5's firmware says, and not PCI's
_ROCE_HEADERS: Final = 96  # iboe_get_mtu (include/rdma/ib_addr.h)
_RXE_HEADERS: Final = 80  # RXE_MAX_HDR_LENGTH (drivers/infiniband/sw/rxe/rxe_param.h)


@dataclass(frozen=True)
class Identity:
    """Members of struct ibv_device_attr."""

    vendor_id: int
    vendor_part_id: int
    hw_ver: int


def identity(hca: Hca, root: Path = sysfs.SYS) -> Identity | None:
    """Who made the device; None where its driver is not known."""
    if hca.over:
        return Identity(0xFFFFFF, 0, 0)
    path = f"{root}/bus/pci/devices/{sysfs.pci_of(hca.device, root)}"
    vendor, device, revision = (_hexadecimal(f"{path}/{name}") for name in ("vendor", "device", "revision"))
    if hca.driver in ("mlx5_core", "mlx5_core.sf"):
        return Identity(_MELLANOX, device, revision)
    return Identity(vendor, device, revision) if hca.driver in ("erdma", "ice", "i40e") else None


def mtus(hca: Hca, port: Port, root: Path = sysfs.SYS) -> tuple[int, int] | None:
    """The port's max_mtu and active_mtu, numbers of enum ib_mtu; None where its driver is not known, for InfiniBand,
    whose subnet manager chooses, and without an interface in this namespace."""
    netdev = sysfs.line(f"{root}/class/net/{port.netdev}/mtu") if port.netdev else ""
    of_driver = _rxe if hca.over else _BY_DRIVER.get(hca.driver)
    if port.link_layer != ROCE or not netdev.isdecimal() or not of_driver:
        return None
    return of_driver(int(netdev))


def mtu_bytes(number: int) -> int:
    """The bytes of a number of enum ib_mtu."""
    return _MTUS[number]


def _number(size: int) -> int:
    """The largest MTU that is not above so many bytes (ib_mtu_int_to_enum)."""
    return max((number for number, most in _MTUS.items() if most <= size), default=1)


def _mlx5(netdev: int) -> tuple[int, int]:
    return MTU_4096, _number(netdev - _ROCE_HEADERS)


def _erdma(netdev: int) -> tuple[int, int]:
    return _number(netdev), _number(netdev)


def _rxe(netdev: int) -> tuple[int, int]:
    return MTU_4096, _number(netdev - _RXE_HEADERS)


_BY_DRIVER: Final[Mapping[str, Callable[[int], tuple[int, int]]]] = {
    "mlx5_core": _mlx5,
    "mlx5_core.sf": _mlx5,
    "erdma": _erdma,
}


def _hexadecimal(path: str) -> int:
    return int(sysfs.line(path) or "0", 16)
