"""The host's unicast routes and addresses, the interfaces that they need, and the interfaces of default routes (man 7
rtnetlink: RTM_GETROUTE, RTM_GETNEXTHOP, RTM_GETADDR).

This module decodes by hand, unlike dump.py, because ADD of a VF and a daemon that polls must avoid pyroute2's time and
memory.  A route may name its interface, those of several nexthops, or a nexthop object (man 8 ip-nexthop).  With
net.ipv4.nexthop_compat_mode=0 it names only the object.  Sockets must answer strictly (``rtnl.open_in``).
Functions raise OSError.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from functools import cached_property
from ipaddress import ip_address, ip_interface, ip_network
from socket import AF_INET, AF_INET6, if_indextoname
from typing import Final, NamedTuple

from base.kernel import rtnl
from base.kernel.addresses import (
    ADDRESS,
    IFA_ADDRESS,
    IFA_LOCAL,
    ROUTE,
    RT_TABLE_MAIN,
    RTA_DST,
    RTA_GATEWAY,
    RTA_OIF,
    RTA_PRIORITY,
    RTA_TABLE,
    RTM_GETADDR,
    RTN_UNICAST,
    RTPROT_KERNEL,
)
from base.kernel.links import IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, LINK, RTM_GETLINK, get_link
from base.kernel.netlink import attr, attributes, read_text, read_u32, text, u32
from base.kernel.rtnl import Rtnl
from base.kernel.rules import RTM_GETROUTE, table_of, tables_of_all
from base.protocol.result import Address, Network

RTM_GETNEXTHOP: Final = 106
RTPROT_RA: Final = 9
RTA_MULTIPATH: Final = 9
_RTA_NH_ID: Final = 30
_NHA_ID, _NHA_GROUP, _NHA_OIF = 1, 2, 5
_TYPE: Final = 7  # its offset in struct rtmsg
HOP: Final = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, hops, index
_NEXTHOP: Final = struct.Struct("=BBBBI")  # struct nhmsg: family, scope, protocol, reserved, flags
_MEMBER: Final = struct.Struct("=IBBH")  # struct nexthop_grp: id, weight, its high part, reserved
_FAMILIES: Final = (AF_INET, AF_INET6)
_IFA_PROTO: Final = 11
_IFAPROT_KERNEL_RA: Final = b"\2"  # since Linux 5.18; an older kernel does not report an address's origin
_IFLA_VRF_TABLE: Final = 1
_OUTSIDE: Final = 0  # outside of VRFs: no table has this number


@dataclass(frozen=True)
class KernelRoute:
    """A unicast route.

    - ``outputs``: the indexes of its interfaces in their order, without those of its nexthop object.
    - ``nexthop``: the nexthop object's number, 0 for none.  ``priority``: its metric.
    """

    family: int
    length: int
    protocol: int
    table: int
    destination: bytes
    outputs: tuple[int, ...]
    nexthop: int
    priority: int

    @cached_property
    def network(self) -> Network:
        """The route's destination."""
        nothing = bytes(4 if self.family == AF_INET else 16)
        return ip_network((self.destination or nothing, self.length))

    @property
    def is_default(self) -> bool:
        return not self.length

    @property
    def is_kernels(self) -> bool:
        """Whether the kernel makes such a route itself for an interface that has only link-local addresses.

        These are routes to link-local and multicast destinations, and those from a router's advertisements.  Only a
        program makes a route to one host, whatever protocol it records: Cilium records the kernel's.
        """
        network = self.network
        if network.is_link_local or (self.family == AF_INET6 and network.is_multicast):
            return True
        return self.family == AF_INET6 and self.length < 128 and self.protocol in (RTPROT_KERNEL, RTPROT_RA)


def unicast(host: Rtnl, family: int, *, output: int = 0, default: bool = False) -> list[KernelRoute]:
    """The unicast routes of a family; none if the kernel lacks the family.  Raises OSError.

    ``output``: only those through the interface of this index, also by a nexthop object.  ``default``: only default
    routes.  The socket must answer strictly (``rtnl.open_in``).
    """
    body = ROUTE.pack(family, 0, 0, 0, 0, 0, 0, RTN_UNICAST, 0) + (attr(RTA_OIF, u32(output)) if output else b"")
    # An old kernel answers with all routes.
    answers = (one for one in host.dump_known(RTM_GETROUTE, body) if one[_TYPE] == RTN_UNICAST)
    return [route_of(one) for one in answers if not (default and one[1])]


