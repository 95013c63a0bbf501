"""What the host uses an interface for, or all of them: addresses, and routes by it (man 7 rtnetlink).

Decoded here and not by dump.py, because ADD of a VF does without pyroute2's time.  The sockets have to answer strictly
(``netlink.answers_strictly``).  Functions raise OSError.
"""

import struct
from collections.abc import Iterator
from ipaddress import ip_interface
from socket import AF_INET, AF_INET6
from typing import Final

from cni.kernel.addresses import IFA_ADDRESS, IFA_LOCAL, RTM_GETADDR
from cni.kernel.netlink import attributes
from cni.kernel.routes import Nexthops, Route, unicast
from cni.kernel.rtnl import Rtnl

_FAMILIES: Final = (AF_INET, AF_INET6)
_IFA_PROTO: Final = 11
_IFAPROT_KERNEL_RA: Final = b"\2"  # since Linux 5.18; an older kernel does not say whose an address is
_ADDRESS: Final = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefixlen, flags, scope, index


def addresses(host: Rtnl, index: int) -> list[str]:
    """The interface's addresses, without those that the kernel makes by itself: link-local ones, and IPv6's of what a
    router advertises."""
    return [address for one, address in _addresses(host, index) if one == index]


def routes(host: Rtnl, index: int) -> list[Route]:
    """The routes by the interface, also by a nexthop object."""
    return [route for family in _FAMILIES for route in unicast(host, family, output=index)]


def of_all(host: Rtnl) -> dict[int, str]:
    """What the host would lose with an interface, in words, by its index: an address, or a route that the kernel has
    not made by itself.  Default routes are not among these: uplinks.py knows which of them count."""
    found, nexthops = dict[int, str](), Nexthops(host)
    for family in _FAMILIES:
        for route in unicast(host, family):
            if not route.is_default and not route.is_kernels:
                found |= dict.fromkeys(nexthops.outputs(route), f"the host has a route to {route.network} by it")
    return found | {index: f"the host has {address} on it" for index, address in _addresses(host)}


def _addresses(host: Rtnl, index: int = 0) -> Iterator[tuple[int, str]]:
    """Of one interface, or of all."""
    for body in host.dump(RTM_GETADDR, _ADDRESS.pack(0, 0, 0, 0, index)):
        family, length, _, _, one = _ADDRESS.unpack_from(body)
        if family not in _FAMILIES:
            continue
        told = attributes(body[_ADDRESS.size :])
        # IFA_LOCAL is the interface's own address where IFA_ADDRESS is a point-to-point peer's.
        address = ip_interface((told.get(IFA_LOCAL) or told[IFA_ADDRESS], length))
        # guard below: link-local (is_link_local), a-routers (_IFAPROT_KERNEL_RA)
        if not address.ip.is_link_local and told.get(_IFA_PROTO) != _IFAPROT_KERNEL_RA:
            yield one, f"{address}"
