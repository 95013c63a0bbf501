"""Carries out provisioning: plans from the present state, and makes one change after the other."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES, EBUSY, EROFS
from pathlib import Path
from typing import Final

from base.kernel import budget, files, pci, rdma_netlink, rtnl, sysfs, vf
from base.kernel.links import IFLA_MTU, RTEXT_FILTER_SKIP_STATS, Link
from base.kernel.netlink import attr, u32
from base.kernel.rtnl import Rtnl
from base.protocol.errors import CniError
from base.state import numbers, owned
from hardware import users
from node.model import Settings
from node.provision import scan
from node.provision.matching import Seen, seen
from node.provision.model import (
    OPTION_FILE,
    Change,
    SetGuids,
    SetMode,
    SetMtu,
    SetTrust,
    SetVfs,
    Vf,
    WriteOption,
)
from node.provision.plan import AFTER, MOUNT, plan, shares, why_left

# New VFs are planned when they exist, in a later round.
_ROUNDS: Final = 4
_TIMEOUT: Final = 20.0  # seconds for a driver to bind a VF
_NEW: Final = 5.0  # seconds for the interfaces of new VFs
_POLL: Final = 0.02
# Errors of a container without the host's directories, or with a profile.
_CLOSED: Final = {
    EROFS: f"is read-only here; {MOUNT}",
    EACCES: "is closed to it by AppArmor or SELinux; run it unconfined, as the chart does with provision: true",
}

# The exit status of --dry-run: diff's, and one for refusals.
SAME: Final = 0
DIFFERENT: Final = 1
UNREADABLE: Final = 2
REFUSED: Final = 3


class Left(Exception):
    """A change is not made; the message has the reason."""


class NumberRefused(Left):
    """The driver refuses the number of VFs, perhaps only for now."""


@dataclass(frozen=True)
class Report:
    """The changes made, the refused ones with their reasons, the PFs of the run, and the addresses of those to try
    again."""

    done: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    seen: frozenset[Seen] = frozenset()
    again: frozenset[str] = frozenset()


def apply(settings: Settings) -> Report:
    """Make all changes that are possible; the report has reasons for the others.  Raises OSError."""
    done, failed, refused, pfs = list[str](), dict[str, str](), tuple[str, ...](), frozenset[Seen]()
    again = set[str]()
    for _ in range(_ROUNDS):
        try:
            state = scan.state(settings.pfs)
        except CniError as e:
            failed[""] = f"no PF is changed, because its users are unknown: {e.msg}"
            break
        pfs |= seen(settings.pfs, [pf.device for pf in state.pfs])
        left = plan(settings.pfs, settings.rdma_exclusive, state)
        refused, wanted = left.refused, {f"{change}": change for change in left.changes}
        # A failed change that is no longer planned was made by another program, or is now refused for the same reason.
        failed = {title: why for title, why in failed.items() if title in wanted}
        todo = [change for title, change in wanted.items() if title not in (*done, *failed)]
        if not todo:
            break
        for change in todo:
            try:
                _act(change)
                done.append(f"{change}")
            except (OSError, CniError, Left) as e:
                failed[f"{change}"] = f"{change}: {why_not(change, e)}"
                if isinstance(e, NumberRefused) and isinstance(change, SetVfs):
                    again.add(change.pf.device.id)
    return Report(tuple(done), (*refused, *failed.values()), pfs, frozenset(again))


def why_not(change: Change, error: Exception) -> str:
    """Why a change failed, with the remedy."""
    if isinstance(error, OSError) and error.errno == EBUSY and isinstance(change, SetMode):
        return (
            "the kernel allows this only while there is no network namespace but the host's; the next boot sets it, by "
            f"{OPTION_FILE}"
        )
    if isinstance(error, OSError) and isinstance(change, SetVfs | SetGuids | WriteOption) and error.errno in _CLOSED:
        return f"{os.path.dirname(OPTION_FILE) if isinstance(change, WriteOption) else '/sys'} {_CLOSED[error.errno]}"
    if isinstance(error, FileNotFoundError) and isinstance(change, WriteOption):
        return f"{os.path.dirname(OPTION_FILE)} does not exist; make it, or {MOUNT}"
    why = (error.strerror or f"{error}") if isinstance(error, OSError) else f"{error}"
    return f"{why}{'; see: dmesg' if isinstance(change, SetVfs) and isinstance(error, OSError) else ''}"


def _act(change: Change) -> None:
    """Make a change.  Raises OSError, CniError, Left."""
    budget.begin()
    match change:
        case SetMode():
            rdma_netlink.set_exclusive(change.exclusive)
        case WriteOption():
            folder, name = os.path.split(OPTION_FILE)
            # Not made if it does not exist: a file in a container would look as if the next boot had the mode.
            with files.open_directory(folder) as fd:
                files.replace(fd, name, change.text)
        case SetVfs():
            address = change.pf.device.id
            with _while_free(change, change.pf.vfs):
                _change_count(address, len(change.pf.vfs), change.count)
            with_rdma, deadline = bool(sysfs.rdma_names(address)), time.monotonic() + _NEW
            while not all(_is_complete(one, with_rdma=with_rdma) for one in sysfs.vfs(address)):
                if time.monotonic() >= deadline:
                    break
                time.sleep(_POLL)
        case SetMtu() | SetTrust() | SetGuids():
            # A change of the PF itself concerns all of its VFs.
            with _while_free(change, change.vfs or change.pf.vfs) as host:
                _set_links(change, host)


def _set_links(change: SetMtu | SetTrust | SetGuids, host: Rtnl) -> None:
    pf = change.pf.device.id
    match change:
        case SetMtu():
            for address in [one.address for one in change.vfs] or [pf]:
                host.set_link(_own(address, host).index, attr(IFLA_MTU, u32(change.mtu)))
        case SetTrust():
            index = _own(pf, host).index
            for one in change.vfs:
                host.set_link(index, vf.set_attribute(one.number, "trust", change.on))
        case SetGuids():
            link = _own(pf, host)
            reported = vf.parse(link.vfs)
            for one, guid in zip(change.vfs, change.guids, strict=True):
                # mlx5's firmware sets the port of a new VF down.
                follows = (
                    {"link_state": "auto"} if reported.get(one.number, vf.VfSettings()).link_state == "disable" else {}
                )
                for name, value in {"node_guid": guid, "port_guid": guid, **follows}.items():
                    host.set_link(link.index, vf.set_attribute(one.number, name, value))
                _reload_guid(one.address, guid)


def _change_count(address: str, before: int, count: int) -> None:
    """Change the number of VFs.  Raises OSError if nothing was changed, NumberRefused if the driver refuses ``count``,
    with the former number restored."""
    if before:
        _write_count(address, 0)  # the kernel changes the number only from or to 0
    if not count:
        return
    try:
        _write_count(address, count)
    except OSError as e:
        if e.errno in _CLOSED:
            raise
        left = "it has none"
        if before:
            try:
                _write_count(address, before)
                left = f"it has {before} again"
            except OSError as other:
                left = f"it has none now, because the driver refuses {before} too: {other.strerror}"
        raise NumberRefused(f"{e.strerror}; {left}, and hpn node tries again later; see: dmesg") from e


def _write_count(address: str, count: int) -> None:
    with Path(f"{scan.path(address)}/sriov_numvfs").open("r+b", buffering=0) as file:
        file.write(f"{count}".encode())


@contextmanager
def _while_free(change: SetVfs | SetMtu | SetTrust | SetGuids, vfs: Sequence[Vf]) -> Iterator[Rtnl]:
    """Hold the lock under which an ADD chooses the PF or one of its VFs, and yield a socket for the change.

    Under the lock, check again that the PF has the same VFs, and that no pod or process holds the PF or one of
    ``vfs``.  Check that the host needs none of them, and that no pod has an interface over a PF of a new MTU.  Raises
    Left, CniError, OSError.
    """
    pf = change.pf
    with owned.lock(pf.device.id), rtnl.open_in() as host:
        attached = users.owners()
        if sysfs.vfs(pf.device.id) != tuple(vf.address for vf in pf.vfs):
            raise Left("its VFs have changed meanwhile; run: systemctl reload hpn-node")
        if why := scan.why_reserved(pf.device.id):
            raise Left(f"refused, {why}; choose another PF")
        if bond := users.lag(pf.device.id, sysfs.SYS):
            raise Left(f"refused, {shares(bond)}")
        if user := users.user(pf.device.id, attached):
            raise Left(f"{user} has the PF; delete that, {AFTER}")
        above = scan.owners_over(host)
        now = [scan.with_users(one, attached, host, above) for one in vfs]
        if why := why_left(change, scan.owner_over(pf.device, host, above), now):
            raise Left(why)
        yield host


def _reload_guid(address: str, guid: str) -> None:
    """Rebind a VF's driver if it has not read the VF's GUID: mlx5's driver reads it when it binds."""
    function = sysfs.function(address)
    driver = function.driver if function else ""
    if driver not in ("", *sysfs.USERSPACE) and sysfs.guids(address) != (guid, guid):
        with numbers.lock():
            pci.rebind(address, driver, _TIMEOUT, owned.rebinding(address))


