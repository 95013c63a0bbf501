"""RDMA devices with their ports in /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband), and device
attributes that only verbs report, known here per driver.

/sys shows the devices of the namespace in which it was mounted.  An unreadable value is empty, or zero: drivers omit
attributes, and a device may go while it is read.

| driver | source of its attributes |
|---|---|
| mlx5_core, mlx5_core.sf | mlx5_ib_query_device, mlx5_query_port_roce (drivers/infiniband/hw/mlx5/main.c) |
| erdma | erdma_query_device, erdma_query_port (drivers/infiniband/hw/erdma/erdma_verbs.c) |
| ice, i40e | irdma_query_device (drivers/infiniband/hw/irdma/verbs.c) |
| soft-RoCE | rxe_init_device_param, rxe_set_mtu (drivers/infiniband/sw/rxe/rxe.c) |
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.protocol.errors import LinkUnavailable

ROCE: Final = "Ethernet"  # the link layer of RoCE's and iWARP's ports
ACTIVE: Final = 4  # enum ib_port_state
_VIRTUAL: Final = "virtual"  # the kernel's parent for devices of software
_MAPPED: Final = "0000:"  # the prefix of an IPv4 address's GID
_GID: Final = re.compile(r"([0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}")
MTU_4096: Final = 5
MTUS: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, MTU_4096: 4096}  # enum ib_mtu -> bytes
_MELLANOX: Final = 0x02C9  # the IEEE's number, which mlx5's firmware reports, not PCI's
# Bytes that headers take of an interface's MTU: iboe_get_mtu (include/rdma/ib_addr.h), by driver, and
# RXE_MAX_HDR_LENGTH (drivers/infiniband/sw/rxe/rxe_param.h).
_HEADERS: Final = {"mlx5_core": 96, "mlx5_core.sf": 96, "erdma": 0}
_RXE_HEADERS: Final = 80


@dataclass(frozen=True)
class Port:
    """A port.  Properties read rare values on use: each read may make the driver query its firmware.

    - ``path``: its directory in /sys.
    - ``state``: a number of enum ib_port_state, 0 if unknown; ``state_name``: the kernel's word for it, such as
      "ACTIVE".
    - ``link_layer``: "InfiniBand" or "Ethernet".
    - ``netdev``: the interface of its packets, or its bond; empty if that is not in this namespace.
    """

    number: int
    path: str
    state: int = 0
    state_name: str = ""
    link_layer: str = ""
    netdev: str = ""

    @property
    def rate(self) -> str:
        """Such as "100 Gb/sec (4X EDR)"."""
        return sysfs.line(f"{self.path}/rate")

    def number_of(self, attribute: str) -> int:
        """The leading number of an attribute, such as phys_state, lid or cap_mask; 0 without one."""
        return _first(sysfs.line(f"{self.path}/{attribute}"))


@dataclass(frozen=True)
class Hca:
    """An RDMA device.

    - ``path``: its directory in /sys.
    - ``device``: the bus address of its parent device ("0000:3b:00.2", "mlx5_core.sf.4"); empty for software.
    - ``driver``: that device's driver.
    - ``over``: soft-RoCE's interface.
    - ``node_type``: enum rdma_node_type; 1 is an HCA, 4 an iWARP NIC.
    - ``node_guid``, ``sys_image_guid``: "0216:3eff:fe10:f8b0".
    """

    name: str
    path: str
    device: str = ""
    driver: str = ""
    over: str = ""
    node_type: int = 0
    node_guid: str = ""
    sys_image_guid: str = ""
    fw_ver: str = ""
    board_id: str = ""
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True)
class Gid:
    """An entry in use of a port's GID table.

    - ``gid``: eight groups of four digits.
    - ``kind``: "IB/RoCE v1" or "RoCE v2"; ``netdev``: its interface.  Both are empty if the kernel does not report
      them.
    """

    device: str
    port: int
    index: int
    gid: str
    kind: str
    netdev: str

    @property
    def address(self) -> str:
        """The GID's IPv4 address; empty if it has none."""
        return str(IPv4Address(int(IPv6Address(self.gid)) & 0xFFFFFFFF)) if self.gid.startswith(_MAPPED) else ""


def hcas(root: Path = sysfs.SYS) -> tuple[Hca, ...]:
    """All RDMA devices of this namespace; mlx5_10 comes after mlx5_2.  Raises OSError if /sys shows no devices."""
    sysfs.refuse_hidden(root)
    folder = f"{root}/class/infiniband"
    return tuple(_hca(root, name) for name in sorted(sysfs.names(folder), key=sysfs.natural))


def one_of(found: Sequence[Hca], name: str) -> Sequence[Hca]:
    """The device with that name; all for an empty name.  Raises LinkUnavailable, which lists the devices."""
    if not name or any(hca.name == name for hca in found):
        return [hca for hca in found if name in ("", hca.name)]
    there = f"there are {', '.join(hca.name for hca in found)}" if found else "there is none at all"
    raise LinkUnavailable(f"there is no RDMA device {name!r} in this network namespace; {there}")