def route_of(body: bytes) -> KernelRoute:
    """The route that a message describes."""
    family, length, _, _, _, protocol, _, _, _ = ROUTE.unpack_from(body)
    found = attributes(body[ROUTE.size :])
    return KernelRoute(
        family,
        length,
        protocol,
        table_of(body, RTA_TABLE),
        found.get(RTA_DST, b""),
        tuple(_outputs(found)),
        read_u32(found.get(_RTA_NH_ID, b"")),
        read_u32(found.get(RTA_PRIORITY, b"")),
    )


def _outputs(found: dict[int, bytes]) -> Iterator[int]:
    if output := read_u32(found.get(RTA_OIF, b"")):
        yield output
    for hop in hops_in(found.get(RTA_MULTIPATH, b"")):
        yield hop.output


class RouteHop(NamedTuple):
    """A hop of a route: the fields of struct rtnexthop, and the attributes after them."""

    size: int
    flags: int
    weight: int
    output: int
    rest: bytes


def hops_in(hops: bytes) -> Iterator[RouteHop]:
    """Decode RTA_MULTIPATH."""
    while len(hops) >= HOP.size:
        size, flags, weight, output = HOP.unpack_from(hops)
        after = size + (-size & 3)
        yield RouteHop(size, flags, weight, output, hops[HOP.size : after])
        if size < HOP.size:
            return
        hops = hops[after:]


class Nexthops:
    """The kernel's nexthop objects, each requested once."""

    def __init__(self, host: Rtnl) -> None:
        self._host = host
        self._known = dict[int, set[int]]()

    def outputs(self, route: KernelRoute) -> frozenset[int]:
        """The indexes of all interfaces of the route.  Raises OSError."""
        return frozenset(route.outputs) | (self._of(route.nexthop) if route.nexthop else set())

    def _of(self, number: int) -> set[int]:
        if number in self._known:
            return self._known[number]
        outputs = self._known[number] = set[int]()
        try:
            body = self._host.call(RTM_GETNEXTHOP, 0, _NEXTHOP.pack(0, 0, 0, 0, 0) + attr(_NHA_ID, u32(number)))
        except OSError as e:
            if e.errno != ENOENT:  # it has just gone, and its routes with it
                raise
            return outputs
        found = attributes(body[_NEXTHOP.size :])
        if output := read_u32(found.get(_NHA_OIF, b"")):
            outputs.add(output)
        for one, *_ in _MEMBER.iter_unpack(found.get(_NHA_GROUP, b"")):
            outputs |= self._of(one)
        return outputs


def addresses_on(host: Rtnl, index: int) -> list[str]:
    """The interface's addresses, except those that the kernel makes: link-local ones, and IPv6's from router
    advertisements."""
    return [address for one, address in _addresses_on(host, index) if one == index]


def routes_by(host: Rtnl, index: int) -> list[KernelRoute]:
    """The routes through the interface, also by a nexthop object."""
    return [route for family in _FAMILIES for route in unicast(host, family, output=index)]


def next_hops(host: Rtnl, index: int) -> list[Address]:
    """The gateways of the interface's routes in all tables, those of default routes first, then by metric.  A gateway
    of a nexthop object is left out."""
    found = list[tuple[bool, int, Address]]()
    for family in _FAMILIES:
        for body in host.dump_known(RTM_GETROUTE, ROUTE.pack(family, *bytes(8)) + attr(RTA_OIF, u32(index))):
            route, attrs = route_of(body), attributes(body[ROUTE.size :])
            hops = [attributes(hop.rest) for hop in hops_in(attrs.get(RTA_MULTIPATH, b"")) if hop.output == index]
            if read_u32(attrs.get(RTA_OIF, b"")) == index:  # an old kernel answers with all routes
                hops.append(attrs)
            gateways = [gateway for hop in hops if (gateway := hop.get(RTA_GATEWAY))]
            found += [(not route.is_default, route.priority, ip_address(one)) for one in gateways]
    return [gateway for _, _, gateway in sorted(found, key=lambda one: one[:2])]


