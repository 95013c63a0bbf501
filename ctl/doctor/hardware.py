"""Network controllers and RDMA, from /sys and /dev."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cni.kernel import dcb, gids, rtnl
from cni.kernel.dcb import Dcb
from ctl.doctor import pci_config
from ctl.doctor.model import GidTable, Hardware, Link, Nic
from ctl.doctor.reading import Reader
from ctl.hardware import gpus, rdma
from ctl.hardware.rdma import Hca
from node import inventory
from node.model import Device, Kind

_MODE: Final = "/sys/module/ib_core/parameters/netns_mode"
_SHARED: Final = {"Y": "shared", "N": "exclusive"}  # "Share device among net namespaces" (ib_core's parameter)
_RDMA_CM: Final = "/dev/infiniband/rdma_cm"
# The configuration space is a file of this many bytes at most.
_HEADER: Final = 64


def hardware(read: Reader) -> Hardware:
    """What the machine has."""
    mode, rdma_cm = read.at(_MODE), read.at(_RDMA_CM)
    try:
        found = inventory.devices(Path(read.at("/sys")), Path(read.at(f"{inventory.MEMORY}")))
    except OSError as e:
        read.unread["the default route"] = e.strerror or f"{e}"
        found = ()
    hcas: tuple[Hca, ...] = ()
    try:
        hcas = rdma.hcas(Path(read.at("/sys")))
    except OSError as e:
        read.unread |= dict.fromkeys((read.at("/sys"), mode), e.strerror or f"{e}")
    nics = tuple(_nic(read, one, hcas) for one in found if one.kind in (Kind.PF, Kind.VF))
    accelerators = gpus.gpus(Path(read.at("/sys")))
    above = {bridge for place in (*accelerators, *(nic.place for nic in nics)) for bridge in place.above[1:]}
    return Hardware(
        nics,
        tuple(_tables(read)),
        rdma_mode=_SHARED.get(read.line(mode), ""),
        rdma_mode_path=mode,
        rdma_cm=read.stat(rdma_cm) is not None,
        rdma_cm_path=rdma_cm,
        gpus=accelerators,
        redirecting={one: _path(read, one) for one in above if pci_config.redirects(_space(read, one))},
    )


def _nic(read: Reader, device: Device, hcas: tuple[Hca, ...]) -> Nic:
    path = _path(read, device.id)
    net = f"{path}/net/{next(iter(device.netdevs), '')}" if device.netdevs else ""
    space = _space(read, device.id) if device.kind is Kind.PF else b""
    control = pci_config.device_control(space)
    interrupts = tuple(sorted(int(name) for name in read.names(f"{path}/msi_irqs") if name.isdecimal()))
    ours = tuple(hca for hca in hcas if hca.device == device.id)
    now = _link(read, path, "current")
    mosts = [most for one in (path, os.path.dirname(os.path.realpath(path))) if (most := _link(read, one, "max"))]
    return Nic(
        device,
        path,
        mtu=(net and read.number(f"{net}/mtu")) or 0,
        speed=max((net and read.number(f"{net}/speed")) or 0, 0),
        link=now,
        most=Link(min(m.speed for m in mosts), min(m.width for m in mosts)) if now and mosts else None,
        relaxed=control[0] if control else None,
        read_request=control[1] if control else 0,
        ats=pci_config.translates(space),
        interrupts=interrupts,
        affinity=dict(_affinity(read, interrupts)) if device.kind is Kind.PF else {},
        traffic_classes=dict(_traffic_classes(read, ours)),
        dcb=_dcb(read, net) if device.kind is Kind.PF and net else None,
        place=gpus.place(device.id, Path(read.at("/sys"))),
        hcas=ours,
        # sysfs hides what is in another namespace, and keeps the directory that it is in (kobject_rename).
        is_elsewhere=os.path.isdir(f"{path}/net") and not read.names(f"{path}/net"),
    )


def _affinity(read: Reader, interrupts: tuple[int, ...]) -> Iterator[tuple[str, frozenset[int]]]:
    for number in interrupts:
        path = read.at(f"/proc/irq/{number}/effective_affinity_list")
        if cpus := read.ranges(path):
            yield path, cpus


def _traffic_classes(read: Reader, hcas: tuple[Hca, ...]) -> Iterator[tuple[str, str]]:
    """Only NVIDIA's own driver has these files."""
    for path in (f"{hca.path}/tc/{port.number}/traffic_class" for hca in hcas for port in hca.ports):
        if value := read.line(path):
            yield path, value.splitlines()[0]


def _dcb(read: Reader, net: str) -> Dcb | None:
    """Of an interface that this namespace has too; the files may be another machine's."""
    name = os.path.basename(net)
    with suppress(OSError):  # most drivers do not know it
        if read.is_this_kernel and socket.if_nametoindex(name) == read.number(f"{net}/ifindex"):
            with rtnl.open_in() as asking:
                return dcb.get(asking, name)
    return None


def _path(read: Reader, address: str) -> str:
    return read.at(f"/sys/bus/pci/devices/{address}")


def _space(read: Reader, address: str) -> bytes:
    """The configuration space; noted as not read where it ends with its header."""
    path = f"{_path(read, address)}/config"
    space = read.data(path) or b""
    if len(space) == _HEADER and os.geteuid():
        read.unread[path] = "all but its first 64 bytes is for root"
    return space


def _link(read: Reader, path: str, which: str) -> Link | None:
    speed, width = read.line(f"{path}/{which}_link_speed"), read.number(f"{path}/{which}_link_width")
    try:
        found = Link(float(speed.partition(" ")[0]), width or 0)
    except ValueError:  # no PCIe, or "Unknown"
        return None
    return found if found.width and found.width < 64 else None  # 63 and 255 stand for unknown


def _tables(read: Reader) -> Iterator[GidTable]:
    """Of each RoCE port."""
    try:
        root = os.open(read.at("/sys"), os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return
    try:
        for name in read.names(read.at("/sys/class/infiniband")):
            with suppress(OSError):  # it went to a pod meanwhile
                for table in gids.tables(root, name):
                    path = read.at(f"/sys/class/infiniband/{name}/ports/{table.port}/gids")
                    yield GidTable(path, table.length, len(table.entries))
    finally:
        os.close(root)
