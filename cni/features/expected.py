"""What CHECK expects of an interface, its addresses, routes and rules: ADD's result with the changes that later plugins
of the chain report.

``of`` computes it from record and prevResult; ``check`` compares it with the kernel.  docs/user/commands.md lists
the compared and the ignored attributes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_network
from pathlib import Path
from typing import Any, Final

from base.kernel import budget, dump
from base.kernel.addresses import (
    IFA_F_DADFAILED,
    IFA_F_DEPRECATED,
    IFA_F_TENTATIVE,
    RT_SCOPE_UNIVERSE,
    RT_TABLE_LOCAL,
    RT_TABLE_MAIN,
    RTN_LOCAL,
    RTN_UNICAST,
    RTPROT_KERNEL,
)
from base.kernel.dump import Assigned, Hop, Rule, as_kept
from base.kernel.links import Link
from base.kernel.netlink import attributes, read_u32
from base.protocol.errors import CheckFailed
from base.protocol.result import Interface, Ip, Network, Result, Route
from base.protocol.spec import Json, Key
from base.state.pod import Pod
from base.state.record import Record
from cni import features
from cni.features import addressing

# Default directory in which the reference plugin tuning keeps its changes.  No other source shows a changed MTU.
_TUNED: Final = Path("/run/cni/tuning")
_IFLA_VRF_TABLE: Final = 1
# Seconds: how long the kernel may take to make an IPv6 address local.
_LOCAL: Final = 2.0
_ATTRIBUTES: Final = ("gw", "mtu", "advmss", "priority", "table", "scope")
# Kinds of routes (RTN_*) and, but for throw, actions of rules (FR_ACT_*).
REJECTS: Final = {6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}


@dataclass(frozen=True)
class Wanted:
    """A route to ``dst`` that must have these attributes (base/protocol/result.py); others may have any value."""

    dst: Network
    values: Json

    @property
    def name(self) -> str:
        table = self.values.get("table")
        return f"route {self.dst}" + (f" in table {table}" if table else "")

    @property
    def lost(self) -> str:
        """The problem that there is no such route."""
        return f"{self.name} is lost"


@dataclass(frozen=True)
class Expected:
    """``interface`` is prevResult's, with the MAC and MTU that older versions omit.  ``ips`` and ``rules`` are those of
    the record that are still in prevResult."""

    key: Key
    interface: Interface
    ips: tuple[Ip, ...]
    routes: tuple[Wanted, ...]
    rules: tuple[Json, ...]


def of(record: Record, promised: Result, netns: str) -> Expected:
    """Return what must still be true of ADD's result.  Raises CheckFailed if prevResult has no such interface."""
    own, key = Result.from_json(record.result), record.key
    index, theirs = _interface(promised, key.ifname, netns)
    ours = own.interfaces[0] if own.interfaces else theirs
    there = {ip.address for ip in promised.ips if ip.interface == index}
    ips = tuple(ip for ip in own.ips if ip.address in there)
    rules = tuple(rule for rule in record.rules if rule["from"] in {str(ip.address.ip) for ip in ips})
    kept, changed = _split(own.routes, promised.routes)
    if record.rules:
        kept = features.routing.placed(replace(own, ips=ips, routes=kept), list(rules)).routes
    return Expected(
        key=key,
        interface=replace(theirs, mac=(theirs.mac or ours.mac).lower(), mtu=theirs.mtu or ours.mtu),
        ips=ips,
        # With all of ADD's addresses, among which ADD chose a route's gateway.
        routes=(*map(_left, addressing.with_gateways(replace(own, routes=kept))), *map(_reported, changed)),
        rules=rules,
    )


def check_carries(link: Link) -> None:
    """Raise CheckFailed for a link that carries nothing."""
    if not link.up:
        raise CheckFailed(f"{link.name} is down, expected up; run in the pod: ip link set {link.name} up")
    if link.proto_down:
        raise CheckFailed(f"{link.name} is held down; run in the pod: ip link set {link.name} protodown off")


