"""The node's NICs: PFs with their VFs and scalable functions, who has them, and what is near them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cni.kernel import devlink, rdma_netlink, sysfs
from cni.kernel.devlink import Family
from cni.state import owned
from cni.state.record import Record
from ctl.hardware import gpus, rdma
from ctl.hardware.gpus import Near
from ctl.hardware.rdma import Hca
from node import inventory
from node.model import Device, Kind
from node.provision import users

_NIC: Final = (Kind.PF, Kind.VF, Kind.SF)
_VFIO: Final = Path("/dev/vfio")
_NOWHERE: Final = Path("/nonexistent")


@dataclass(frozen=True)
class Function:
    """A PF, VF or scalable function, or an interface of software that has an RDMA device of its own.

    - ``total_vfs``: how many VFs a PF can have; None without SR-IOV.
    - ``eswitch``: "legacy" or "switchdev"; empty where the driver does not say.
    - ``hcas``: its RDMA devices that are in this namespace.  ``device.rdma`` has the others' names too.
    - ``holder``: which pod, namespace or process has it, in words; empty for none.
    - ``gpus``: the nearest ones, of a PF.
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
        """How many of its VFs nobody has, and the host does not need."""
        return sum(one.device.kind is Kind.VF and not (one.holder or one.device.needed) for one in self.below)


@dataclass(frozen=True)
class Node:
    """The node.

    - ``functions``: its PFs, and interfaces of software that have an RDMA device of their own.  A VF whose PF is not to
      be seen, as in a virtual machine, stands alone.
    - ``exclusive``: whether an RDMA device is in one network namespace at a time; None where the kernel has no RDMA, or
      does not say.
    - ``unread``: a sentence for each thing that could not be read.
    """

    functions: tuple[Function, ...]
    exclusive: bool | None = None
    unread: tuple[str, ...] = ()


def node(root: Path = sysfs.SYS, state_dirs: Iterable[Path] | None = None) -> Node:
    """The node as it is; ``state_dirs`` are where attachments are looked up, by default all that there are.

    With another ``root`` than this machine's only files are asked.  Raises OSError if the kernel does not say where the
    default route is.
    """
    look = _Look(root, users.state_dirs() if state_dirs is None else state_dirs)
    is_here = root == sysfs.SYS
    devices = inventory.devices(root, inventory.MEMORY if is_here else None)
    return Node(look.tree(devices), _exclusive() if is_here else None, tuple(look.unread))


class _Look:
    """One look, with what is read once for all functions."""

    def __init__(self, root: Path, state_dirs: Iterable[Path]) -> None:
        self._root = root
        self._hcas = rdma.hcas(root)
        self._gpus = gpus.gpus(root)
        self.unread = list[str]()
        self._attached = dict[str, Record]()
        for state_dir in state_dirs:
            self._attached |= self._of_journal(state_dir)
        is_here = root == sysfs.SYS
        self._devlink = _family() if is_here else None
        # Only root can open a VFIO group, and so learn whether another process has.
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
        is_pf = device.kind is Kind.PF
        place = gpus.place(device.pf, self._root)
        return Function(
            device,
            total_vfs=_number(f"{self._root}/bus/pci/devices/{device.id}/sriov_totalvfs") if is_pf else None,
            eswitch=self._eswitch(device.id) if is_pf else "",
            hcas=self._of(device),
            holder=users.user(device.id, self._attached, self._root, self._vfio),
            gpus=gpus.nearest(place, self._gpus) if is_pf else (),
            below=tuple(self._function(one) for one in sorted(below, key=lambda one: (one.kind, one.index))),
        )

    def _of(self, device: Device) -> tuple[Hca, ...]:
        """Its own, and soft-RoCE over one of its interfaces."""
        return tuple(h for h in self._hcas if h.device == device.id or (h.over and h.over in device.netdevs))

    def _of_journal(self, state_dir: Path) -> Mapping[str, Record]:
        try:
            return owned.devices((state_dir,))
        except OSError as e:
            why = (
                f"{state_dir}: {e.strerror}; who has a device is for root to read, so what is called free may be taken"
            )
            self.unread.append(why)  # guard: journal-unread
            return {}

    def _eswitch(self, address: str) -> str:
        # Without privileges nobody is told.
        with suppress(OSError):
            return devlink.eswitch_mode(self._devlink, "pci", address) if self._devlink else ""
        return ""


def _exclusive() -> bool | None:
    with suppress(OSError):
        return rdma_netlink.is_exclusive()
    return None


def _family() -> Family | None:
    with suppress(OSError):
        return devlink.family()
    return None


def _number(path: str) -> int | None:
    text = sysfs.line(path)
    return int(text) if text.isdecimal() else None


def flat(found: Iterable[Function]) -> Iterator[Function]:
    """All of them, each before what is below it."""
    for one in found:
        yield one
        yield from flat(one.below)
