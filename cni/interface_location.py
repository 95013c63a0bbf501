"""The present location of an attachment's interface, wherever the pod or a person has put it.

The search changes nothing and reads only the links of namespaces.  These are the pod's namespace, those that it knows
by number (base/kernel/nsid.py), and those that a mount, a process or a descriptor leads to.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from base.kernel import holders, netns, nsid, rtnl, sysfs
from base.kernel.links import Link
from base.kernel.netlink import attr, u32
from base.kernel.rtnl import Rtnl
from base.protocol.spec import Json
from base.state import pod as pods
from base.state.pod import Pod
from base.state.record import Record
from cni.kinds import KINDS


class Place(NamedTuple):
    """One of "pod", "host", "elsewhere", "gone", "unknown"; a sentence; and, if known, the interface's name and a path
    of the namespace."""

    where: str
    sentence: str
    name: str = ""
    netns: str = ""


def of(record: Record) -> Place:
    """Return the interface's location.  Raises OSError."""
    if not record.of_this_boot:
        return Place("gone", "gone with an older boot")
    if record.kind not in KINDS:
        return Place("unknown", "unknown: its record could not be read")
    address = str(record.link.get("device") or "")
    if address and (place := _of_device(record, address)):
        return place
    return _in_pod(record) or _at_home(record) or _in_sight(record) or _unseen(record) or _nowhere(record, address)


def _of_device(record: Record, address: str) -> Place | None:
    """Return the device's location from /sys; None if /sys shows only that its interface is not on the host."""
    function = sysfs.device(address)
    if function is None:
        return Place("gone", f"gone: there is no device {address}")
    if not record.device:
        return Place("gone", f"gone: at {address} is another device now")
    if name := sysfs.uplink(function):
        return Place("host", f"on the host, as {name}", name)
    if function.driver in sysfs.USERSPACE:
        return Place("pod", f"{function.driver} has {address}, so the kernel has no interface of it")
    if not function.driver:
        return Place("gone", f"gone: {address} has no driver")
    return None


def _in_pod(record: Record) -> Place | None:
    """Search the pod's namespace, then those that it knows by number."""
    with pods.find(record.identity, record.netns) as pod:
        if pod is None:
            return None
        for link in _links(record.link, pod.rtnl):
            return Place("pod", f"in the pod, as {link.name}", link.name, pod.path)
        return _behind(record, pod)


def _behind(record: Record, pod: Pod) -> Place | None:
    with netns.hold_open("/proc/self/ns/net") as own:
        host = nsid.number(pod.rtnl, own)
    for number in sorted(nsid.numbers(pod.rtnl) - {host}):
        with suppress(OSError):  # it has ended meanwhile
            for link in _links(record.link, pod.rtnl, attr(nsid.IFLA_TARGET_NETNSID, u32(number))):
                sentence = (
                    f"in a namespace that the pod's knows as number {number}, as {link.name}: the pod moved it there"
                )
                return Place("elsewhere", sentence, link.name)
    return None


def _at_home(record: Record) -> Place | None:
    """Search the host for a link made of software, which has its first index there again."""
    software = record.link.get("software")
    if software:
        with rtnl.open_in() as host:
            link = host.link(index=software["at_home"])
            if link and link.kind == software["kind"]:
                return Place("host", f"on the host, as {link.name}", link.name)
    return None


def _in_sight(record: Record) -> Place | None:
    """Search the host, and every namespace that a visible mount or process has."""
    own = os.stat("/proc/self/ns/net").st_ino
    for inode, path in (netns.inhabited() or {}).items():
        for link in _links_at(record.link, path):
            if inode == own:
                return Place("host", f"on the host, as {link.name}", link.name)
            return Place(
                "elsewhere", f"in the namespace {path}, which is not the pod's, as {link.name}", link.name, path
            )
    return None


def _unseen(record: Record) -> Place | None:
    """Search the pod's own namespace, to which only a descriptor or another mount namespace leads."""
    with holders.opened(record.identity.inode) as (path, holder):
        for link in _links_at(record.link, path) if path else ():
            sentence = f"in the pod's namespace, as {link.name}; no process is in it, but {holder}"
            return Place("elsewhere", sentence, link.name)
    return None


def _nowhere(record: Record, address: str) -> Place:
    if address:
        return Place("unknown", f"in a namespace that nothing leads to; {address} comes home when that ends")
    if not record.complete and not record.link.get("index"):
        return Place("gone", "not made yet, or gone")
    return Place("gone", "gone")


def _links_at(plan: Json, path: str) -> Iterator[Link]:
    with suppress(OSError), netns.hold_open(path) as fd, rtnl.open_in(fd) as inside:
        yield from _links(plan, inside)


def _links(plan: Json, inside: Rtnl, *more: bytes) -> list[Link]:
    """Return what ADD made or moved, in the socket's namespace or in the one that ``more`` names."""
    if address := plan.get("device"):
        return nsid.links_of_device(inside, address, *more)
    software = plan.get("software") or {}
    kind = plan.get("kind") or software.get("kind")
    index = plan.get("index") or plan.get("born_as") or software.get("in_pod")
    return [link for link in nsid.links_with_index(inside, index, *more) if link.kind == kind] if index else []
