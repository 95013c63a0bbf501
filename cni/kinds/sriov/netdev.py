"""The device's netdev: into the pod under the pod's name, and home as it was."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from cni.kernel import netns, nsid, sysfs
from cni.kernel.links import IFF_UP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_MTU, IFLA_NET_NS_FD, IFLA_TXQLEN, Link
from cni.kernel.netlink import attr, text, u32
from cni.kernel.rtnl import Rtnl
from cni.kinds.sriov import attributes
from cni.kinds.sriov.plan import FLAGS, Netdev, Plan
from cni.protocol.errors import LinkUnavailable, TryAgain, doing
from cni.state.pod import Pod

# Looked at for a device that a pod has hidden.
NAMESPACES: Final = 100


def find(p: Plan, pod: Pod, ifname: str) -> Link | None:
    """It in the pod, under the pod's name or the one it came with; never another of that name."""
    ways = ({"index": p.index},) if p.index else ({"name": ifname}, {"name": p.netdev})
    return next((link for way in ways if (link := pod.rtnl.link(**way)) and link.device == p.device), None)


def here(host: Rtnl, name: str, device: str) -> Link:
    """It on the host.  Raises TryAgain."""
    link = host.link(name)
    if link is None:
        raise TryAgain(f"{name} of {device} is being renamed or moved")
    return link


def give(host: Rtnl, link: Link, p: Plan, pod: Pod, ifname: str) -> Link:
    """Into the pod: one message moves and renames.  Raises OSError, LinkUnavailable."""
    if ifname in link.altnames:
        host.remove_altname(link.index, ifname)
    body = [attr(IFLA_NET_NS_FD, u32(pod.fd)), attr(IFLA_IFNAME, text(ifname))]
    with doing(f"moving {link.name} ({p.device}) to {pod.path} as {ifname}"):
        host.set_link(link.index, *body, *([attr(IFLA_MTU, u32(p.mtu))] if p.mtu else []))
    there = find(p, pod, ifname)
    if there is None or there.name != ifname:
        raise LinkUnavailable(f"{p.device} did not arrive in {pod.path} as {ifname}")
    return there


def hidden(p: Plan, pod: Pod, host_fd: int) -> Iterator[Pod]:
    """The namespaces that the pod moved it to, or knows of, where it is not on the host."""
    function = sysfs.function(p.device)
    if function is None or function.netdevs:
        return
    host = netns.inode(host_fd)

    def look(inside: Rtnl, *more: bytes) -> list[Link]:
        return nsid.links_of_device(inside, p.device, *more)

    with nsid.walk(pod.fd, lambda fd, _: netns.inode(fd) == host, look, NAMESPACES) as places:
        for fd, inside in places:
            yield Pod(f"a namespace that {pod.path} knows", fd, inside, ours=False)


def take(p: Plan, pod: Pod, ifname: str, host_fd: int) -> None:
    """Out of the pod, if it is there, and under its own name where that is free."""
    link = find(p, pod, ifname) or next(iter(nsid.links_of_device(pod.rtnl, p.device)), None)
    if link is None:
        return
    to_host = attr(IFLA_NET_NS_FD, u32(host_fd))
    with doing(f"moving {link.name} ({p.device}) back from {pod.path}"):
        try:
            pod.rtnl.set_link(link.index, to_host, attr(IFLA_IFNAME, text(p.netdev)))
        except OSError as e:
            # A name or altname is taken on the host: the kernel has moved it all the same, or not at all.
            if e.errno != errno.EEXIST:
                raise
            if find(p, pod, ifname):
                for altname in link.altnames:
                    pod.rtnl.remove_altname(link.index, altname)
                free = f"vf{link.index}{os.getpid() % 10_000}"
                pod.rtnl.set_link(link.index, attr(IFLA_IFNAME, text(free)))
                pod.rtnl.set_link(link.index, to_host)


def restore(host: Rtnl, name: str, p: Plan, was: Netdev) -> None:
    """As it was, whoever changed it.  Raises OSError."""
    link = here(host, name, p.device)
    # An InfiniBand one's has a queue pair's number in it, and is nobody's to set.
    if link.mac != was.mac and not p.port:
        attributes.set_mac(host, p, link, was.mac)
    changed = [
        body
        for differs, body in (
            (link.mtu != was.mtu, attr(IFLA_MTU, u32(was.mtu))),
            (link.txqlen != was.txqlen, attr(IFLA_TXQLEN, u32(was.txqlen))),
            (link.alias != was.alias, attr(IFLA_IFALIAS, was.alias.encode())),
        )
        if differs
    ]
    with doing(f"restoring {name} ({p.device})"):
        if changed or link.flags & FLAGS != was.flags & ~IFF_UP:
            host.set_link(link.index, *changed, flags=was.flags & ~IFF_UP, mask=FLAGS)
        _restore_names(host, link, was)
        if was.flags & IFF_UP:
            host.set_up(link.index)


def _restore_names(host: Rtnl, link: Link, was: Netdev) -> None:
    """What is somebody else's now is not taken back: the device is known by its address."""
    for altname in link.altnames:
        if altname not in was.altnames:
            host.remove_altname(link.index, altname)
    if link.name != was.name:
        with suppress(FileExistsError):
            host.rename(link.index, was.name)
    for altname in was.altnames:
        if altname not in link.altnames:
            with suppress(FileExistsError):
                host.add_altname(link.index, altname)
