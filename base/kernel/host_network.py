"""An interface's network on the host, as the kernel's own messages: addresses, routes of all tables, and rules.

The message that reports an object also creates one like it (ip address save, ip route save, ip rule save).  So an
attribute survives that no code here knows.  Functions raise OSError.
"""

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface, ip_network
from socket import AF_INET, AF_INET6
from typing import Final

from base.kernel.addresses import (
    ADDRESS,
    IFA_ADDRESS,
    IFA_F_DADFAILED,
    IFA_F_NODAD,
    IFA_F_TENTATIVE,
    IFA_FLAGS,
    IFA_LOCAL,
    ROUTE,
    RT_SCOPE_LINK,
    RT_SCOPE_UNIVERSE,
    RT_TABLE_LOCAL,
    RTA_GATEWAY,
    RTA_METRICS,
    RTA_OIF,
    RTA_TABLE,
    RTAX_ADVMSS,
    RTAX_MTU,
    RTM_GETADDR,
    RTM_NEWADDR,
    RTM_NEWROUTE,
    RTN_UNICAST,
    RTPROT_KERNEL,
    index_of,
)
from base.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Change,
    attr,
    attributes,
    pairs,
    read_text,
    read_u32,
    text,
    u32,
)
from base.kernel.routes import HOP, RTA_MULTIPATH, RTPROT_RA, hops_in, route_of
from base.kernel.rtnl import Rtnl
from base.kernel.rules import FRA_SRC, FRA_TABLE, RTM_GETROUTE, RTM_GETRULE, RTM_NEWRULE, RULE, table_of
from base.protocol.result import Address, Ip, Network, Route

_FAMILIES: Final = (AF_INET, AF_INET6)
_IFA_LABEL, _IFA_CACHEINFO, _IFA_PROTO = 3, 6, 11
_IFA_F_PERMANENT, _IFA_F_NOPREFIXROUTE = 0x80, 0x200
_KERNELS: Final = (b"\1", b"\2", b"\3")  # IFAPROT_KERNEL_LO, _RA, _LL, since Linux 5.18
_RTA_CACHEINFO, _RTA_VIA = 12, 18
_FRA_IIFNAME, _FRA_PRIORITY, _FRA_OIFNAME = 3, 6, 17
_RTPROT_REDIRECT: Final = 1
# Flags that a request may have; the others report the kernel's state.
_RTNH_F_ONLINK, _FIB_RULE_INVERT = 4, 2
_NLM_F_REPLACE, _NLM_F_APPEND = 0x100, 0x800
_LIFETIMES: Final = struct.Struct("=IIII")  # struct ifa_cacheinfo: preferred, valid, and two times
_EXPIRES: Final = struct.Struct("=8xi")  # struct rta_cacheinfo
_FOREVER: Final = 2**32 - 1


@dataclass(frozen=True)
class HostNetwork:
    """The messages in hexadecimal digits, in the order in which the kernel reports them.

    Routes without a gateway come first, because the kernel resolves a gateway by them.  The lifetimes of addresses
    count from ``at``, of the monotonic clock in seconds.  ``shared`` are the addresses that other interfaces have too.
    """

    at: float
    shared: tuple[str, ...]
    addresses: tuple[str, ...]
    routes: tuple[str, ...]
    rules: tuple[str, ...]


def read(host: Rtnl, index: int) -> HostNetwork:
    """The network of the interface, without what the kernel or a router's advertisement makes again.  Routes that need
    another interface or a nexthop object are left out.  The socket must answer strictly."""
    at = time.monotonic()
    # A dump that is interrupted begins again, with other lifetimes.
    everywhere = {(index_of(body), address_of(body)): body for body in _addresses(host)}
    own, by_it = [b for (i, _), b in everywhere.items() if i == index], sorted(routes(host, index), key=_has_gateway)
    others = {address.ip for other, address in everywhere if other != index}
    shared = tuple(f"{ip}" for ip in (address_of(body).ip for body in own) if ip in others)
    sources, tables = [one.ip for one in map(in_pod, own) if one], {table_of(body, RTA_TABLE) for body in by_it}
    rules = [body for body in _rules(host) if table_of(body, FRA_TABLE) in tables and _is_from(body, sources)]
    return HostNetwork(at, shared, *(tuple(body.hex() for body in bodies) for bodies in (own, by_it, rules)))


def addresses(host: Rtnl) -> list[tuple[int, IPv4Interface | IPv6Interface]]:
    """The addresses of a namespace that the kernel did not make, each with its interface's index."""
    return [(index_of(body), address_of(body)) for body in _addresses(host)]


def address_of(body: bytes) -> IPv4Interface | IPv6Interface:
    """The address in a message.  IFA_ADDRESS is the peer's on a point-to-point link."""
    found = attributes(body[ADDRESS.size :])
    return ip_interface((found.get(IFA_LOCAL) or found[IFA_ADDRESS], body[1]))


