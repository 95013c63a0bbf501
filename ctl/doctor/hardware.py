"""Facts about network controllers and RDMA, from /sys and /dev."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import dcb, gids, rtnl
from base.kernel.dcb import Dcb
from ctl.doctor.model import GidTable, Hardware, Link, Nic
from ctl.doctor.reading import Reader
from hardware import functions, inventory, rdma_devices
from hardware.model import Device, Kind
from hardware.rdma_devices import Hca

_MODE: Final = "/sys/module/ib_core/parameters/netns_mode"
_SHARED: Final = {"Y": "shared", "N": "exclusive"}  # "Share device among net namespaces" (ib_core's parameter)
_RDMA_CM: Final = "/dev/infiniband/rdma_cm"
# Bytes of the configuration space that every user can read.
_HEADER: Final = 64


def hardware(read: Reader) -> Hardware:
    """The machine's devices."""
    mode, rdma_cm = read.at(_MODE), read.at(_RDMA_CM)
    try:
        found = inventory.devices(Path(read.at("/sys")), Path(read.at(f"{inventory.MEMORY}")))
    except OSError as e:
        read.unread["the default route"] = e.strerror or f"{e}"
        found = ()
    hcas: tuple[Hca, ...] = ()
    try:
        hcas = rdma_devices.hcas(Path(read.at("/sys")))
    except OSError as e:
        read.unread |= dict.fromkeys((read.at("/sys"), mode), e.strerror or f"{e}")
    nics = tuple(_nic(read, one, hcas) for one in found if one.kind in (Kind.PF, Kind.VF))
    accelerators = functions.gpus(Path(read.at("/sys")))
    above = {bridge for place in (*accelerators, *(nic.place for nic in nics)) for bridge in place.above[1:]}
    return Hardware(
        nics,
        tuple(_tables(read)),
        rdma_mode=_SHARED.get(read.line(mode), ""),
        rdma_mode_path=mode,
        rdma_cm=read.stat(rdma_cm) is not None,
        rdma_cm_path=rdma_cm,
        gpus=accelerators,
        redirecting={one: _path(read, one) for one in above if redirects(_space(read, one))},
    )


def _nic(read: Reader, device: Device, hcas: tuple[Hca, ...]) -> Nic:
    path = _path(read, device.id)
    net = f"{path}/net/{next(iter(device.netdevs), '')}" if device.netdevs else ""
    space = _space(read, device.id) if device.kind is Kind.PF else b""
    control = device_control(space)
    interrupts = tuple(sorted(int(name) for name in read.names(f"{path}/msi_irqs") if name.isdecimal()))
    irqs = [read.at(f"/proc/irq/{n}/effective_affinity_list") for n in interrupts if device.kind is Kind.PF]
    ours = tuple(hca for hca in hcas if hca.device == device.id)
    # Only NVIDIA's own driver has these files.
    classes = [f"{hca.path}/tc/{port.number}/traffic_class" for hca in ours for port in hca.ports]
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
        ats=translates(space),
        interrupts=interrupts,
        affinity={path: cpus for path in irqs if (cpus := read.ranges(path))},
        traffic_classes={path: value.splitlines()[0] for path in classes if (value := read.line(path))},
        dcb=_dcb(read, net) if device.kind is Kind.PF and net else None,
        place=functions.place(device.id, Path(read.at("/sys"))),
        hcas=ours,
        # sysfs hides an interface of another namespace, and keeps its directory (kobject_rename).
        is_elsewhere=os.path.isdir(f"{path}/net") and not read.names(f"{path}/net"),
    )


def _dcb(read: Reader, net: str) -> Dcb | None:
    """The priorities of an interface; None if it is not in this namespace, or the files are another machine's."""
    name = os.path.basename(net)
    with suppress(OSError):  # most drivers do not support it
        if read.is_this_kernel and socket.if_nametoindex(name) == read.number(f"{net}/ifindex"):
            with rtnl.open_in() as asking:
                return dcb.get(asking, name)
    return None


def _path(read: Reader, address: str) -> str:
    return read.at(f"/sys/bus/pci/devices/{address}")


