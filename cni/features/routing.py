"""Routing by source address, as in the reference plugin sbr: a table with only this interface's routes routes the
packets from its addresses.

The main table has only one of these routes: the kernel's, to the interface's own network.  The addresses of each
gateway have their own table.  A table's routes end with the interface; the rules do not, so they are in the record
before they are in the pod.
"""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv6Network, ip_address, ip_network
from itertools import count

from base.kernel import rules as kernel_rules
from base.kernel.addresses import RT_SCOPE_LINK
from base.protocol.errors import InvalidConfig, doing
from base.protocol.result import Address, Ip, Network, Result, Route
from base.protocol.spec import Json
from base.state import journal
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record

_FIRST = 100  # as in sbr, so that people find the table where it was
_KERNELS = {253, 254, 255}  # default, main, local
_LINK_LOCAL = IPv6Network("fe80::/64")


def claim(first: int | None, entry: Entry, record: Record, pod: Pod, result: Result) -> Record:
    """Choose free tables, and write the record with the rules to disk: ``from`` an address, lookup ``table``.

    The tables are ``first`` and those after it, or the first free ones.  Raises InvalidConfig if one from ``first`` on
    is in use; OSError, IoFailure.
    """
    with journal.lock_namespace(entry.state_dir, record.identity):
        claimed_by_others = {rule["table"] for other in journal.beside(entry.state_dir, record) for rule in other.rules}
        used = kernel_rules.tables_in_use(pod.rtnl) | claimed_by_others
        record = replace(record, rules=planned(first, used, result))
        entry.save(record)
    return record


def planned(first: int | None, used: set[int], result: Result) -> list[Json]:
    """Return the rules: one for each address, with one table for all addresses of a gateway.  IPv4 and IPv6 use the
    same table numbers.  Raises InvalidConfig."""
    gateways = dict[int, list[Address | None]]()
    for ip in result.ips:
        of_family = gateways.setdefault(ip.address.version, [])
        if ip.gateway not in of_family:
            of_family.append(ip.gateway)
    tables = _tables(first, max(map(len, gateways.values())), used, result)
    return [
        {"from": str(ip.address.ip), "table": tables[gateways[ip.address.version].index(ip.gateway)]}
        for ip in result.ips
    ]


def add(pod: Pod, rules: list[Json]) -> None:
    """Add the rules in the pod.  Raises OSError."""
    pod.rtnl.change_all([kernel_rules.adding(ip_address(rule["from"]), rule["table"]) for rule in rules])


def undo(record: Record, pod: Pod) -> None:
    """Remove the rules.  The routes end with the interface."""
    for rule in record.rules:
        with doing(f"removing rule from {rule['from']} lookup {rule['table']}"):
            kernel_rules.remove(pod.rtnl, ip_address(rule["from"]), rule["table"])


def placed(result: Result, rules: list[Json]) -> Result:
    """Return the result with each route in its table.  A route that names a table stays there.  The others go into the
    interface's tables, behind the connected network and before a default route by the gateway."""
    own = [route for route in result.routes if route.table is not None]
    tables = {rule["from"]: rule["table"] for rule in rules}
    groups = dict[tuple[int, int], list[Ip]]()
    for ip in result.ips:
        groups.setdefault((tables[str(ip.address.ip)], ip.address.version), []).append(ip)
    return replace(
        result, routes=(*own, *(r for (table, _), ips in groups.items() for r in _routes(table, ips, result)))
    )


def _tables(first: int | None, number: int, used: set[int], result: Result) -> list[int]:
    if first is None:
        used = used | _KERNELS | {route.table for route in result.routes if route.table is not None}
        free = (table for table in count(_FIRST) if table not in used)
        return [next(free) for _ in range(number)]
    wanted = list(range(first, first + number))
    if taken := sorted((used | _KERNELS | {2**32}).intersection(wanted)):
        raise InvalidConfig(
            f"policyRouting.table {first}: {taken[0]} is not free in the pod, see: ip rule, ip route show table all; "
            "choose another, or remove it to get a free one"
        )
    return wanted


def _routes(table: int, ips: list[Ip], result: Result) -> Iterator[Route]:
    """Yield the routes of one table, for the addresses of one family and gateway.  Routes without a gateway come first,
    because the kernel resolves a gateway by them."""
    family, gateway = ips[0].address.version, ips[0].gateway
    networks: set[Network] = {ip.address.network for ip in ips}
    others = {ip.address.network for ip in result.ips} - networks
    wanted = [
        route
        for route in result.routes
        if route.table is None
        and route.dst.version == family
        and not (route.gw and any(route.gw in network for network in others))
    ]
    # Without this, a default route would also take packets to a neighbour's link-local address.
    for network in sorted(networks | ({_LINK_LOCAL} if family == 6 else set()), key=str):
        if network.prefixlen < network.max_prefixlen and all(network != route.dst for route in wanted):
            yield Route(network, table=table, scope=RT_SCOPE_LINK)
    for route in sorted(wanted, key=lambda route: bool(route.gw)):
        gw = route.gw or (None if route.scope else gateway)
        yield replace(route, gw=gw, table=table, scope=route.scope if gw else RT_SCOPE_LINK)
    if gateway and all(route.dst.prefixlen for route in wanted):
        yield Route(ip_network("0.0.0.0/0" if family == 4 else "::/0"), gw=gateway, table=table)
