"""The node's NICs: PFs with their VFs and scalable functions, their holders, and the nearest GPUs.

Distances have the names of ``nvidia-smi topo -m``.  PIX is through one switch, PXB through several.  PHB is through the
processor's host bridge, NODE through several host bridges of one NUMA node, SYS between NUMA nodes.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeVar

from base.kernel import devlink, rdma_netlink, sysfs
from base.protocol import location
from base.protocol.errors import CniError
from base.state import owned
from base.state.record import Record
from hardware import inventory, rdma_devices, users
from hardware.model import Device, Kind
from hardware.rdma_devices import Hca

_CLASSES: Final = ("0x0302", "0x0380", "0x12")  # 3D controllers, other displays, processing accelerators
_VGA: Final = "0x0300"
_MAKERS: Final = frozenset({"0x10de", "0x1002", "0x8086"})  # others' VGA controllers are the BMC's or a guest's
_ORDER: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NIC: Final = (Kind.PF, Kind.VF, Kind.SF)
_VFIO: Final = Path("/dev/vfio")
_NOWHERE: Final = Path("/nonexistent")
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """A PCI function's place.  ``above`` are the bridges above it from the host bridge down ("pci0000:3a",
    "0000:3a:00.0").  ``numa`` is its NUMA node, -1 if the machine does not report one."""

    address: str
    above: tuple[str, ...]
    numa: int


@dataclass(frozen=True)
class Near:
    """A GPU, and its distance: a name of ``nvidia-smi topo -m``."""

    address: str
    word: str


def gpus(root: Path = sysfs.SYS) -> tuple[Place, ...]:
    """The GPUs and accelerators, without their VFs."""
    folder = f"{root}/bus/pci/devices"
    return tuple(place(address, root) for address in sysfs.names(folder) if _is_gpu(f"{folder}/{address}"))


def place(address: str, root: Path = sysfs.SYS) -> Place:
    """The place of the PCI function at an address."""
    parts = os.path.realpath(f"{root}/bus/pci/devices/{address}").split("/")
    begin = next((number for number, part in enumerate(parts) if part.startswith("pci")), len(parts) - 1)
    return Place(address, tuple(parts[begin:-1]), sysfs.numa_node(address, root))


def root(address: str) -> str:
    """The root of a PCI function, "pci0000:3a"; empty if it is unknown."""
    return next(iter(place(address).above), "")


def nearest(one: Place, others: Iterable[Place]) -> tuple[Near, ...]:
    """The nearest of the others; none if that is on another NUMA node."""
    found = [Near(other.address, relation(one, other)) for other in others]
    best = min((near.word for near in found), key=_ORDER.index, default="SYS")
    return tuple(near for near in found if near.word == best != "SYS")


def relation(one: Place, other: Place) -> str:
    """The distance of two functions."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.above, other.above, strict=False)))
    if common > 1:
        # A switch is an upstream port, and below it a downstream port for each of its devices.
        return "PIX" if max(len(one.above), len(other.above)) - common <= 1 else "PXB"
    if common:
        return "PHB"
    return "NODE" if one.numa == other.numa >= 0 else "SYS"


def _is_gpu(path: str) -> bool:
    code = sysfs.line(f"{path}/class")
    if code.startswith(_VGA) and sysfs.line(f"{path}/vendor") not in _MAKERS:
        return False
    return code.startswith((_VGA, *_CLASSES)) and not sysfs.link(f"{path}/physfn")


@dataclass(frozen=True)
class Function:
    """A PF, VF or scalable function, or an interface of software with an RDMA device of its own.

    - ``total_vfs``: the most VFs that a PF supports; None without SR-IOV.
    - ``eswitch``: "legacy" or "switchdev"; empty if the driver does not report it.
    - ``hcas``: its RDMA devices in this namespace.  ``device.rdma`` also names those in others.
    - ``holder``: the pod, namespace or process that holds it, for people; empty for none.
    - ``gpus``: a PF's nearest ones.
    - ``below``: a PF's VFs and scalable functions.
    """

    device: Device
    total_vfs: int | None = None
    eswitch: str = ""
    hcas: tuple[Hca, ...] = ()
    holder: str = ""
    gpus: tuple[Near, ...] = ()
    below: tuple["Function", ...] = ()

    @property
    def free(self) -> int:
        """The number of its VFs that nothing holds and the host does not need."""
        return sum(one.device.kind is Kind.VF and not (one.holder or one.device.needed) for one in self.below)


