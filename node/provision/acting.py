"""Makes what is as the file asks for: one change after the other, each in the kernel's own way."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EBUSY
from typing import Final

from cni.kernel import budget, files, pci, rdma_netlink, rtnl, sysfs, vf
from cni.kernel.links import IFLA_MTU
from cni.kernel.netlink import attr, u32
from cni.kernel.rtnl import Rtnl
from cni.protocol.errors import CniError
from cni.state import journal
from node.model import Settings
from node.provision import found, users
from node.provision.difference import AFTER, difference
from node.provision.matching import Seen, seen
from node.provision.model import (
    OPTION_FILE,
    Change,
    Pf,
    SetGuids,
    SetMode,
    SetMtu,
    SetTrust,
    SetVfs,
    Vf,
    WriteOption,
)

# What new VFs get is seen when they are there.  More looks would be of use to nobody.
_ROUNDS: Final = 4
_TIMEOUT: Final = 20.0  # seconds: for a driver to take a VF
_NEW: Final = 5.0  # seconds: for the interfaces of new VFs
_POLL: Final = 0.02


class Left(Exception):
    """Something is left as it is, and why."""


@dataclass(frozen=True)
class Report:
    """``done``: what was changed; ``refused``: what was not, and why; ``seen``: the PFs that were looked at."""

    done: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    seen: frozenset[Seen] = frozenset()


def apply(settings: Settings) -> Report:
    """Change what differs.  What cannot be changed is said, and the rest is changed all the same.  Raises OSError."""
    done, failed, refused, pfs = list[str](), dict[str, str](), tuple[str, ...](), frozenset[Seen]()
    for _ in range(_ROUNDS):
        state = found.state(settings.pfs)
        pfs |= seen(settings.pfs, [pf.device for pf in state.pfs])
        left = difference(settings.pfs, settings.rdma_exclusive, state)
        refused = left.refused
        todo = [change for change in left.changes if f"{change}" not in (*done, *failed)]
        if not todo:
            break
        for change in todo:
            try:
                _act(change)
                done.append(f"{change}")
            except (OSError, CniError, Left) as e:
                failed[f"{change}"] = f"{change}: {_why(change, e)}"
    return Report(tuple(done), (*refused, *failed.values()), pfs)


def _why(change: Change, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == EBUSY and isinstance(change, SetMode):
        return (
            "the kernel does it only while there is no network namespace but the host's; it will be so after the next "
            f"boot, by {OPTION_FILE}"
        )
    said = (error.strerror or f"{error}") if isinstance(error, OSError) else f"{error}"
    return f"{said}{'; see: dmesg' if isinstance(change, SetVfs) and isinstance(error, OSError) else ''}"


def _act(change: Change) -> None:
    """Raises OSError, CniError, Left."""
    budget.begin()
    match change:
        case SetVfs():
            _set_vfs(change)
        case SetMtu():
            for address in [vf.address for vf in change.vfs] or [change.pf.device.id]:
                _set_link(address, attr(IFLA_MTU, u32(change.mtu)))
        case SetTrust():
            for one in change.vfs:
                _set_link(change.pf.device.id, vf.set_attribute(one.number, "trust", change.on))
        case SetGuids():
            with _while_free(change.pf, change.vfs):
                for one, guid in zip(change.vfs, change.guids, strict=True):
                    _set_guids(change.pf, one, guid)
        case SetMode():
            rdma_netlink.set_exclusive(change.exclusive)
        case WriteOption():
            folder, name = os.path.split(OPTION_FILE)
            with files.open_directory(folder, make=0o755) as fd:
                files.replace(fd, name, change.text)


def _set_vfs(change: SetVfs) -> None:
    address = change.pf.device.id
    with _while_free(change.pf, change.pf.vfs):
        if change.pf.vfs:
            _write_count(address, 0)  # the kernel refuses another number while there are VFs
        if change.count:
            _write_count(address, change.count)
    _wait(lambda: all(_is_complete(one) for one in sysfs.vfs(address)), _NEW)


def _write_count(address: str, count: int) -> None:
    fd = os.open(f"{found.path(address)}/sriov_numvfs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, f"{count}".encode())
    finally:
        os.close(fd)


@contextmanager
def _while_free(pf: Pf, vfs: Sequence[Vf]) -> Iterator[None]:
    """Hold the lock under which an ADD chooses a VF of the PF, if nobody has one of these still.

    Raises Left, CniError.
    """
    with journal.lock_device(users.JOURNAL, pf.device.id):
        attached = users.owners()
        for one in vfs:
            if user := users.user(one.address, attached):
                raise Left(f"VF {one.number} ({one.address}) belongs to {user}; delete that, {AFTER}")
        yield


def _set_guids(pf: Pf, one: Vf, guid: str) -> None:
    """Tell the PF, and have the VF read it: mlx5's does so when its driver is bound."""
    for name in ("node_guid", "port_guid"):
        _set_link(pf.device.id, vf.set_attribute(one.number, name, guid))
    function = sysfs.function(one.address)
    driver = function.driver if function else ""
    if driver not in ("", *sysfs.USERSPACE) and sysfs.guids(one.address) != (guid, guid):
        pci.rebind(one.address, driver, _TIMEOUT)


def _set_link(address: str, body: bytes) -> None:
    """Change the interface of a function.  Raises OSError, Left."""
    with rtnl.open_in() as host:
        host.set_link(_index(address, host), body)


def _index(address: str, host: Rtnl) -> int:
    for name in sysfs.names(f"{found.path(address)}/net"):
        if link := host.link(name):
            return link.index
    raise Left(f"{address} has no interface on the host any more")


def _is_complete(vf: str) -> bool:
    """Whether a VF has the devices that its driver makes."""
    driver = sysfs.link(f"{found.path(vf)}/driver")
    has_device = sysfs.names(f"{found.path(vf)}/net") or sysfs.names(f"{found.path(vf)}/infiniband")
    return not driver or driver in sysfs.USERSPACE or bool(has_device)


def _wait(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_POLL)