def check(pod: Pod, link: Link, expected: Expected) -> None:
    """Compare with the kernel.  Raises CheckFailed for the first difference; OSError."""
    _check_link(link, expected)
    vrf = pod.rtnl.link(index=link.enslaved) if link.enslaved else None
    assigned = dump.addresses(pod.fd, link.index) if expected.ips else {}
    _check_addresses(link, expected.ips, assigned)
    if not expected.ips and not expected.routes:
        return
    received = [ip for ip in expected.ips if not assigned[ip.address].flags & IFA_F_TENTATIVE]
    rules, routes = dump.rules(pod.fd), _routes(pod, received)
    for rule in expected.rules:
        if problem := misplaced(rule, rules):
            raise CheckFailed(f"{pod.path} has {problem}: from {rule['from']} lookup {rule['table']}")
    for problem in _problems(link, expected, received, rules, routes, vrf):
        raise CheckFailed(f"{link.name}: {problem}")
    connected = {ip.address.network for ip in expected.ips}
    ways = {hop.route.table for hop in routes if hop.output == link.index} - {RT_TABLE_LOCAL}
    for ip in expected.ips:
        if found := rejecting(ip, rules, ways, connected | {wanted.dst for wanted in expected.routes}):
            to = f" to {found.destination}" if found.destination else ""
            raise CheckFailed(
                f"{pod.path} has rule from {found.source or 'all'}{to} {REJECTS[found.action]} "
                f"before those that lead to {link.name}'s routes; remove it"
            )


def _problems(
    link: Link,
    expected: Expected,
    received: Sequence[Ip],
    rules: Sequence[Rule],
    routes: Sequence[Hop],
    vrf: Link | None,
) -> Iterator[str]:
    """Yield what keeps packets from the addresses or the interface; ``vrf`` is the VRF that the link is in."""
    in_vrf = {_vrf_table(vrf)} if vrf else set[int]()
    led = {version: tables(rules, version, expected.ips) | in_vrf for version in (4, 6)}
    for ip in received:
        yield from unreachable(ip, rules, routes)
    for wanted in expected.routes:
        if problem := differing(wanted, routes, link.index, led[wanted.dst.version]):
            # Linux sets a link down that enters a VRF, and with it go the link's routes in every table.
            why = f", since {link.name} is in the VRF {vrf.name}; add it again in the pod" if vrf else ""
            yield problem + (why if problem == wanted.lost else "")
    for network in {ip.address.network for ip in expected.ips}:
        if problem := _of_connected(network, routes, link.index, led[network.version]):
            yield problem


def differing(wanted: Wanted, there: Sequence[Hop], index: int, led: set[int]) -> str:
    """Return what is wrong with a route by the interface of that index; empty if nothing is.  ``led`` are the tables
    that rules lead to.  If ADD named no table, sbr may have moved the route to one of these."""
    same = [
        (position, hop)
        for position, hop in enumerate(there)
        if (hop.kind, hop.output, hop.route.dst) == (RTN_UNICAST, index, wanted.dst)
        and hop.route.table == wanted.values.get("table", hop.route.table)
    ]
    found = [(list(_differences(wanted, hop, led)), position) for position, hop in same]
    if not found:
        return wanted.lost
    differences, position = min(found, key=lambda one: len(one[0]))
    if differences:
        return f"{wanted.name} differs: " + ", ".join(differences)
    return _in_front(there, position)


def _interface(promised: Result, ifname: str, sandbox: str) -> tuple[int, Interface]:
    for index, interface in enumerate(promised.interfaces):
        if interface.name == ifname and interface.sandbox == sandbox:
            return index, interface
    raise CheckFailed(f"prevResult has no interface {ifname} in sandbox {sandbox}")


def _split(own: Sequence[Route], promised: Sequence[Route]) -> tuple[tuple[Route, ...], tuple[Route, ...]]:
    """Return our routes that prevResult has unchanged, and its routes in place of changed ones.  If prevResult lacks a
    destination, a later plugin removed that route."""
    kept = tuple(route for route in own if any(_agrees(theirs, route) for theirs in promised))
    others = [theirs for theirs in promised if not any(_agrees(theirs, route) for route in own)]
    changed = {route.dst for route in own if route not in kept}
    return kept, tuple(theirs for theirs in others if theirs.dst in changed)


def _agrees(theirs: Route, route: Route) -> bool:
    """Whether both may be the same route.  Before 1.1.0 a result has only a route's destination and gateway."""
    if (theirs.dst, theirs.gw) != (route.dst, route.gw):
        return False
    return all(getattr(theirs, name) in (None, getattr(route, name)) for name in _ATTRIBUTES)