def _own(address: str, host: Rtnl) -> Link:
    """A function's own interface, with the VFs of a PF.  Raises Left."""
    function = sysfs.function(address)
    if function and (name := sysfs.uplink(function)):
        link = host.link(name, filters=RTEXT_FILTER_SKIP_STATS | vf.RTEXT_FILTER_VF)
        if link:
            return link
    raise Left(f"{address} has no interface on the host any more")


def _is_complete(vf: str, *, with_rdma: bool) -> bool:
    """Whether a VF has the devices of its driver.

    If its PF has an RDMA device, it needs one too: else a container would get the VF without RDMA.  The kernel makes
    the device's directory before those of its ports (ib_register_device).
    """
    function = sysfs.function(vf)
    if function is None or function.driver in ("", *sysfs.USERSPACE):
        return True
    if function.rdma_devs:
        return all(sysfs.names(f"{scan.path(vf)}/infiniband/{name}/ports") for name in function.rdma_devs)
    return bool(function.netdevs) and not with_rdma


def dry_run(settings: Settings) -> tuple[str, int]:
    """The text and the exit status of hpn node --dry-run.  Raises OSError."""
    left = plan(settings.pfs, settings.rdma_exclusive, scan.state(settings.pfs))
    status = REFUSED if left.refused else DIFFERENT if left.changes else SAME
    lines = [
        *(f"would change: {change}" for change in left.changes),
        *(f"refused: {sentence}" for sentence in left.refused),
        *(f"{source}: this node has no PF that matches its selectors" for source in left.unused),
        *(["nothing to change: the node is as the file asks"] if status == SAME else []),
    ]
    return "".join(f"{line}\n" for line in lines), status
