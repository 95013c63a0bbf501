"""rtnetlink questions that are asked rarely (CHECK, the default master), through pyroute2.

pyroute2 is imported on first use: it costs more than a whole ADD.  Every socket is opened, used and closed
on a thread inside the namespace; ``IPRoute(netns=...)`` is not used, because it forks, and creates a
namespace whose name is misspelled.
"""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface, ip_network
from socket import AF_INET, AF_INET6
from typing import Any, TypeVar

from cni.kernel.addresses import RT_TABLE_MAIN, RTN_UNICAST
from cni.kernel.netns import run_in
from cni.result import Route

T = TypeVar("T")


def addresses(ns_fd: int | None, index: int) -> dict[IPv4Interface | IPv6Interface, int]:
    """Equivalent to: ip address show dev DEV.  Address -> IFA_F_* flags."""

    def ask(ipr: Any) -> dict[IPv4Interface | IPv6Interface, int]:
        found = {}
        for message in ipr.addr("dump", index=index):
            # IFA_LOCAL is the interface's own address where IFA_ADDRESS is a point-to-point peer's.
            address = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
            found[ip_interface(f"{address}/{message['prefixlen']}")] = message.get("IFA_FLAGS") or message["flags"]
        return found

    return _ask(ns_fd, ask)


def routes(ns_fd: int, index: int) -> frozenset[tuple[Route, int]]:
    """Equivalent to: ip route show table all dev DEV.  (Route with destination, gateway and metric, table)."""

    def ask(ipr: Any) -> frozenset[tuple[Route, int]]:
        messages = [m for family in (AF_INET, AF_INET6) for m in ipr.route("dump", family=family)]
        return frozenset(
            (Route(*_destination(m), priority=m.get("RTA_PRIORITY")), m.get("RTA_TABLE") or m["table"])
            for m in messages
            if m["type"] == RTN_UNICAST and index in _outputs(m)
        )

    return _ask(ns_fd, ask)


def rules(ns_fd: int) -> frozenset[tuple[str, int]]:
    """Equivalent to: ip rule show.  (Source address, table) of those for one source."""

    def ask(ipr: Any) -> frozenset[tuple[str, int]]:
        messages = [m for family in (AF_INET, AF_INET6) for m in ipr.rule("dump", family=family)]
        return frozenset((m.get("FRA_SRC"), m.get("FRA_TABLE") or m["table"]) for m in messages if m.get("FRA_SRC"))

    return _ask(ns_fd, ask)


def default_route_link(ns_fd: int | None) -> str:
    """The interface of the default route (IPv4's, else IPv6's, of lowest metric); empty if there is none."""

    def ask(ipr: Any) -> str:
        for family in (AF_INET, AF_INET6):
            found = [
                m
                for m in ipr.route("dump", family=family, table=RT_TABLE_MAIN)
                if m["dst_len"] == 0 and m["type"] == RTN_UNICAST and _outputs(m)
            ]
            if found:
                best = min(found, key=lambda m: m.get("RTA_PRIORITY") or 0)
                (link,) = ipr.get_links(_outputs(best)[0])
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


def _destination(message: Any) -> tuple[Any, Any]:
    gateway = message.get("RTA_GATEWAY")
    anywhere = IPv4Address(0) if message["family"] == AF_INET else IPv6Address(0)
    destination = ip_network(f"{message.get('RTA_DST') or anywhere}/{message['dst_len']}")
    return destination, ip_address(gateway) if gateway else None


def _outputs(message: Any) -> list[int]:
    """The interfaces a route leaves by: one, or one per nexthop of a multipath route."""
    if message.get("RTA_OIF"):
        return [int(message.get("RTA_OIF"))]
    return [int(hop["oif"]) for hop in message.get("RTA_MULTIPATH") or []]
