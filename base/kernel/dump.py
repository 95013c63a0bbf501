"""rtnetlink dumps that are rare: for CHECK, and for the default master.  pyroute2 decodes the answers.

The functions import pyroute2 on first use, because its import takes longer than an ADD.  They do not use its sockets,
which accept a pod's messages as the kernel's answers, and wait without a limit.  Functions raise OSError.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface, ip_network
from socket import AF_INET, AF_INET6
from typing import Any, Final

from base.kernel.addresses import (
    ADDRESS,
    IFA_ADDRESS,
    IFA_LOCAL,
    RT_SCOPE_UNIVERSE,
    RT_TABLE_MAIN,
    RTM_GETADDR,
    index_of,
    scope_of,
)
from base.kernel.links import RTM_GETLINK, get_link, parse_link
from base.kernel.netlink import HEADER, attributes
from base.kernel.rtnl import Rtnl, open_in
from base.kernel.rules import RTM_GETROUTE, RTM_GETRULE
from base.protocol.result import Address, Network, Route

_FAMILIES: Final = (AF_INET, AF_INET6)
FOREVER: Final = 2**32 - 1  # INFINITY_LIFE_TIME
FR_ACT_TO_TBL: Final = 1
FIB_RULE_INVERT: Final = 2

_IP6_RT_PRIO_USER: Final = 1024
_MTU_MAX, _ADVMSS_MAX = 65535 - 15, 65535 - 40  # ip_metrics_convert

# With any other attribute, a rule matches fewer packets than its addresses select.
_UNCONDITIONAL: Final = {"FRA_SRC", "FRA_DST", "FRA_TABLE", "FRA_PRIORITY", "FRA_PROTOCOL"}
_OFF: Final = {"FRA_SUPPRESS_PREFIXLEN": FOREVER}


@dataclass(frozen=True)
class Assigned:
    """An interface's address: IFA_F_* flags, RT_SCOPE_*, and the remaining lifetimes in seconds, or ``FOREVER``."""

    flags: int
    scope: int
    preferred: int
    valid: int


@dataclass(frozen=True)
class KeptRoute:
    """A route as the kernel keeps it, with the kernel's defaults filled in.  ``gw``, ``mtu`` and ``advmss`` are None if
    the route has none."""

    dst: Network
    gw: Address | None
    mtu: int | None
    advmss: int | None
    priority: int
    table: int
    scope: int


@dataclass(frozen=True)
class Hop:
    """A route through one interface, or one nexthop of a multipath route.

    - ``kind``, ``proto``: RTN_*, RTPROT_*.
    - ``output``: the interface's index; 0 for none.
    - ``merged``: the kernel shows several IPv6 routes as one, with the metrics of the first.
    """

    route: KeptRoute
    kind: int
    proto: int
    output: int
    merged: bool


@dataclass(frozen=True)
class Rule:
    """A rule of policy routing.

    - ``version``: 4 or 6.
    - ``source``, ``destination``: None for any.
    - ``action``: FR_ACT_*.
    - ``conditional``: the rule has further selectors, or skips some routes of its table.
    """

    version: int
    source: Network | None
    destination: Network | None
    action: int
    table: int
    conditional: bool


def addresses(ns_fd: int | None, index: int) -> dict[IPv4Interface | IPv6Interface, Assigned]:
    """Equivalent to: ip address show dev DEV, in a namespace; None for ours."""
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # noqa: PLC0415

    found = dict[IPv4Interface | IPv6Interface, Assigned]()
    with open_in(ns_fd, strictly=True) as inside:
        for message in _decoded(inside, RTM_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, index), ifaddrmsg):
            if message["index"] == index:
                # On a point-to-point link, IFA_ADDRESS is the peer's address, and IFA_LOCAL the interface's own.
                address = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
                flags, life = message.get("IFA_FLAGS") or message["flags"], message.get("IFA_CACHEINFO")
                found[ip_interface(f"{address}/{message['prefixlen']}")] = Assigned(
                    flags, message["scope"], life["ifa_preferred"], life["ifa_valid"]
                )
    return found


def own_addresses() -> dict[Address, int]:
    """The addresses of this namespace, with the indexes of their interfaces."""
    found = dict[Address, int]()
    with open_in() as here:
        for body in here.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, 0)):
            attrs, index = attributes(body[ADDRESS.size :]), index_of(body)
            found[ip_address(attrs.get(IFA_LOCAL) or attrs[IFA_ADDRESS])] = index
    return found