def _left(route: Route) -> Wanted:
    """Return the route as ADD left it.  If ADD named no table, sbr may have moved it without a report."""
    kept = as_kept(route)
    names = (name for name in _ATTRIBUTES if name != "table" or route.table is not None)
    return Wanted(route.dst, {name: getattr(kept, name) for name in names})


def _reported(route: Route) -> Wanted:
    """Return the route as a later plugin reports it.  That plugin may not know an attribute that it omits."""
    kept = as_kept(route)
    return Wanted(route.dst, {n: getattr(kept, n) for n in _ATTRIBUTES if getattr(route, n) is not None})


def _check_link(link: Link, expected: Expected) -> None:
    """Compare the link's own attributes."""
    interface = expected.interface
    if interface.mac and link.mac != interface.mac:
        raise CheckFailed(f"{link.name} has MAC {link.mac}, expected {interface.mac}")
    # The MTU of an InfiniBand interface follows the subnet manager's multicast group.
    if interface.mtu and link.mtu != interface.mtu and not link.infiniband and not _tuned(expected.key):
        raise CheckFailed(f"{link.name} has MTU {link.mtu}, expected {interface.mtu}")


def _vrf_table(vrf: Link) -> int:
    """The table of a VRF, into which the chained plugin vrf puts a link."""
    return read_u32(attributes(vrf.data).get(_IFLA_VRF_TABLE, b""))