@dataclass(frozen=True)
class Node:
    """The node.

    - ``functions``: its PFs, and interfaces of software with an RDMA device of their own.  A VF without a visible PF,
      as in a virtual machine, stands alone.
    - ``exclusive``: whether an RDMA device is in one network namespace at a time; None if the kernel has no RDMA, or
      does not report it.
    - ``unread``: a sentence for each thing that could not be read.
    """

    functions: tuple[Function, ...]
    exclusive: bool | None = None
    unread: tuple[str, ...] = ()


def node(root: Path = sysfs.SYS, journal: Path | None = None) -> Node:
    """The node's current state; ``journal`` is the state directory, if it is not the default one.

    With a ``root`` other than this machine's, only files are read.  Raises OSError if the kernel does not report the
    default route.
    """
    scan = _Scan(root, journal or location.state_dir())
    is_here = root == sysfs.SYS
    devices = inventory.devices(root, inventory.MEMORY if is_here else None)
    return Node(scan.tree(devices), _if_known(rdma_netlink.is_exclusive) if is_here else None, tuple(scan.unread))


class _Scan:
    """One scan, with the data that all functions share."""

    def __init__(self, root: Path, journal: Path) -> None:
        self._root = root
        self._hcas = rdma_devices.hcas(root)
        self._gpus = gpus(root)
        self.unread = list[str]()
        self._attached = dict[str, Record]()
        try:
            self._attached |= owned.devices(journal)
        except (CniError, OSError) as e:
            why = f"{journal}: {getattr(e, 'strerror', e)}; only root can read the devices' owners"
            self.unread.append(f"{why}, so a free device may be taken")
        is_here = root == sysfs.SYS
        self._devlink = _if_known(devlink.family) if is_here else None
        # Only root can open a VFIO group, and so learn whether another process has it open.
        self._vfio = _VFIO if is_here and os.geteuid() == 0 else _NOWHERE

    def tree(self, devices: tuple[Device, ...]) -> tuple[Function, ...]:
        tops = {device.id for device in devices if device.kind is Kind.PF}
        nics = [device for device in devices if device.kind in _NIC]
        alone = [device for device in nics if device.kind is not Kind.PF and device.pf not in tops]
        soft = [device for device in devices if device.kind is Kind.NETDEV and self._of(device)]
        below = {pf: [d for d in nics if d.pf == pf and d.kind is not Kind.PF] for pf in tops}
        return tuple(self._function(device, below.get(device.id, ())) for device in nics if device.id in tops) + tuple(
            self._function(device) for device in (*alone, *soft)
        )

    def _function(self, device: Device, below: Iterable[Device] = ()) -> Function:
        is_pf, family = device.kind is Kind.PF, self._devlink
        eswitch = _mode(family, device.id) if family and is_pf else ""
        total = sysfs.number(f"{self._root}/bus/pci/devices/{device.id}/sriov_totalvfs") if is_pf else -1
        at = place(device.pf, self._root)
        return Function(
            device,
            total_vfs=total if total >= 0 else None,
            eswitch=eswitch,
            hcas=self._of(device),
            holder=users.user(device.id, self._attached, self._root, self._vfio),
            gpus=nearest(at, self._gpus) if is_pf else (),
            below=tuple(self._function(one) for one in sorted(below, key=lambda one: (one.kind, one.index))),
        )

    def _of(self, device: Device) -> tuple[Hca, ...]:
        """Its own RDMA devices, and soft-RoCE over one of its interfaces."""
        return tuple(h for h in self._hcas if h.device == device.id or (h.over and h.over in device.netdevs))


def eswitch_mode(pf: Device) -> str:
    """The mode of a PF's switch, "legacy" or "switchdev"; empty if it has none, or the kernel does not report it."""
    family = _if_known(devlink.family) if pf.kind is Kind.PF else None
    return _mode(family, pf.id) if family else ""


def _mode(family: devlink.Family, address: str) -> str:
    # Without privileges, the kernel refuses to answer.
    return _if_known(lambda: devlink.eswitch_mode(family, "pci", address)) or ""


def _if_known(read: Callable[[], T]) -> T | None:
    """The result, or None if the kernel refuses or has no answer."""
    with suppress(OSError):
        return read()
    return None


def flat(found: Iterable[Function]) -> Iterator[Function]:
    """All functions, each before those below it."""
    for one in found:
        yield one
        yield from flat(one.below)
