"""Identify the namespace of a lease, and find namespaces that are provably gone.

Namespaces that could not be found again are not recorded.  Neither are any before Linux 5.14, which has no cookies: the
kernel reuses inode numbers.

A module of its own, because DEL and VERSION do not need base.kernel.netns.
"""

import socket
from collections.abc import Collection
from contextlib import suppress

from base.kernel import netns
from base.protocol.spec import Request
from ipam.stores import Sandbox


def of(request: Request) -> Sandbox | None:
    """The namespace of CNI_NETNS; None if it could not be identified later."""
    try:
        if request.inside is None:
            with netns.hold_open(request.netns) as fd:
                return _seen(request.netns, fd, netns.cookie_of(fd))
        fd, passed = request.inside
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE, fileno=passed)
        try:
            return _seen(request.netns, fd, netns.cookie(sock))
        finally:
            sock.detach()
    except OSError:  # the main plugin reports it
        return None


def of_containers(ids: Collection[str]) -> dict[str, Sandbox]:
    """The namespaces of containers, by their processes' cgroups.  A container without a visible process, or with
    several namespaces, is left out."""
    found = dict[str, Sandbox]()
    for name, path in netns.by_cgroup(ids).items():
        with suppress(OSError), netns.hold_open(path) as fd:
            box = _seen(path, fd, netns.cookie_of(fd))
            if box and netns.by_cgroup([name]) == {name: path}:  # the process did not end meanwhile
                found[name] = box
    return found


def gone(boxes: Collection[Sandbox]) -> frozenset[Sandbox]:
    return netns.gone(boxes)


def _seen(path: str, fd: int, cookie: int) -> Sandbox | None:
    mounts, processes = netns.view(path, fd)
    return Sandbox(netns.inode(fd), cookie, mounts, processes) if cookie and mounts else None
