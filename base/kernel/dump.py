"""rtnetlink questions that are asked rarely (CHECK, the default master).  pyroute2 decodes the answers.

pyroute2 is imported on first use, because that costs more than a whole ADD.  Its sockets are not used: they take what a
pod sends for the kernel's answer, and wait for ever.  Functions raise OSError.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from errno import EAFNOSUPPORT, ENOENT, EOPNOTSUPP
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface, ip_network
from socket import AF_INET, AF_INET6
from typing import Any, Final, TypeVar

from base.kernel.addresses import (
    RT_SCOPE_UNIVERSE,
    RT_TABLE_MAIN,
    RTA_TABLE,
    RTN_UNICAST,
    Address,
    Network,
    Route,
    scope_of,
)
from base.kernel.links import RTM_GETLINK, Link, get_link, parse_link
from base.kernel.netlink import HEADER, answers_strictly, attr, u32
from base.kernel.rtnl import Rtnl, open_in
from base.kernel.rules import RTM_GETROUTE, RTM_GETRULE

T = TypeVar("T")
RTM_GETADDR: Final = 22
_FAMILIES: Final = (AF_INET, AF_INET6)
FOREVER: Final = 2**32 - 1  # INFINITY_LIFE_TIME
FR_ACT_TO_TBL: Final = 1
FIB_RULE_INVERT: Final = 2

_IP6_RT_PRIO_USER: Final = 1024
_MTU_MAX, _ADVMSS_MAX = 65535 - 15, 65535 - 40  # ip_metrics_convert

# Any other attribute of a rule makes it match fewer packets than its addresses say.
_UNCONDITIONAL: Final = {"FRA_SRC", "FRA_DST", "FRA_TABLE", "FRA_PRIORITY", "FRA_PROTOCOL"}
_OFF: Final = {"FRA_SUPPRESS_PREFIXLEN": FOREVER}


@dataclass(frozen=True)
class Assigned:
    """How an interface has an address: IFA_F_* flags, RT_SCOPE_*, and the lifetimes left in seconds, or ``FOREVER``."""

    flags: int
    scope: int
    preferred: int
    valid: int


@dataclass(frozen=True)
class KeptRoute:
    """A route as the kernel keeps it: nothing is left out but a gateway and metrics that it does not have."""

    dst: Network
    gw: Address | None
    mtu: int | None
    advmss: int | None
    priority: int
    table: int
    scope: int


@dataclass(frozen=True)
class Hop:
    """A route by one interface, or one nexthop of a multipath route.

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
    - ``conditional``: it has other selectors besides, or does not take every route of its table.
    """

    version: int
    source: Network | None
    destination: Network | None
    action: int
    table: int
    conditional: bool


def addresses(ns_fd: int | None, index: int) -> dict[IPv4Interface | IPv6Interface, Assigned]:
    """Equivalent to: ip address show dev DEV, in that namespace, our own for None."""

    def ask(asked: _Asked) -> dict[IPv4Interface | IPv6Interface, Assigned]:
        found = {}
        for message in asked.addresses(index):
            # IFA_LOCAL is the interface's own address where IFA_ADDRESS is a point-to-point peer's.
            address = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
            flags, life = message.get("IFA_FLAGS") or message["flags"], message.get("IFA_CACHEINFO")
            found[ip_interface(f"{address}/{message['prefixlen']}")] = Assigned(
                flags, message["scope"], life["ifa_preferred"], life["ifa_valid"]
            )
        return found

    return _ask(ns_fd, ask)


def routes(ns_fd: int) -> list[Hop]:
    """Equivalent to: ip route show table all.  The kernel takes the first of those with one destination and table."""

    def ask(asked: _Asked) -> list[Hop]:
        # A route for a kind of service or for a source does not take everything that goes to its destination.
        return [hop for m in asked.routes() if not m["tos"] and not m["src_len"] for hop in _hops(m)]

    return _ask(ns_fd, ask)


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
    """Equivalent to: ip rule show, for IPv4 and then IPv6, in the order in which the kernel looks at them."""

    def ask(asked: _Asked) -> list[Rule]:
        return [_rule(m) for m in asked.rules()]

    return _ask(ns_fd, ask)


def default_route_link(ns_fd: int | None) -> str:
    """The name of the default route's interface; empty if there is none.

    IPv4's route comes before IPv6's, and the lowest metric first.
    """

    def ask(asked: _Asked) -> str:
        found = [
            m for m in asked.routes(RT_TABLE_MAIN) if m["dst_len"] == 0 and m["type"] == RTN_UNICAST and _ways(m)[0][0]
        ]
        best = min(found, key=lambda m: (m["family"] != AF_INET, m.get("RTA_PRIORITY") or 0), default=None)
        link = asked.link(_ways(best)[0][0]) if best else None
        return link.name if link else ""

    return _ask(ns_fd, ask)


def link_of_device(ns_fd: int, address: str) -> int:
    """The index of the interface of the device with this bus address; 0 if there is none."""

    def ask(asked: _Asked) -> int:
        return next((link.index for link in asked.links() if link.device == address), 0)

    return _ask(ns_fd, ask)


class _Asked:
    """A namespace's socket for questions.  The kernel answers with only those routes and addresses that a request
    names, an older one with all."""

    def __init__(self, inside: Rtnl) -> None:
        self._inside = inside
        answers_strictly(inside.sock)

    def addresses(self, index: int) -> list[Any]:
        """An interface's addresses, as pyroute2 decodes them."""
        from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # noqa: PLC0415

        found = self._all(RTM_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, index), ifaddrmsg)
        return [message for message in found if message["index"] == index]

    def routes(self, table: int = 0) -> list[Any]:
        """The routes of one table, of all for 0, as pyroute2 decodes them."""
        from pyroute2.netlink.rtnl.rtmsg import rtmsg  # noqa: PLC0415

        wanted = attr(RTA_TABLE, u32(table)) if table else b""
        found = [
            m for family in _FAMILIES for m in self._all(RTM_GETROUTE, struct.pack("=B11x", family) + wanted, rtmsg)
        ]
        return [m for m in found if not table or _table(m) == table]

    def rules(self) -> list[Any]:
        """The rules of all families, as pyroute2 decodes them."""
        from pyroute2.netlink.rtnl.fibmsg import fibmsg  # noqa: PLC0415

        return [m for family in _FAMILIES for m in self._all(RTM_GETRULE, struct.pack("=B11x", family), fibmsg)]

    def links(self) -> Iterator[Link]:
        return map(parse_link, self._inside.dump(RTM_GETLINK, get_link()))

    def link(self, index: int) -> Link | None:
        return self._inside.link(index=index)

    def _all(self, kind: int, body: bytes, decoder: Any) -> Iterator[Any]:
        try:
            for answer in self._inside.dump(kind, body):
                message = decoder(HEADER.pack(HEADER.size + len(answer), 0, 0, 0, 0) + answer)
                message.decode()
                yield message
        except OSError as e:
            if e.errno not in (ENOENT, EAFNOSUPPORT, EOPNOTSUPP):  # there is no such table, or no such family
                raise


def _ask(ns_fd: int | None, question: Callable[[_Asked], T]) -> T:
    with open_in(ns_fd) as inside:
        return question(_Asked(inside))


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
        table=message.get("RTA_TABLE") or message["table"],
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
    return ip_network(
        f"{message.get(name) or anywhere}/{message[length]}", strict=False
    )  # a rule keeps what it was given


def _ways(message: Any) -> list[tuple[int, str | None]]:
    """The interfaces (0 for none) and gateways that a route leaves by: one, or one for each nexthop."""
    if several := message.get("RTA_MULTIPATH"):
        return [(int(hop["oif"]), hop.get("RTA_GATEWAY")) for hop in several]
    return [(int(message.get("RTA_OIF") or 0), message.get("RTA_GATEWAY"))]
