"""RDMA ports and their counters in /sys/class/infiniband, and the pods that own the devices.

The journal names the owner of a device that one attachment has exclusively.  A shared device has no owner.
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
# A pod's namespace, empty if the runtime has none (podman), and its name; both empty without a pod.
Owner = tuple[str, str]
NOBODY: Final = ("", "")
# The maximum age of hw_counters, in milliseconds: no counter.
_NONE: Final = frozenset({"lifespan"})


@contextmanager
def sysfs_of(record: Record, remark: Callable[[str], None]) -> Iterator[Path | None]:
    """/sys of the attachment's pod: in exclusive mode, only that one shows the pod's RDMA devices.

    None if the namespace is missing, is another one by now, or may not be entered.  In the last case, ``remark`` gets a
    sentence; the caller adds a remedy.
    """
    fd = -1
    try:
        with netns.hold_open(record.netns) as pod:
            if (netns.inode(pod), netns.cookie_of(pod)) == (record.identity.inode, record.identity.cookie):
                fd = netns.run_in(pod, syscalls.mount_sysfs)
    except OSError as e:
        if e.errno == errno.EPERM:
            remark(_REMARK)
    try:
        yield None if fd < 0 else Path(f"/proc/self/fd/{fd}")
    finally:
        if fd >= 0:
            os.close(fd)


class Port(NamedTuple):
    """One port of an RDMA device.

    - ``path``: its directory, valid until the next port is requested.
    - ``owner``: the pod that has the device exclusively.
    - ``root``: the /sys that contains ``path``: the host's, or that of the pod's namespace.
    """

    rdma_dev: str
    number: str
    path: str
    owner: Owner
    root: Path

    @property
    def state(self) -> str:
        """The kernel's text: "4: ACTIVE"; empty if it cannot be read."""
        return sysfs.line(f"{self.path}/state")

    def counters(self) -> dict[str, int]:
        """The numbers in its counters and hw_counters.  If both have a name, the port's own counter counts."""
        return {
            name: int(text)
            for folder in ("hw_counters", "counters")
            for name in sysfs.names(f"{self.path}/{folder}")
            if name not in _NONE and (text := sysfs.line(f"{self.path}/{folder}/{name}")).isdecimal()
        }


def every(records: Sequence[Record], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Iterator[Port]:
    """The ports that the host sees, then those that only pods see.  ``remark`` gets a sentence if these are missing.
    VFs without an attachment are left out: there may be thousands, and they count nothing."""
    seen = set(sysfs.names(f"{root}/class/infiniband"))
    yield from _all(root, _owners(records))
    for record in records:
        # Of two devices with one name, which some kernels allow in different namespaces, only the first is listed.
        if hidden := {name: owner for name, owner in _owners([record]).items() if name not in seen}:
            seen |= hidden.keys()
            with sysfs_of(record, remark) as inside:
                found = _all(inside, hidden) if inside else ()
                yield from (port for port in found if port.rdma_dev in hidden)


def _owners(records: Iterable[Record]) -> Mapping[str, Owner]:
    """The pods that have RDMA devices exclusively, by the devices' names."""
    return {
        name: (namespace, pod)
        for record in records
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
