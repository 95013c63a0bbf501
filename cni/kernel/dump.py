"""rtnetlink questions that are asked rarely (CHECK, the default master), through pyroute2.

pyroute2 is imported on first use: it costs more than a whole ADD.  Every socket is opened, used and closed
on a thread inside the namespace; ``IPRoute(netns=...)`` is not used, because it forks, and creates a
namespace whose name is misspelled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface, ip_network
from socket import AF_INET, AF_INET6
from typing import Any, Final, TypeVar

from cni.kernel.addresses import RT_TABLE_MAIN, RTN_UNICAST
from cni.kernel.netns import run_in
from cni.result import Network, Route

T = TypeVar("T")
FOREVER: Final = 2**32 - 1  # INFINITY_LIFE_TIME
FR_ACT_TO_TBL: Final = 1
FIB_RULE_INVERT: Final = 2

# What a rule has that makes it be about fewer packets than its addresses say is any attribute but these.
_UNCONDITIONAL: Final = {"FRA_SRC", "FRA_DST", "FRA_TABLE", "FRA_PRIORITY", "FRA_PROTOCOL"}
_OFF: Final = {"FRA_SUPPRESS_PREFIXLEN": FOREVER}


@dataclass(frozen=True)
class Assigned:
    """What an interface has an address with: IFA_F_* flags, scope, and for how many seconds more (``FOREVER``)."""

    flags: int
    scope: int
    preferred: int
    valid: int


@dataclass(frozen=True)
class Hop:
    """A route by one interface, or one of several of a multipath route; ``kind`` is RTN_*, ``proto`` RTPROT_*.  Nothing
    of ``route`` is left out but a gateway and metrics that it does not have.  ``merged`` is one of several IPv6 routes
    that the kernel shows as one, with the first one's metrics."""

    route: Route
    kind: int
    proto: int
    output: int
    merged: bool


@dataclass(frozen=True)
class Rule:
    """A rule of policy routing (FR_ACT_*); no ``source`` or ``destination`` is any.  A ``conditional`` one has other
    selectors besides, or does not take all that its table has."""

    version: int
    source: Network | None
    destination: Network | None
    action: int
    table: int
    conditional: bool


def addresses(ns_fd: int | None, index: int) -> dict[IPv4Interface | IPv6Interface, Assigned]:
    """Equivalent to: ip address show dev DEV."""

    def ask(ipr: Any) -> dict[IPv4Interface | IPv6Interface, Assigned]:
        found = {}
        for message in ipr.addr("dump", index=index):
            # IFA_LOCAL is the interface's own address where IFA_ADDRESS is a point-to-point peer's.
            address = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
            flags, life = message.get("IFA_FLAGS") or message["flags"], message.get("IFA_CACHEINFO")
            found[ip_interface(f"{address}/{message['prefixlen']}")] = Assigned(
                flags, message["scope"], life["ifa_preferred"], life["ifa_valid"]
            )
        return found

    return _ask(ns_fd, ask)


def routes(ns_fd: int) -> list[Hop]:
    """Equivalent to: ip route show table all.  Of one destination in one table the kernel takes the first."""

    def ask(ipr: Any) -> list[Hop]:
        messages = [m for family in (AF_INET, AF_INET6) for m in ipr.route("dump", family=family)]
        # One for some kinds of service, or from some sources, is not for all that goes to its destination.
        return [hop for m in messages if not m["tos"] and not m["src_len"] for hop in _hops(m)]

    return _ask(ns_fd, ask)


def rules(ns_fd: int) -> list[Rule]:
    """Equivalent to: ip rule show.  In the order in which the kernel asks them, of each family."""

    def ask(ipr: Any) -> list[Rule]:
        return [_rule(m) for family in (AF_INET, AF_INET6) for m in ipr.rule("dump", family=family)]

    return _ask(ns_fd, ask)


def default_route_link(ns_fd: int | None) -> str:
    """The interface of the default route (IPv4's, else IPv6's, of lowest metric); empty if there is none."""

    def ask(ipr: Any) -> str:
        for family in (AF_INET, AF_INET6):
            found = [
                m
                for m in ipr.route("dump", family=family, table=RT_TABLE_MAIN)
                if m["dst_len"] == 0 and m["type"] == RTN_UNICAST and _ways(m)[0][0]
            ]
            if found:
                best = min(found, key=lambda m: m.get("RTA_PRIORITY") or 0)
                (link,) = ipr.get_links(_ways(best)[0][0])
                return str(link.get("IFLA_IFNAME"))
        return ""

    return _ask(ns_fd, ask)


def link_of_device(ns_fd: int, address: str) -> int:
    """The index of the interface of a device, by the device's bus address; 0 if there is none."""

    def ask(ipr: Any) -> int:
        links = ipr.get_links()
        return next((int(link["index"]) for link in links if link.get("IFLA_PARENT_DEV_NAME") == address), 0)

    return _ask(ns_fd, ask)


def _ask(ns_fd: int | None, question: Callable[[Any], T]) -> T:
    from pyroute2 import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    def work() -> T:
        with IPRoute() as ipr:
            return question(ipr)

    try:
        return work() if ns_fd is None else run_in(ns_fd, work)
    except NetlinkError as e:
        raise OSError(e.code, str(e)) from e


def _hops(message: Any) -> list[Hop]:
    metrics = message.get("RTA_METRICS")
    route = Route(
        _network(message, "RTA_DST", "dst_len"),
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
    """By which interface and gateway a route leaves: one way, or one per nexthop of a multipath route."""
    if several := message.get("RTA_MULTIPATH"):
        return [(int(hop["oif"]), hop.get("RTA_GATEWAY")) for hop in several]
    return [(int(message.get("RTA_OIF") or 0), message.get("RTA_GATEWAY"))]