def in_pod(body: bytes) -> IPv4Interface | IPv6Interface | None:
    """The address, if a pod gets it: a global one that no other host on the link has, of IPv6 without a lifetime."""
    flags = _flags(body)
    lasts = body[0] == AF_INET or flags & _IFA_F_PERMANENT
    return address_of(body) if lasts and body[3] == RT_SCOPE_UNIVERSE and not flags & IFA_F_DADFAILED else None


def address_for_pod(body: bytes, index: int, netdev: str, ifname: str) -> Change:
    """The change that adds the address in a pod.

    It has no lifetime, because nothing in the pod renews it.  An address that the host could use needs no duplicate
    detection.
    """
    flags, label = _flags(body), read_text(attributes(body[ADDRESS.size :]).get(_IFA_LABEL, b""))
    own = flags & _IFA_F_NOPREFIXROUTE
    if body[0] == AF_INET6 and not flags & IFA_F_TENTATIVE:
        own |= IFA_F_NODAD
    label = f"{ifname}{label.removeprefix(netdev)}"[:15] if label else ""
    return _adding_address(body, index, own, {_IFA_CACHEINFO: None, _IFA_LABEL: text(label) if label else None})


def address_for_host(body: bytes, index: int, elapsed: float) -> list[Change]:
    """The changes that add the address on the host; none if its lifetime has ended in the ``elapsed`` seconds.

    A route can have an address of IPv6 as its source only after duplicate detection.  So it is added without, and gets
    its own flags then.
    """
    preferred, valid, *times = _LIFETIMES.unpack(attributes(body[ADDRESS.size :])[_IFA_CACHEINFO])
    left = [n if n == _FOREVER else max(0, n - int(elapsed)) for n in (preferred, valid)]
    if not left[1]:
        return []
    flags, new = _flags(body), {_IFA_CACHEINFO: _LIFETIMES.pack(*left, *times)}
    if body[0] == AF_INET or flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED):
        return [_adding_address(body, index, flags, new)]
    what, kind, _, own = _adding_address(body, index, flags, new)
    return [_adding_address(body, index, flags | IFA_F_NODAD, new), (what, kind, _NLM_F_REPLACE, own)]


def _adding_address(body: bytes, index: int, flags: int, new: Mapping[int, bytes | None]) -> Change:
    family, length, _, scope, _ = ADDRESS.unpack_from(body)
    header = ADDRESS.pack(family, length, flags & 0xFF, scope, index)
    body = _rewritten(header, body[ADDRESS.size :], {**new, IFA_FLAGS: u32(flags)})
    return f"adding address {address_of(body)}", RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body


def route_for(body: bytes, index: int) -> Change:
    """The change that adds the route behind others of its destination, for the interface of that index."""
    fields = list(ROUTE.unpack_from(body))
    fields[-1] &= _RTNH_F_ONLINK
    new: dict[int, bytes | None] = {RTA_OIF: u32(index), _RTA_CACHEINFO: None}
    if hops := attributes(body[ROUTE.size :]).get(RTA_MULTIPATH):
        new[RTA_MULTIPATH] = b"".join(
            HOP.pack(hop.size, hop.flags & _RTNH_F_ONLINK, hop.weight, index) + hop.rest for hop in hops_in(hops)
        )
    what = f"adding route {route_of(body).network} in table {table_of(body, RTA_TABLE)}"
    return what, RTM_NEWROUTE, NLM_F_CREATE | _NLM_F_APPEND, _rewritten(ROUTE.pack(*fields), body[ROUTE.size :], new)


def rule_for(body: bytes, netdev: str, ifname: str) -> Change:
    """The change that adds the rule, for the interface under another name."""
    new = {
        kind: text(ifname)
        for kind, payload in attributes(body[RULE.size :]).items()
        if kind in (_FRA_IIFNAME, _FRA_OIFNAME) and payload == text(netdev)
    }
    fields = list(RULE.unpack_from(body))
    fields[-1] &= _FIB_RULE_INVERT
    # Without a priority, the kernel chooses one; it reports none for 0.
    more = b"" if _FRA_PRIORITY in attributes(body[RULE.size :]) else attr(_FRA_PRIORITY, u32(0))
    what = f"adding rule from {_source(body)} lookup {table_of(body, FRA_TABLE)}"
    flags = NLM_F_CREATE | NLM_F_EXCL
    return what, RTM_NEWRULE, flags, _rewritten(RULE.pack(*fields), body[RULE.size :], new) + more


def messages(digits: Iterable[str]) -> list[bytes]:
    """The bytes of a network's messages."""
    return [bytes.fromhex(one) for one in digits]