def routes(ns_fd: int) -> list[Hop]:
    """Equivalent to: ip route show table all.  Among routes with one destination and table, the kernel uses the first.
    Routes with a TOS or a source are left out: they do not match every packet for their destination."""
    with open_in(ns_fd, strictly=True) as inside:
        return [hop for m in _routes(inside) if not m["tos"] and not m["src_len"] for hop in _hops(m)]


def as_kept(route: Route) -> KeptRoute:
    """The route as the kernel will keep and show it: defaults filled in, ``mtu`` and ``advmss`` cut to their bounds."""
    v4 = route.dst.version == 4
    return KeptRoute(
        route.dst,
        route.gw,
        mtu=min(route.mtu or 0, _MTU_MAX) or None,
        advmss=min(route.advmss or 0, _ADVMSS_MAX) or None,
        priority=route.priority or (0 if v4 else _IP6_RT_PRIO_USER),
        table=route.table or RT_TABLE_MAIN,
        scope=scope_of(route) if v4 else RT_SCOPE_UNIVERSE,
    )


def rules(ns_fd: int) -> list[Rule]:
    """Equivalent to: ip rule show, for IPv4 and then IPv6, in the order in which the kernel tries them."""
    from pyroute2.netlink.rtnl.fibmsg import fibmsg  # noqa: PLC0415

    with open_in(ns_fd, strictly=True) as inside:
        bodies = [struct.pack("=B11x", family) for family in _FAMILIES]
        return [_rule(message) for body in bodies for message in _decoded(inside, RTM_GETRULE, body, fibmsg)]


def link_of_device(ns_fd: int, address: str) -> int:
    """The index of the interface of the device with this bus address; 0 if there is none."""
    with open_in(ns_fd, strictly=True) as inside:
        links = map(parse_link, inside.dump(RTM_GETLINK, get_link()))
        return next((link.index for link in links if link.device == address), 0)


def _routes(inside: Rtnl) -> list[Any]:
    """The routes of all tables, as pyroute2 decodes them."""
    from pyroute2.netlink.rtnl.rtmsg import rtmsg  # noqa: PLC0415

    bodies = [struct.pack("=B11x", family) for family in _FAMILIES]
    return [message for body in bodies for message in _decoded(inside, RTM_GETROUTE, body, rtmsg)]


def _decoded(inside: Rtnl, kind: int, body: bytes, decoder: Any) -> Iterator[Any]:
    """The answers to a dump request; none if the kernel lacks the table or the family."""
    for answer in inside.dump_known(kind, body):
        message = decoder(HEADER.pack(HEADER.size + len(answer), 0, 0, 0, 0) + answer)
        message.decode()
        yield message


def _table(message: Any) -> int:
    return int(message.get("RTA_TABLE") or message["table"])


def _hops(message: Any) -> list[Hop]:
    metrics = message.get("RTA_METRICS")
    route = KeptRoute(
        _network(message, "RTA_DST", "dst_len"),
        None,
        mtu=metrics and metrics.get("RTAX_MTU"),
        advmss=metrics and metrics.get("RTAX_ADVMSS"),
        priority=message.get("RTA_PRIORITY") or 0,
        table=_table(message),
        scope=message["scope"],
    )
    return [
        Hop(
            replace(route, gw=ip_address(gateway) if gateway else None),
            message["type"],
            message["proto"],
            output,
            merged=message["family"] == AF_INET6 and bool(message.get("RTA_MULTIPATH")),
        )
        for output, gateway in _ways(message)
    ]


def _rule(message: Any) -> Rule:
    others = {name for name, value in message["attrs"] if name not in _UNCONDITIONAL and _OFF.get(name) != value}
    return Rule(
        version=4 if message["family"] == AF_INET else 6,
        source=_network(message, "FRA_SRC", "src_len") if message["src_len"] else None,
        destination=_network(message, "FRA_DST", "dst_len") if message["dst_len"] else None,
        action=message["action"],
        table=message.get("FRA_TABLE") or message["table"],
        conditional=bool(others or message["tos"] or message["flags"] & FIB_RULE_INVERT),
    )


def _network(message: Any, name: str, length: str) -> Network:
    anywhere = IPv4Address(0) if message["family"] == AF_INET else IPv6Address(0)
    # A rule keeps the host bits that it was given.
    return ip_network(f"{message.get(name) or anywhere}/{message[length]}", strict=False)


def _ways(message: Any) -> list[tuple[int, str | None]]:
    """A route's interfaces (0 for none) and gateways: one pair, or one for each nexthop."""
    if several := message.get("RTA_MULTIPATH"):
        return [(int(hop["oif"]), hop.get("RTA_GATEWAY")) for hop in several]
    return [(int(message.get("RTA_OIF") or 0), message.get("RTA_GATEWAY"))]
