"""Brings a link without a bus address home, whatever its pod has put in its place or has done with it.

It is known by the index that it had in the pod.  The pod sees that index and may give it to a link of its own, after it
has moved the host's to another namespace.  But it cannot make a link over the same device of the host: of a veth, that
is the peer, which has one already.
"""

import os
from collections.abc import Iterator
from itertools import chain

from cni.kernel import netns, nsid, rtnl
from cni.kinds import device
from cni.kinds.host_device.plan import Plan
from cni.kinds.moved import Software
from cni.state.pod import Pod


def bring_home(p: Plan, software: Software, pod: Pod, ifname: str) -> None:
    """Move it home from the pod, or from where the pod has put it.  Raises OSError, CniError.

    If none of what is found is over the host's device of ADD's time, all of it is moved: a pair's other end may have
    been moved meanwhile, and what is made of nothing (dummy) is over nothing.
    """
    if software.over:
        with netns.hold_open("/proc/self/ns/net") as own:
            for place in chain([pod], device.hidden(p, pod, own)):
                link = device.find(p, place, ifname)
                if link and link.parent == software.over and link.parent_nsid == nsid.number(place.rtnl, own):
                    device.take(p, place, ifname, own)
                    return
    device.bring_home(p, pod, ifname)


def bring_home_from_anywhere(p: Plan, ifname: str) -> None:
    """The same for a pod that is gone: from the namespace of another that it has moved the link to.  Raises OSError,
    CniError."""
    with netns.hold_open("/proc/self/ns/net") as own:
        for place in _visible(netns.inode(own)):
            if device.find(p, place, ifname):
                device.take(p, place, ifname, own)


def _visible(host: int) -> Iterator[Pod]:
    """Every namespace that a visible mount or process has, but the host's."""
    for number, path in (netns.inhabited() or {}).items():
        if number == host:
            continue
        try:
            fd = netns.open_at(path)
        except OSError:  # it has ended meanwhile
            continue
        try:
            with rtnl.open_in(fd) as inside:
                yield Pod(path, fd, inside, ours=False)
        finally:
            os.close(fd)