def uses(host: Rtnl) -> dict[int, str]:
    """The reason why the host needs an interface, by its index: an address, or a route that the kernel did not make.
    Default routes are left out: ``uplinks`` decides which of them count."""
    found, nexthops = dict[int, str](), Nexthops(host)
    for family in _FAMILIES:
        for route in unicast(host, family):
            if not route.is_default and not route.is_kernels:
                found |= dict.fromkeys(nexthops.outputs(route), f"the host has a route to {route.network} through it")
    return found | {index: f"the host has {address} on it" for index, address in _addresses_on(host)}


def _addresses_on(host: Rtnl, index: int = 0) -> Iterator[tuple[int, str]]:
    """The addresses of one interface, or of all interfaces for index 0, with their interfaces' indexes."""
    for body in host.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, index)):
        family, length, _, _, one = ADDRESS.unpack_from(body)
        if family not in _FAMILIES:
            continue
        found = attributes(body[ADDRESS.size :])
        # IFA_LOCAL is the interface's own address where IFA_ADDRESS is a point-to-point peer's.
        address = ip_interface((found.get(IFA_LOCAL) or found[IFA_ADDRESS], length))
        if not address.ip.is_link_local and found.get(_IFA_PROTO) != _IFAPROT_KERNEL_RA:
            yield one, f"{address}"


def uplinks() -> set[str]:
    """The names of the interfaces of all default routes of our namespace; several for a multipath route.

    Routes count if they are in the main table, in a table that a rule without a condition selects, or in a VRF's table.
    A table behind rules with a condition is not the host's way out: rails have such tables, each for its own address.
    Per VRF or outside, IPv6's routes count only if IPv4 has none.  In many fabrics every rail receives router
    advertisements, and so gets a default route that nothing needs.  Raises OSError.
    """
    with rtnl.open_in(strictly=True) as host:
        first, second = _uplinks(host, AF_INET), _uplinks(host, AF_INET6)
    places = first.keys() | second.keys()
    return {name for place in places for index in first.get(place) or second[place] for name in _name_of(index)}


def default_route_link(ns_fd: int | None) -> str:
    """The name of the interface of the main table's default route in a namespace; empty without one.

    IPv4's route comes before IPv6's, and the lowest metric first.
    """
    with rtnl.open_in(ns_fd, strictly=True) as inside:
        nexthops = Nexthops(inside)
        for family in _FAMILIES:
            routes = [one for one in unicast(inside, family, default=True) if one.table == RT_TABLE_MAIN]
            for route in sorted(routes, key=lambda one: one.priority):
                if found := [*route.outputs, *sorted(nexthops.outputs(route))]:
                    link = inside.link(index=found[0])
                    return link.name if link else ""
    return ""


def _uplinks(host: Rtnl, family: int) -> dict[int, set[int]]:
    """The indexes of the interfaces of default routes: those outside of VRFs under key 0, a VRF's under its table."""
    by_table, nexthops = dict[int, set[int]](), Nexthops(host)
    for route in unicast(host, family, default=True):
        if indexes := nexthops.outputs(route):
            by_table.setdefault(route.table, set()).update(indexes)
    own = {RT_TABLE_MAIN}
    if by_table.keys() - own:
        own |= tables_of_all(host, family)
    vrfs = _tables_of_vrfs(host) if by_table.keys() - own else set()
    found = {table: indexes for table, indexes in by_table.items() if table in vrfs - own}
    return found | {_OUTSIDE: {index for table in by_table.keys() & own for index in by_table[table]}}


def _tables_of_vrfs(host: Rtnl) -> set[int]:
    """The tables of VRFs.  Before its first VRF, the kernel answers with all links."""
    found = set[int]()
    for body in host.dump(RTM_GETLINK, get_link() + attr(IFLA_LINKINFO, attr(IFLA_INFO_KIND, text("vrf")))):
        info = attributes(attributes(body[LINK.size :]).get(IFLA_LINKINFO, b""))
        if read_text(info.get(IFLA_INFO_KIND, b"")) == "vrf":
            found.add(read_u32(attributes(info.get(IFLA_INFO_DATA, b"")).get(_IFLA_VRF_TABLE, b"")))
    return found


def _name_of(index: int) -> Iterator[str]:
    with suppress(OSError):  # it has just gone
        yield if_indextoname(index)
