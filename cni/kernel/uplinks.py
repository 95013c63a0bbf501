"""The interfaces that default routes leave by (man 7 rtnetlink, RTM_GETROUTE).

Decoded here and not by dump.py, because a daemon that asks often does without pyroute2's memory.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from errno import EAFNOSUPPORT, ENOENT, EOPNOTSUPP
from socket import AF_INET, if_indextoname
from typing import Final

from cni.kernel import rtnl
from cni.kernel.addresses import RT_TABLE_MAIN, RTA_OIF, RTA_TABLE, RTN_UNICAST
from cni.kernel.netlink import SOL_NETLINK, attr, attributes, read_u32, u32
from cni.kernel.rules import RTM_GETROUTE, table_of

_NETLINK_GET_STRICT_CHK: Final = 12
_RTA_MULTIPATH: Final = 9
_ROUTE: Final = struct.Struct("=BBBBBBBBI")  # struct rtmsg: family, dst_len, src_len, tos, table, ..., type, flags
_HOP: Final = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, hops, index


def of_default_routes(family: int = AF_INET) -> set[str]:
    """The names of the interfaces of all default routes in the main table of our namespace; several for a multipath
    route.  Empty where the kernel does not have the family.  Raises OSError."""
    with rtnl.open_in() as host:
        with suppress(OSError):  # an older kernel answers with all tables
            host.sock.setsockopt(SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
        asked = struct.pack("=B11x", family) + attr(RTA_TABLE, u32(RT_TABLE_MAIN))
        try:
            indexes = {index for body in host.dump(RTM_GETROUTE, asked) for index in _outputs(body)}
        except OSError as e:
            if e.errno not in (ENOENT, EAFNOSUPPORT, EOPNOTSUPP):  # there is no such table, or no such family
                raise
            return set()
    names = set[str]()
    for index in indexes:
        with suppress(OSError):  # it has just gone
            names.add(if_indextoname(index))
    return names


def _outputs(body: bytes) -> Iterator[int]:
    """The indexes of the interfaces by which a route leaves, if it is a default route of the main table."""
    _, length, _, _, _, _, _, kind, _ = _ROUTE.unpack_from(body)
    if length or kind != RTN_UNICAST or table_of(body, RTA_TABLE) != RT_TABLE_MAIN:
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
