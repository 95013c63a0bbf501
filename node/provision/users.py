"""Who has a VF or a PF: a pod, another namespace, a process that drives it; and what the host needs one for.

Nothing is asked of kubelet: between its Allocate and the pod's ADD a VF is free.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cni.kernel import sysfs
from cni.kernel.rtnl import Rtnl
from cni.protocol.errors import CniError
from cni.protocol.location import STATE_DIR
from cni.state import owned, places
from cni.state.record import Record

JOURNAL: Final = Path(STATE_DIR)
_VFIO: Final = Path("/dev/vfio")


def owners() -> Mapping[str, Record]:
    """The attachments that have a device, by its bus address."""
    return owned.devices(state_dirs())


def state_dirs() -> list[Path]:
    """Where journals are: the default, and each other ``stateDir`` that an ADD has noted.  Each is there once, also if
    several paths lead to it."""
    found = dict[Path, None]()
    for state_dir in (JOURNAL, *places.state_dirs()[1:]):  # guard: elsewhere (*places)
        with suppress(OSError):  # it is gone
            found[state_dir.resolve(strict=state_dir != JOURNAL)] = None
    return list(found)


def user(address: str, attached: Mapping[str, Record], root: Path = sysfs.SYS, vfio: Path = _VFIO) -> str:
    """Which pod or process has the function, in words; empty for none."""
    if record := attached.get(address):
        return record.whose
    path = f"{root}/bus/pci/devices/{address}"
    # sysfs hides what is in another namespace, and keeps the directory that it is in (kobject_rename).
    if os.path.isdir(f"{path}/net") and not sysfs.names(f"{path}/net"):  # guard: its-interface
        return "a namespace that its interface is in"
    # guard below: its-rdma-device (set(sysfs.rdma_names(address, root)) -> set())
    if set(sysfs.rdma_names(address, root)) - set(sysfs.names(f"{path}/infiniband")):
        return "a namespace that its RDMA device is in"
    # Drivers of vendors are VFIO's too, and without an IOMMU the node has another name (vfio_group_init).
    group = sysfs.link(f"{path}/iommu_group")
    for node in (vfio / group, vfio / f"noiommu-{group}") if group else ():
        if _is_open(node):
            return f"a process that has {node} open"
    driver = sysfs.link(f"{path}/driver")
    # Nothing tells whether a process has opened it.
    return f"a process that may use it by {driver}" if driver in sysfs.UIO else ""


def needed(address: str, host: Rtnl, above: Mapping[int, str]) -> str:
    """What the host or a pod needs a function's interface for, in words; empty for nothing.

    ``above``: what pods have over the host's interfaces (over.py).
    """
    # It is hardly ever asked.
    from cni.kinds import needed as refusing  # noqa: PLC0415

    for name in sysfs.names(f"{sysfs.SYS}/bus/pci/devices/{address}/net"):
        link = host.link(name)
        if link and link.index in above:
            return f"{name!r} is the master of {above[link.index]}"
        try:
            if link:
                refusing.refuse(link, address, owned.Use(()), host, other="remove the route first")
        except CniError as e:
            return e.msg
    return ""


def _is_open(group: Path) -> bool:
    """Whether a process has a VFIO group open, or may have: the kernel opens one once (vfio_group_fops_open), and where
    we may not open it ourselves, as in a container without its device, we cannot know."""
    try:
        os.close(os.open(group, os.O_RDWR | os.O_CLOEXEC))
    except OSError as e:
        return e.errno not in (errno.ENOENT, errno.ENXIO, errno.ENODEV)
    return False
