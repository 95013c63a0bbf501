"""Addresses and routes as rtnetlink messages (man 7 rtnetlink), packed by hand as in links.py; pure."""

import socket
import struct
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface

from base.kernel.netlink import NLM_F_CREATE, NLM_F_EXCL, Change, attr, attributes, read_u32, u32
from base.protocol.result import Route

RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR, RTM_NEWROUTE = 20, 21, 22, 24
IFA_ADDRESS, IFA_LOCAL, IFA_BROADCAST, IFA_FLAGS = 1, 2, 4, 8
IFA_F_NODAD, IFA_F_OPTIMISTIC, IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE = 0x02, 0x04, 0x08, 0x20, 0x40
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_METRICS, RTA_TABLE = 1, 4, 5, 6, 8, 15
RTAX_MTU, RTAX_ADVMSS = 2, 8
RT_TABLE_MAIN, RT_TABLE_LOCAL, RTPROT_KERNEL, RTPROT_STATIC, RTN_UNICAST, RTN_LOCAL = 254, 255, 2, 4, 1, 2
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK = 0, 253

ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefixlen, flags, scope, index
ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg: family, dst_len, src_len, tos, table, proto, scope, type, flags


def adding_address(index: int, address: IPv4Interface | IPv6Interface, flags: int = 0) -> Change:
    """The change that is equivalent to: ip address add ADDRESS dev DEV; ``flags`` are IFA_F_*.  An IPv4 address gets a
    broadcast address, as with: ip address add ... brd +"""
    packed, length = address.ip.packed, address.network.prefixlen
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = ADDRESS.pack(family, length, flags & 0xFF, 0, index) + attr(IFA_LOCAL, packed) + attr(IFA_ADDRESS, packed)
    if address.version == 4 and length < 31:
        body += attr(IFA_BROADCAST, address.network.broadcast_address.packed)
    if flags:
        body += attr(IFA_FLAGS, u32(flags))
    return f"adding address {address}", RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body


def index_of(body: bytes) -> int:
    """The index of the interface of a message about an address."""
    return int(ADDRESS.unpack_from(body)[4])


def parse_address(body: bytes) -> tuple[int, IPv6Address, int]:
    """Decode a message about an IPv6 address: the interface's index, the address, and its flags, IFA_F_*."""
    _, _, few, _, index = ADDRESS.unpack_from(body)
    attrs = attributes(body[ADDRESS.size :])
    # On a point-to-point link, IFA_ADDRESS is the peer's address, and IFA_LOCAL the interface's own.
    address = IPv6Address(attrs.get(IFA_LOCAL) or attrs[IFA_ADDRESS])
    return index, address, read_u32(attrs[IFA_FLAGS]) if IFA_FLAGS in attrs else few


def adding_route(index: int, route: Route) -> Change:
    """The change that is equivalent to: ip route prepend ... dev DEV.  Not "add": that refuses a default route beside
    another interface's, and a pod must get the default route that it requested.  The reference plugins do the same."""
    family = socket.AF_INET if route.dst.version == 4 else socket.AF_INET6
    table = RT_TABLE_MAIN if route.table is None else route.table
    length = route.dst.prefixlen
    # Only the attribute holds a table above 255; the header has one byte.
    body = ROUTE.pack(family, length, 0, 0, table if table < 256 else 0, RTPROT_STATIC, scope_of(route), RTN_UNICAST, 0)
    if length:
        body += attr(RTA_DST, route.dst.network_address.packed)
    body += attr(RTA_OIF, u32(index)) + attr(RTA_TABLE, u32(table))
    if route.gw is not None:
        body += attr(RTA_GATEWAY, route.gw.packed)
    if route.priority is not None:
        body += attr(RTA_PRIORITY, u32(route.priority))
    metrics = ((RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss))
    if nested := b"".join(attr(k, u32(v)) for k, v in metrics if v is not None):
        body += attr(RTA_METRICS, nested)
    what = f"adding route {route.dst}" + (f" via {route.gw}" if route.gw else "")
    return what, RTM_NEWROUTE, NLM_F_CREATE, body


def scope_of(route: Route) -> int:
    """The route's scope, RT_SCOPE_*.  An IPv4 route without a gateway is on-link and gets link scope, unless it names
    another scope."""
    if route.scope is not None:
        return route.scope
    return RT_SCOPE_LINK if route.gw is None and route.dst.version == 4 else RT_SCOPE_UNIVERSE