def _space(read: Reader, address: str) -> bytes:
    """The configuration space; noted as unread if it ends after its header."""
    path = f"{_path(read, address)}/config"
    space = read.data(path) or b""
    if len(space) == _HEADER and os.geteuid():
        read.unread[path] = "only root can read more than its first 64 bytes"
    return space


def _link(read: Reader, path: str, which: str) -> Link | None:
    speed, width = read.line(f"{path}/{which}_link_speed"), read.number(f"{path}/{which}_link_width")
    try:
        found = Link(float(speed.partition(" ")[0]), width or 0)
    except ValueError:  # no PCIe, or "Unknown"
        return None
    return found if found.width and found.width < 64 else None  # 63 and 255 mean unknown


def _tables(read: Reader) -> Iterator[GidTable]:
    """The GID table of each RoCE port."""
    try:
        root = os.open(read.at("/sys"), os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return
    try:
        for name in read.names(read.at("/sys/class/infiniband")):
            with suppress(OSError):  # it moved into a pod meanwhile
                for table in gids.tables(root, name):
                    path = read.at(f"/sys/class/infiniband/{name}/ports/{table.port}/gids")
                    yield GidTable(path, table.length, len(table.entries))
    finally:
        os.close(root)


# The configuration space (PCI Express Base Specification, section 7).  Without CAP_SYS_ADMIN the kernel shows only its
# first 64 bytes, which contain none of this.
_STATUS, _HAS_LIST, _LIST = 0x06, 0x10, 0x34
_EXPRESS: Final = 0x10  # capability: PCI Express
_DEVICE_CONTROL: Final = 8
_RELAXED: Final = 1 << 4
_EXTENDED: Final = 0x100
_ACS: Final = 0x0D  # extended capability: Access Control Services
_ATS: Final = 0x0F  # extended capability: Address Translation Services
_CONTROL: Final = 6  # the offset of the control register in both
_ATS_ENABLED: Final = 1 << 15
# P2P Request Redirect and P2P Completion Redirect; Upstream Forwarding alone has no effect.
_REDIRECTS: Final = 1 << 2 | 1 << 3


def device_control(space: bytes) -> tuple[bool, int] | None:
    """Device Control: whether writes may be reordered, and the largest read request in bytes.  None if it is absent."""
    for at, kind in _capabilities(space):
        if kind == _EXPRESS and (control := _word(space, at + _DEVICE_CONTROL)) is not None:
            return bool(control & _RELAXED), 128 << (control >> 12 & 7)
    return None


def redirects(space: bytes) -> bool:
    """True if ACS sends requests between devices below this bridge through the root complex."""
    return bool(_control(space, _ACS) & _REDIRECTS)


def translates(space: bytes) -> bool | None:
    """True if ATS is enabled: the function asks the IOMMU for addresses in advance.  None if the space is too short."""
    return bool(_control(space, _ATS) & _ATS_ENABLED) if len(space) > _EXTENDED else None


def _control(space: bytes, kind: int) -> int:
    """The control register of an extended capability; 0 without the capability."""
    return next((_word(space, at + _CONTROL) or 0 for at, one in _extended(space) if one == kind), 0)


def _capabilities(space: bytes) -> Iterator[tuple[int, int]]:
    """The offset and ID of each capability."""
    if not (_word(space, _STATUS) or 0) & _HAS_LIST:
        return
    at, seen = (_word(space, _LIST) or 0) & 0xFC, set[int]()
    while at >= 0x40 and at not in seen and (head := _word(space, at)) is not None:
        seen.add(at)
        yield at, head & 0xFF
        at = head >> 8 & 0xFC


def _extended(space: bytes) -> Iterator[tuple[int, int]]:
    at, seen = _EXTENDED, set[int]()
    while at >= _EXTENDED and at not in seen and at + 4 <= len(space):
        seen.add(at)
        (head,) = struct.unpack_from("<I", space, at)
        yield at, head & 0xFFFF
        at = head >> 20 & 0xFFC


def _word(space: bytes, at: int) -> int | None:
    """Sixteen bits; None beyond the end of the space."""
    return int(struct.unpack_from("<H", space, at)[0]) if at + 2 <= len(space) else None