def in_order(network: HostNetwork) -> list[bytes]:
    """The addresses' messages in the order in which to add them.  The kernel lists IPv4's in that order, and IPv6's in
    the reverse order."""
    bodies = messages(network.addresses)
    return [b for b in bodies if b[0] == AF_INET] + [b for b in reversed(bodies) if b[0] == AF_INET6]


def key_of(body: bytes) -> tuple[object, ...]:
    """What only one route should have: table, destination, TOS and metric."""
    route = route_of(body)
    return route.table, route.network, ROUTE.unpack_from(body)[3], route.priority


def routes(host: Rtnl, index: int) -> list[bytes]:
    """The interface's routes that do not end by themselves, and need no other interface and no nexthop object."""
    found = dict.fromkeys(
        body
        for family in _FAMILIES
        for body in host.dump_known(RTM_GETROUTE, ROUTE.pack(family, *bytes(8)) + attr(RTA_OIF, u32(index)))
    )
    return [body for body in found if _is_kept(body, index)]


def shown_rules(inside: Rtnl) -> list[str]:
    """The messages of all rules."""
    return [body.hex() for body in _rules(inside)]


def results(network: HostNetwork) -> tuple[tuple[Ip, ...], tuple[Route, ...]]:
    """The pod's addresses, and those routes that a result can express: none of the kernel's own, by TOS or source."""
    shown = tuple(Ip(one, interface=0) for body in messages(network.addresses) if (one := in_pod(body)))
    return shown, tuple(route for body in messages(network.routes) for route in _listed(body))


def _listed(body: bytes) -> Iterator[Route]:
    family, _, source, tos, _, protocol, scope, kind, _ = ROUTE.unpack_from(body)
    if source or tos or protocol == RTPROT_KERNEL or kind != RTN_UNICAST:
        return
    route, found = route_of(body), attributes(body[ROUTE.size :])
    metrics = attributes(found.get(RTA_METRICS, b""))
    mtu, advmss = (read_u32(metrics.get(key, b"")) or None for key in (RTAX_MTU, RTAX_ADVMSS))
    for gateway in _gateways(found):
        # Without this scope, an on-link route of IPv6 would stand for one by the result's gateway.
        reach = scope or (RT_SCOPE_LINK if family == AF_INET6 and not gateway else None)
        if gateway or reach:
            yield Route(route.network, gateway, mtu, advmss, route.priority or None, route.table, reach)


def _gateways(found: dict[int, bytes]) -> Iterator[Address | None]:
    hops = found.get(RTA_MULTIPATH, b"")
    if not hops:
        gateway = found.get(RTA_GATEWAY)
        yield ip_address(gateway) if gateway else None
    for hop in hops_in(hops):
        gateway = attributes(hop.rest).get(RTA_GATEWAY)
        yield ip_address(gateway) if gateway else None


def _addresses(host: Rtnl) -> list[bytes]:
    found = host.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, 0))
    return [b for b in found if b[0] in _FAMILIES and attributes(b[ADDRESS.size :]).get(_IFA_PROTO) not in _KERNELS]


def _rules(inside: Rtnl) -> list[bytes]:
    """All rules, IPv4's first, in the order in which the kernel tries them."""
    found = (inside.dump_known(RTM_GETRULE, RULE.pack(family, *bytes(6))) for family in _FAMILIES)
    return list(dict.fromkeys(body for bodies in found for body in bodies))


def _is_kept(body: bytes, index: int) -> bool:
    route, found = route_of(body), attributes(body[ROUTE.size :])
    if set(route.outputs) != {index} or route.nexthop or route.table == RT_TABLE_LOCAL:
        return False
    if route.protocol in (RTPROT_RA, _RTPROT_REDIRECT) or _EXPIRES.unpack_from(found.get(_RTA_CACHEINFO, bytes(12)))[0]:
        return False
    return route.family == AF_INET or not (route.network.is_link_local or route.network.is_multicast)


def _has_gateway(body: bytes) -> bool:
    return not attributes(body[ROUTE.size :]).keys().isdisjoint((RTA_GATEWAY, RTA_MULTIPATH, _RTA_VIA))


def _source(body: bytes) -> Network | None:
    source = attributes(body[RULE.size :]).get(FRA_SRC)
    return ip_network((source, RULE.unpack_from(body)[2]), strict=False) if source else None


def _is_from(body: bytes, addresses: Iterable[Address]) -> bool:
    source = _source(body)
    return source is not None and any(address in source for address in addresses)


def _flags(body: bytes) -> int:
    return read_u32(attributes(body[ADDRESS.size :])[IFA_FLAGS])


def _rewritten(header: bytes, rest: bytes, new: Mapping[int, bytes | None]) -> bytes:
    """The message with another header, and other payloads for the attributes that it has; None removes one."""
    replaced = ((kind, new.get(kind, payload)) for kind, payload in pairs(rest))
    return header + b"".join(attr(kind, payload) for kind, payload in replaced if payload is not None)
