"""The addresses and links of this namespace itself (man 7 rtnetlink, RTM_GETROUTE, RTM_GETADDR and RTM_GETLINK)."""

import errno
import socket
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Final

from base.kernel.addresses import (
    ADDRESS,
    IFA_ADDRESS,
    IFA_F_DADFAILED,
    IFA_F_DEPRECATED,
    IFA_FLAGS,
    IFA_LOCAL,
    ROUTE,
    RT_SCOPE_UNIVERSE,
    RTA_DST,
    RTA_OIF,
    RTM_GETADDR,
    RTN_LOCAL,
)
from base.kernel.netlink import attr, attributes, read_u32
from base.kernel.rtnl import Rtnl, open_in
from base.kernel.rules import RTM_GETROUTE
from base.protocol.result import Address

# The entry of the table local instead of a route through lo.
_RTM_F_FIB_MATCH: Final = 0x2000
# Kinds of interfaces that are on the link of the interface below them.
_ON_THE_SAME: Final = ("macvlan", "macvtap", "ipvlan", "ipvtap")


def interface_with(address: Address) -> str:
    """The interface that has the address; empty if none has it.  An address in a VRF's table is not found."""
    if address.version == 4 and _is_of_nobody(address):
        return ""
    family, bits = (socket.AF_INET, 32) if address.version == 4 else (socket.AF_INET6, 128)
    asked = ROUTE.pack(family, bits, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH) + attr(RTA_DST, address.packed)
    try:
        with open_in() as here:
            answer = here.call(RTM_GETROUTE, 0, asked)
        if ROUTE.unpack_from(answer)[7] != RTN_LOCAL:
            return ""
        return socket.if_indextoname(read_u32(attributes(answer[ROUTE.size :])[RTA_OIF]))
    except (OSError, KeyError):  # no route, or no such family
        return ""


def _is_of_nobody(address: Address) -> bool:
    """Whether no socket can have the IPv4 address as its own, because it is not in the table local (inet_bind).

    Costs a quarter of the question to rtnetlink.  False decides nothing: ip_nonlocal_bind allows every address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((f"{address}", 0))
        except OSError as e:
            return e.errno == errno.EADDRNOTAVAIL
    return False


def addresses_on(host: Rtnl, index: int) -> list[IPv4Interface | IPv6Interface]:
    """The interface's addresses that other hosts can reach: global, not link-local, neither deprecated nor duplicate.

    One with a peer is left out: its subnet is the peer's.  The socket must answer strictly.  Raises OSError.
    """
    found = list[IPv4Interface | IPv6Interface]()
    for body in host.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, index)):
        family, length, few, scope, _ = ADDRESS.unpack_from(body)
        attrs = attributes(body[ADDRESS.size :])
        flags = read_u32(attrs[IFA_FLAGS]) if IFA_FLAGS in attrs else few
        own = attrs.get(IFA_LOCAL) or attrs[IFA_ADDRESS]
        if family not in (socket.AF_INET, socket.AF_INET6) or scope != RT_SCOPE_UNIVERSE or own != attrs[IFA_ADDRESS]:
            continue
        address = ip_interface((own, length))
        if not (flags & (IFA_F_DEPRECATED | IFA_F_DADFAILED) or address.is_link_local):
            found.append(address)
    return found


def is_on_link_of(name: str, master: str) -> bool:
    """Whether two interfaces of this namespace, each by its name or altname, are on one link.

    A macvlan or ipvlan is on the link of the interface below it.  False if there is no such interface.
    """
    try:
        with open_in() as here:
            one = _lowest(here, name)
            return bool(one) and one == _lowest(here, master)
    except OSError:
        return False


def _lowest(here: Rtnl, name: str) -> int:
    link = here.link(name)
    while link and link.parent and link.parent_nsid is None and link.kind in _ON_THE_SAME:
        link = here.link(index=link.parent)
    return link.index if link else 0
