"""The interfaces that the host's default routes leave by (man 7 rtnetlink, RTM_GETROUTE).

Decoded here and not by dump.py, because a daemon that asks often does without pyroute2's memory.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from errno import EAFNOSUPPORT, ENOENT, EOPNOTSUPP
from socket import AF_INET, AF_INET6, if_indextoname
from typing import Final

from cni.kernel import rtnl
from cni.kernel.addresses import RT_TABLE_MAIN, RTA_OIF, RTA_TABLE, RTN_UNICAST
from cni.kernel.links import IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, LINK, RTM_GETLINK, get_link
from cni.kernel.netlink import answers_strictly, attr, attributes, read_text, read_u32, text
from cni.kernel.rtnl import Rtnl
from cni.kernel.rules import RTM_GETROUTE, table_of, tables_of_all

_RTA_MULTIPATH: Final = 9
_IFLA_VRF_TABLE: Final = 1
_OUTSIDE: Final = 0  # of VRFs: no table has this number
_ROUTE: Final = struct.Struct("=BBBBBBBBI")  # struct rtmsg: family, dst_len, src_len, tos, table, ..., type, flags
_HOP: Final = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, hops, index


def of_default_routes() -> set[str]:
    """The names of the interfaces of all default routes of our namespace; several for a multipath route.

    The routes of the main table count, those of tables that rules without a condition lead to, and those of VRFs'
    tables.  A table to which only rules with a condition lead is not the host's way out: rails have such tables, each
    for its own address.  IPv6's routes count only where IPv4 has none, in a VRF or outside: in many fabrics every rail
    hears a router's advertisements, and has a default route that nobody needs.  Raises OSError.
    """
    with rtnl.open_in() as host:
        answers_strictly(host.sock)  # an older kernel answers with all routes
        first, second = _of_family(host, AF_INET), _of_family(host, AF_INET6)
    places = first.keys() | second.keys()
    return {name for place in places for index in first.get(place) or second[place] for name in _name(index)}


def _of_family(host: Rtnl, family: int) -> dict[int, set[int]]:
    """The indexes of the interfaces by which default routes leave: those outside of VRFs (0), and each VRF's by its
    table."""
    routes = _default_routes(host, family)
    own = {RT_TABLE_MAIN}
    if routes.keys() - own:
        own |= tables_of_all(host, family)
    vrfs = _tables_of_vrfs(host) if routes.keys() - own else set()
    found = {table: indexes for table, indexes in routes.items() if table in vrfs - own}
    return found | {_OUTSIDE: {index for table in routes.keys() & own for index in routes[table]}}


def _default_routes(host: Rtnl, family: int) -> dict[int, set[int]]:
    """The indexes of the interfaces by which each table's default routes leave.  Empty where the kernel does not have
    the family."""
    found = dict[int, set[int]]()
    try:
        for body in host.dump(RTM_GETROUTE, _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, RTN_UNICAST, 0)):
            if indexes := set(_outputs(body)):
                found.setdefault(table_of(body, RTA_TABLE), set()).update(indexes)
    except OSError as e:
        if e.errno not in (ENOENT, EAFNOSUPPORT, EOPNOTSUPP):
            raise
    return found


def _outputs(body: bytes) -> Iterator[int]:
    """The indexes of the interfaces by which a route leaves, if it is a default route."""
    _, length, _, _, _, _, _, kind, _ = _ROUTE.unpack_from(body)
    if length or kind != RTN_UNICAST:
        return
    found = attributes(body[_ROUTE.size :])
    if output := read_u32(found.get(RTA_OIF, b"")):
        yield output
    hops = found.get(_RTA_MULTIPATH, b"")
    while len(hops) >= _HOP.size:
        size, _, _, index = _HOP.unpack_from(hops)
        yield index
        if size < _HOP.size:
            return
        hops = hops[size + (-size & 3) :]


def _tables_of_vrfs(host: Rtnl) -> set[int]:
    """The tables of VRFs.  While the kernel has never had one, it answers with all links."""
    found = set[int]()
    for body in host.dump(RTM_GETLINK, get_link() + attr(IFLA_LINKINFO, attr(IFLA_INFO_KIND, text("vrf")))):
        info = attributes(attributes(body[LINK.size :]).get(IFLA_LINKINFO, b""))
        if read_text(info.get(IFLA_INFO_KIND, b"")) == "vrf":
            found.add(read_u32(attributes(info.get(IFLA_INFO_DATA, b"")).get(_IFLA_VRF_TABLE, b"")))
    return found


def _name(index: int) -> Iterator[str]:
    with suppress(OSError):  # it has just gone
        yield if_indextoname(index)