def gids(hca: Hca, port: Port) -> Iterator[Gid]:
    """The entries of a port's table, in the order of their indexes.  An entry that is empty, or another namespace's, is
    zero or unreadable (EINVAL)."""
    for index in range(places(port, "gids")):
        gid = sysfs.line(f"{port.path}/gids/{index}")
        if _GID.fullmatch(gid) and gid.strip("0:"):
            kind, netdev = (sysfs.line(f"{port.path}/gid_attrs/{what}/{index}") for what in ("types", "ndevs"))
            yield Gid(hca.name, port.number, index, gid, kind, netdev)


def places(port: Port, table: str) -> int:
    """The size of a table of the port: "gids", or "pkeys" for its partition keys."""
    return len(sysfs.names(f"{port.path}/{table}"))


def _hca(root: Path, name: str) -> Hca:
    path = f"{root}/class/infiniband/{name}"
    home = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    is_software = os.path.basename(home) == _VIRTUAL
    return Hca(
        name,
        path,
        device="" if is_software else os.path.basename(home),
        driver=sysfs.link(f"{home}/driver"),
        over=sysfs.line(f"{path}/parent") if is_software else "",
        node_type=_first(sysfs.line(f"{path}/node_type")),
        node_guid=sysfs.line(f"{path}/node_guid"),
        sys_image_guid=sysfs.line(f"{path}/sys_image_guid"),
        fw_ver=sysfs.line(f"{path}/fw_ver"),
        board_id=sysfs.line(f"{path}/board_id"),
        ports=tuple(
            _port(root, path, home, int(name))
            for name in sorted(sysfs.names(f"{path}/ports"), key=sysfs.natural)
            if name.isdecimal()
        ),
    )


def _port(root: Path, hca: str, home: str, number: int) -> Port:
    path = f"{hca}/ports/{number}"
    state = sysfs.line(f"{path}/state")
    return Port(
        number,
        path,
        state=_first(state),
        state_name=state.partition(": ")[2],
        link_layer=sysfs.line(f"{path}/link_layer"),
        netdev=_netdev(root, hca, home, number),
    )


def _netdev(root: Path, hca: str, home: str, number: int) -> str:
    """The interface of the first GID, which is the bond for a device over one; else the same device's interface for
    this port.  ibdev2netdev matches dev_id and dev_port with the port's number."""
    if named := sysfs.line(f"{hca}/ports/{number}/gid_attrs/ndevs/0"):
        return named
    for name in sysfs.names(f"{home}/net"):
        path = f"{root}/class/net/{name}"
        if max(_first(sysfs.line(f"{path}/{file}")) for file in ("dev_id", "dev_port")) == number - 1:
            return name
    over = sysfs.line(f"{hca}/parent")
    return over if over and sysfs.names(f"{root}/class/net/{over}") else ""


def _first(text: str) -> int:
    """The leading number of an attribute, as in "4: ACTIVE" or "0x1"; 0 for none."""
    found = re.match(r"0x([0-9a-fA-F]{1,16})|([0-9]{1,20})", text)
    return int(found[1] or found[2], 16 if found[1] else 10) if found else 0


@dataclass(frozen=True)
class Identity:
    """Members of struct ibv_device_attr."""

    vendor_id: int
    vendor_part_id: int
    hw_ver: int


def identity(hca: Hca, root: Path = sysfs.SYS) -> Identity | None:
    """The device's manufacturer and model; None for an unknown driver."""
    if hca.over:
        return Identity(0xFFFFFF, 0, 0)
    path = f"{root}/bus/pci/devices/{sysfs.pci_of(hca.device, root)}"
    vendor, device, revision = (_first(sysfs.line(f"{path}/{name}")) for name in ("vendor", "device", "revision"))
    if hca.driver in ("mlx5_core", "mlx5_core.sf"):
        return Identity(_MELLANOX, device, revision)
    return Identity(vendor, device, revision) if hca.driver in ("erdma", "ice", "i40e") else None


def mtus(hca: Hca, port: Port, root: Path = sysfs.SYS) -> tuple[int, int] | None:
    """The port's max_mtu and active_mtu, numbers of enum ib_mtu.  None for an unknown driver, without an interface in
    this namespace, and for InfiniBand, whose MTU the subnet manager chooses."""
    netdev = sysfs.line(f"{root}/class/net/{port.netdev}/mtu") if port.netdev else ""
    headers = _RXE_HEADERS if hca.over else _HEADERS.get(hca.driver)
    if port.link_layer != ROCE or not netdev.isdecimal() or headers is None:
        return None
    # The largest MTU within those bytes (ib_mtu_int_to_enum).
    active = max((number for number, most in MTUS.items() if most <= int(netdev) - headers), default=1)
    return active if hca.driver == "erdma" else MTU_4096, active
