"""RDMA ports and their counters, as /sys/class/infiniband has them, and which pod has the device.

The journal says whose a device is that one attachment has for itself.  A device that many share is nobody's.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from base.kernel import netns, syscalls, sysfs
from base.state.record import Record

_REMARK: Final = "the RDMA devices of pods are not shown, because their namespaces may not be entered"
# A pod's namespace, empty where the runtime has none (podman), and name; both empty for nobody.
Owner = tuple[str, str]
NOBODY: Final = ("", "")
# How old hw_counters may be, in milliseconds: no counter.
_NONE: Final = frozenset({"lifespan"})


@contextmanager
def sysfs_of(record: Record, remark: Callable[[str], None]) -> Iterator[Path | None]:
    """/sys as the attachment's pod has it: in exclusive mode a pod's RDMA devices are there and nowhere else.

    None if the namespace is not there, is another one by now, or may not be entered.  ``remark`` is told of the last.
    What helps against that is the caller's to say.
    """
    fd = _open_sysfs(record, remark)
    try:
        yield None if fd < 0 else Path(f"/proc/self/fd/{fd}")
    finally:
        if fd >= 0:
            os.close(fd)


def _open_sysfs(record: Record, remark: Callable[[str], None]) -> int:
    try:
        with netns.hold_open(record.netns) as fd:
            if (netns.inode(fd), netns.cookie_of(fd)) == (record.identity.inode, record.identity.cookie):
                return netns.run_in(fd, syscalls.mount_sysfs)
    except OSError as e:
        if e.errno == errno.EPERM:
            remark(_REMARK)
    return -1


class Port(NamedTuple):
    """One port of an RDMA device.

    - ``path``: its directory, which is there until the next port is asked for.
    - ``owner``: the pod that has the device for itself.
    - ``root``: the /sys in which ``path`` is: the host's, or that of the pod's namespace.
    """

    rdma_dev: str
    number: str
    path: str
    owner: Owner
    root: Path

    @property
    def state(self) -> str:
        """As the kernel has it: "4: ACTIVE"; empty if it cannot be read."""
        return sysfs.line(f"{self.path}/state")

    def counters(self) -> dict[str, int]:
        """What is a number in its counters and hw_counters.  Of a name that both have, it is the port's own counter."""
        return {
            name: int(text)
            for folder in ("hw_counters", "counters")
            for name in sysfs.names(f"{self.path}/{folder}")
            if name not in _NONE and (text := sysfs.line(f"{self.path}/{folder}/{name}")).isdecimal()
        }


def every(records: Sequence[Record], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Iterator[Port]:
    """First the ports that the host sees, then those that only pods see.  ``remark`` is told why these are missing.

    VFs that no attachment has are left out: there may be thousands, and they count nothing.
    """
    seen = set(sysfs.names(f"{root}/class/infiniband"))
    yield from _all(root, _owners(records))
    for record in records:
        # Of two devices with one name, which some kernels allow in different namespaces, the first is shown.
        hidden = {name: owner for name, owner in _owners([record]).items() if name not in seen}
        seen |= hidden.keys()
        yield from _inside(record, hidden, remark)


def _inside(record: Record, hidden: Mapping[str, Owner], remark: Callable[[str], None]) -> Iterator[Port]:
    """The ports of an attachment's devices that the host does not see."""
    if hidden:
        with sysfs_of(record, remark) as root:
            found = _all(root, hidden) if root else ()
            yield from (port for port in found if port.rdma_dev in hidden)


def _owners(records: Iterable[Record]) -> Mapping[str, Owner]:
    """The pods that have RDMA devices for themselves, by the devices' names."""
    return {
        name: (namespace, pod)
        for record in records
        # guard below: of-this-boot (of_this_boot), for-itself (rxe or record)
        if record.of_this_boot and (record.rxe or record.link.get("device"))
        for namespace, _, pod in [record.pod.rpartition("/")]
        for name in record.rdma_devs
    }


def _all(root: Path, owners: Mapping[str, Owner]) -> Iterator[Port]:
    folder = f"{root}/class/infiniband"
    for name in sysfs.names(folder):
        if name in owners or not os.path.exists(f"{folder}/{name}/device/physfn"):
            for number in sysfs.names(f"{folder}/{name}/ports"):
                yield Port(name, number, f"{folder}/{name}/ports/{number}", owners.get(name, NOBODY), root)
