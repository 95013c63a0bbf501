"""What the host uses an interface for: addresses, and routes by it (man 7 rtnetlink).

Decoded here and not by dump.py, because ADD of a VF does without pyroute2's time.  The sockets have to answer strictly
(``netlink.answers_strictly``).  Functions raise OSError.
"""

import struct
from ipaddress import ip_interface
from socket import AF_INET, AF_INET6
from typing import Final

from cni.kernel.addresses import IFA_ADDRESS, IFA_LOCAL, RTM_GETADDR
from cni.kernel.netlink import attributes
from cni.kernel.routes import Route, unicast
from cni.kernel.rtnl import Rtnl

_ADDRESS: Final = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefixlen, flags, scope, index


def addresses(host: Rtnl, index: int) -> list[str]:
    """The interface's addresses, without link-local ones, which the kernel makes by itself."""
    found = list[str]()
    for body in host.dump(RTM_GETADDR, _ADDRESS.pack(0, 0, 0, 0, index)):
        family, length, _, _, one = _ADDRESS.unpack_from(body)
        if one != index or family not in (AF_INET, AF_INET6):
            continue
        told = attributes(body[_ADDRESS.size :])
        # IFA_LOCAL is the interface's own address where IFA_ADDRESS is a point-to-point peer's.
        address = ip_interface((told.get(IFA_LOCAL) or told[IFA_ADDRESS], length))
        if not address.ip.is_link_local:
            found.append(f"{address}")
    return found


def routes(host: Rtnl, index: int) -> list[Route]:
    """The routes by the interface, also by a nexthop object."""
    return [route for family in (AF_INET, AF_INET6) for route in unicast(host, family, output=index)]
