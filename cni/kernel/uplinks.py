"""The interfaces that the host's default routes leave by."""

from collections.abc import Iterator
from contextlib import suppress
from socket import AF_INET, AF_INET6, if_indextoname
from typing import Final

from cni.kernel import routes, rtnl
from cni.kernel.addresses import RT_TABLE_MAIN
from cni.kernel.links import IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, LINK, RTM_GETLINK, get_link
from cni.kernel.netlink import answers_strictly, attr, attributes, read_text, read_u32, text
from cni.kernel.rtnl import Rtnl
from cni.kernel.rules import tables_of_all

_IFLA_VRF_TABLE: Final = 1
_OUTSIDE: Final = 0  # of VRFs: no table has this number


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
    # guard below: ipv4-first (first.get(place))
    return {name for place in places for index in first.get(place) or second[place] for name in _name(index)}


def _of_family(host: Rtnl, family: int) -> dict[int, set[int]]:
    """The indexes of the interfaces by which default routes leave: those outside of VRFs (0), and each VRF's by its
    table."""
    by_table = _default_routes(host, family)
    own = {RT_TABLE_MAIN}
    if by_table.keys() - own:
        own |= tables_of_all(host, family)  # guard: everybodys-table
    vrfs = _tables_of_vrfs(host) if by_table.keys() - own else set()
    found = {table: indexes for table, indexes in by_table.items() if table in vrfs - own}
    return found | {_OUTSIDE: {index for table in by_table.keys() & own for index in by_table[table]}}


def _default_routes(host: Rtnl, family: int) -> dict[int, set[int]]:
    """The indexes of the interfaces by which each table's default routes leave."""
    found, nexthops = dict[int, set[int]](), routes.Nexthops(host)
    for route in routes.unicast(host, family, default=True):
        if indexes := nexthops.outputs(route):
            found.setdefault(route.table, set()).update(indexes)
    return found


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
