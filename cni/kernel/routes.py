"""The host's unicast routes, and the interfaces by which they leave (man 7 rtnetlink, RTM_GETROUTE, RTM_GETNEXTHOP).

Decoded here and not by dump.py, because ADD of a VF and a daemon that asks often do without pyroute2's time and memory.
A route may name its interface, those of several nexthops, or a nexthop object (man 8 ip-nexthop).  With
net.ipv4.nexthop_compat_mode=0 it names nothing but the object.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EAFNOSUPPORT, ENOENT, EOPNOTSUPP
from functools import cached_property
from ipaddress import ip_network
from socket import AF_INET, AF_INET6
from typing import Final

from cni.kernel.addresses import RTA_DST, RTA_OIF, RTA_TABLE, RTN_UNICAST, RTPROT_KERNEL, Network
from cni.kernel.netlink import attr, attributes, read_u32, u32
from cni.kernel.rtnl import Rtnl
from cni.kernel.rules import RTM_GETROUTE, table_of

RTM_GETNEXTHOP: Final = 106
RTPROT_RA: Final = 9
_RTA_MULTIPATH, _RTA_NH_ID = 9, 30
_NHA_ID, _NHA_GROUP, _NHA_OIF = 1, 2, 5
_ROUTE: Final = struct.Struct(
    "=BBBBBBBBI"
)  # struct rtmsg: family, dst_len, src_len, tos, table, proto, ..., type, flags
_TYPE: Final = 7  # its place in there
_HOP: Final = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, hops, index
_NEXTHOP: Final = struct.Struct("=BBBBI")  # struct nhmsg: family, scope, protocol, reserved, flags
_MEMBER: Final = struct.Struct("=IBBH")  # struct nexthop_grp: id, weight, its high part, reserved


@dataclass(frozen=True)
class Route:
    """``outputs``: the indexes of the interfaces by which it leaves, without those of the nexthop object ``nexthop``, 0
    for none."""

    family: int
    length: int
    protocol: int
    table: int
    destination: bytes
    outputs: frozenset[int]
    nexthop: int

    @cached_property
    def network(self) -> Network:
        """Where it leads."""
        nothing = bytes(4 if self.family == AF_INET else 16)
        return ip_network((self.destination or nothing, self.length))

    @property
    def is_default(self) -> bool:
        return not self.length

    @property
    def is_kernels(self) -> bool:
        """Whether the kernel makes such a route by itself for an interface that has no address but link-local ones: to
        link-local and multicast destinations, and what a router has advertised.  A route to one host is nobody's but
        a program's, whatever protocol that has put down: Cilium's is the kernel's."""
        network = self.network
        if network.is_link_local or (self.family == AF_INET6 and network.is_multicast):  # guard: kernels
            return True
        # guard below: a-routers = False
        return self.family == AF_INET6 and self.length < 128 and self.protocol in (RTPROT_KERNEL, RTPROT_RA)


def unicast(host: Rtnl, family: int, *, output: int = 0, default: bool = False) -> list[Route]:
    """All of them, or those by the interface of index ``output``, also by a nexthop object; with ``default`` only
    default routes.  None where the kernel does not have the family.  Raises OSError.

    The socket has to answer strictly (``netlink.answers_strictly``).
    """
    found = list[Route]()
    body = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, RTN_UNICAST, 0) + (attr(RTA_OIF, u32(output)) if output else b"")
    try:
        for answer in host.dump(RTM_GETROUTE, body):
            # An older kernel answers with all routes.
            if answer[_TYPE] == RTN_UNICAST and not (default and answer[1]):
                found.append(_route(answer))
    except OSError as e:
        if e.errno not in (ENOENT, EAFNOSUPPORT, EOPNOTSUPP):
            raise
    return found


def _route(body: bytes) -> Route:
    family, length, _, _, _, protocol, _, _, _ = _ROUTE.unpack_from(body)
    found = attributes(body[_ROUTE.size :])
    return Route(
        family,
        length,
        protocol,
        table_of(body, RTA_TABLE),
        found.get(RTA_DST, b""),
        frozenset(_outputs(found)),
        read_u32(found.get(_RTA_NH_ID, b"")),
    )


def _outputs(found: dict[int, bytes]) -> Iterator[int]:
    if output := read_u32(found.get(RTA_OIF, b"")):
        yield output
    hops = found.get(_RTA_MULTIPATH, b"")
    while len(hops) >= _HOP.size:
        size, _, _, index = _HOP.unpack_from(hops)
        yield index
        if size < _HOP.size:
            return
        hops = hops[size + (-size & 3) :]


class Nexthops:
    """The kernel's nexthop objects, each asked for once."""

    def __init__(self, host: Rtnl) -> None:
        self._host = host
        self._known = dict[int, frozenset[int]]()

    def outputs(self, route: Route) -> frozenset[int]:
        """The indexes of all interfaces by which the route leaves.  Raises OSError."""
        # guard below: an-object ((route.nexthop))
        return route.outputs | (self._of(route.nexthop) if route.nexthop else frozenset())

    def _of(self, number: int) -> frozenset[int]:
        if number not in self._known:
            self._known[number] = frozenset()
            self._known[number] = frozenset(self._ask(number))
        return self._known[number]

    def _ask(self, number: int) -> Iterator[int]:
        try:
            body = self._host.call(RTM_GETNEXTHOP, 0, _NEXTHOP.pack(0, 0, 0, 0, 0) + attr(_NHA_ID, u32(number)))
        except OSError as e:
            if e.errno == ENOENT:  # it has just gone, and its routes with it
                return
            raise
        found = attributes(body[_NEXTHOP.size :])
        if output := read_u32(found.get(_NHA_OIF, b"")):
            yield output
        for one, *_ in _MEMBER.iter_unpack(found.get(_NHA_GROUP, b"")):
            yield from self._of(one)  # guard: a-group