def _tuned(key: Key) -> bool:
    """Whether the plugin tuning changed the interface's MTU.  It does not report that, and has its own CHECK."""
    try:
        body = json.loads((_TUNED / f"{key.container_id}_{key.ifname}.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and bool(body.get("mtu"))


def _check_addresses(link: Link, ips: Sequence[Ip], there: dict[IPv4Interface | IPv6Interface, Assigned]) -> None:
    for ip in ips:
        if ip.address not in there:
            raise CheckFailed(f"{link.name} has lost address {ip.address}")
        has = there[ip.address]
        if has.flags & IFA_F_DADFAILED:
            raise CheckFailed(f"{link.name} cannot use {ip.address}: another host on the link has it")
        if ip.address.version == 4 and has.scope != RT_SCOPE_UNIVERSE:
            raise CheckFailed(f"{link.name} has {ip.address} with scope {has.scope}, expected 0 (global)")
        # Routers' advertisements make the same address as one derived from a MAC, with a lifetime.
        if ip.address.version == 6 and ip.address.ip.packed[11:13] == b"\xff\xfe":
            continue
        if has.flags & IFA_F_DEPRECATED:
            raise CheckFailed(f"{link.name} has {ip.address} deprecated, so no new connection uses it")
        lifetime = min(has.preferred, has.valid)
        if lifetime != dump.FOREVER:
            raise CheckFailed(f"{link.name} has {ip.address} with a lifetime of {lifetime} s, expected unlimited")


def _differences(wanted: Wanted, hop: Hop, led: set[int]) -> Iterator[str]:
    for name, value in wanted.values.items():
        has = getattr(hop.route, name)
        if has != value and not (hop.merged and name in ("mtu", "advmss")):
            yield f"{name} is {_shown(has)}, expected {_shown(value)}"
    if "table" not in wanted.values and hop.route.table not in led:
        yield f"table is {hop.route.table}, where no rule leads"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _in_front(there: Sequence[Hop], position: int) -> str:
    """Return the route that precedes this route and drops its packets; empty if there is none.  It has a lower metric,
    or the same and comes first, or is in the table local, which the kernel consults first."""
    ours = there[position].route
    for at, hop in enumerate(there):
        if hop.kind not in REJECTS or hop.proto == RTPROT_KERNEL or hop.route.dst != ours.dst:
            continue
        first = (hop.route.priority, at) < (ours.priority, position)
        if hop.route.table == RT_TABLE_LOCAL or (hop.route.table == ours.table and first):
            table = f"table {hop.route.table}, metric {hop.route.priority}"
            return f"{REJECTS[hop.kind]} {ours.dst} ({table}) is before the interface's route; remove it"
    return ""


def _of_connected(network: Network, there: Sequence[Hop], index: int, led: set[int]) -> str:
    """Return what is wrong with the route that the kernel makes for an address; empty if nothing is.  The route may be
    absent, because a later plugin may remove it (sbr, route-override)."""
    tables = list[int]()
    for position, hop in enumerate(there):
        if (hop.kind, hop.output, hop.route.dst) == (RTN_UNICAST, index, network):
            if hop.route.table in led:
                return _in_front(there, position)
            tables.append(hop.route.table)
    return f"route {network} is in table {tables[0]}, where no rule leads" if tables else ""


def _routes(pod: Pod, received: Sequence[Ip]) -> list[Hop]:
    """Return all routes, once the IPv6 addresses are local.  The kernel makes an IPv6 address first and its local route
    later (addrconf_dad_work in net/ipv6/addrconf.c)."""
    routes, v6 = list[Hop](), [ip for ip in received if ip.address.version == 6]
    for _ in budget.attempts(_LOCAL, 0.01):
        routes = dump.routes(pod.fd)
        if all(local_tables(ip, routes) for ip in v6):
            break
    return routes


def _is(rule: Json, there: Rule) -> bool:
    same = (there.source, there.table) == (ip_network(rule["from"]), rule["table"])
    return same and there.action == dump.FR_ACT_TO_TBL and not (there.conditional or there.destination)


def _covers(network: Network | None, ip: Ip) -> bool:
    return network is None or ip.address.ip in network


def tables(rules: Sequence[Rule], version: int, ips: Sequence[Ip] = ()) -> set[int]:
    """Return the tables of the rules for all packets, or for packets from one of these addresses.  Without any rule of
    that IP version: main and local."""
    of_version = [rule for rule in rules if rule.version == version]
    if not of_version:
        return {RT_TABLE_MAIN, RT_TABLE_LOCAL}
    return {
        rule.table
        for rule in of_version
        if rule.action == dump.FR_ACT_TO_TBL
        and not rule.conditional
        and (rule.source is None or any(_covers(rule.source, ip) for ip in ips))
    }


def misplaced(ours: Json, rules: Sequence[Rule]) -> str:
    """Return what is wrong with our rule: it is lost, or behind one that leads to main; empty if nothing is."""
    network = ip_network(ours["from"])
    for there in rules:
        if _is(ours, there):
            return ""
        if (
            (there.version, there.action, there.table) == (network.version, dump.FR_ACT_TO_TBL, RT_TABLE_MAIN)
            and not (there.conditional or there.destination)
            and (there.source is None or network.subnet_of(there.source))  # type: ignore[arg-type]  # of one version
            and any(_is(ours, one) for one in rules)
        ):
            return "a rule behind one that leads to the main table"
    return "lost the rule"


def rejecting(ip: Ip, rules: Sequence[Rule], ways: set[int], destinations: set[Network]) -> Rule | None:
    """Return the rule that drops packets from the address before another leads them to the interface's ``ways``."""
    for rule in rules:
        if rule.version != ip.address.version or rule.conditional or not _covers(rule.source, ip):
            continue
        if rule.action == dump.FR_ACT_TO_TBL and rule.table in ways and rule.destination is None:
            return None
        to = rule.destination
        if rule.action in REJECTS and (
            to is None or any(d.version == to.version and d.overlaps(to) for d in destinations)
        ):
            return rule
    return None


def local_tables(ip: Ip, there: Sequence[Hop]) -> set[int]:
    """Return the tables in which the address is local."""
    own = ip_network(ip.address.ip)
    return {hop.route.table for hop in there if (hop.kind, hop.route.dst) == (RTN_LOCAL, own)}


def unreachable(ip: Ip, rules: Sequence[Rule], there: Sequence[Hop]) -> Iterator[str]:
    """Yield why packets to the address do not arrive.  In a VRF the address is local in the VRF's table."""
    own, local = ip_network(ip.address.ip), local_tables(ip, there)
    if not local:
        yield f"{own} is lost from the table local, so nothing sent to it arrives; remove the address and add it again"
    if local == {RT_TABLE_LOCAL} and RT_TABLE_LOCAL not in tables(rules, own.version):
        family = "-6 " if own.version == 6 else ""
        yield f"no rule leads to the table local, so nothing arrives; run in the pod: ip {family}rule add lookup local"
