"""The namespace a lease is for: what it is, and if it is provably gone.  The one part of ipam that asks the kernel.

A namespace is gone if no process is in it and no mount holds it: whoever has it open only can start nobody in there
that the runtime knows of.  That is for those to say who see what was to be seen when the lease was made: from the
same mount and PID namespace.  An agent in a container, whose launcher opened the namespace for it, sees nothing of the
pods, and so records nothing.  Nor is anything recorded before Linux 5.14, where there is no cookie: an inode's number
is given again.
"""

import os
import socket
from collections.abc import Collection
from contextlib import suppress
from functools import cache

from cni.kernel import netns
from cni.spec import Request
from ipam.stores import Sandbox


def of(request: Request) -> Sandbox | None:
    """CNI_NETNS, if it can be known again."""
    try:
        if request.inside is None:
            with netns.opened(request.netns) as fd:
                return _seen(request.netns, fd, _cookie(fd))
        fd, passed = request.inside
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE, fileno=passed)
        try:
            return _seen(request.netns, fd, netns.cookie(sock))
        finally:
            sock.detach()
    except OSError:  # whoever attaches will say so
        return None


def gone(boxes: Collection[Sandbox]) -> frozenset[Sandbox]:
    """Those of them that are provably gone."""
    here = _view()
    ours = {box for box in boxes if (box.mounts, box.processes) == here}
    there = netns.inhabited() if ours else None
    if there is None:
        return frozenset()
    absent = {box for box in ours if box.inode not in there}
    cookies = dict[int, int]()
    for inode in {box.inode for box in ours - absent}:
        with suppress(OSError), netns.opened(there[inode]) as fd:  # one that cannot be asked may be alive
            if netns.inode(fd) == inode:
                cookies[inode] = _cookie(fd)
    return frozenset(absent | {box for box in ours if cookies.get(box.inode, box.cookie) != box.cookie})


def _seen(path: str, fd: int, cookie: int) -> Sandbox | None:
    there, this = os.stat(path), os.fstat(fd)
    if not cookie or (there.st_dev, there.st_ino) != (this.st_dev, this.st_ino):
        return None
    return Sandbox(this.st_ino, cookie, *_view())


def _cookie(fd: int) -> int:
    with netns.run_in(fd, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)) as sock:
        return netns.cookie(sock)


@cache
def _view() -> tuple[int, int]:
    return os.stat("/proc/self/ns/mnt").st_ino, os.stat("/proc/self/ns/pid").st_ino
