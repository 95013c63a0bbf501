"""What CHECK expects of an interface, its addresses, routes and rules: all that ADD left, but for what later plugins of
the chain say that they changed.

``of`` computes it from record and prevResult; ``check`` compares it with the kernel.  docs/check.md has the table of
what is compared and what is left to others.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_network
from pathlib import Path
from typing import Any, Final

from cni import parts
from cni.kernel import dump
from cni.kernel.addresses import (
    IFA_F_DADFAILED,
    IFA_F_DEPRECATED,
    RT_SCOPE_UNIVERSE,
    RT_TABLE_LOCAL,
    RTN_UNICAST,
    RTPROT_KERNEL,
)
from cni.kernel.dump import Assigned, Hop, Rule, as_kept
from cni.kernel.links import Link
from cni.kernel.netlink import attributes, read_u32
from cni.parts import addressing
from cni.protocol.errors import CheckFailed
from cni.protocol.result import Interface, Ip, Network, Result, Route
from cni.protocol.spec import Json, Key
from cni.state.pod import Pod
from cni.state.record import Record

# The reference plugin tuning keeps here, by its default, what it changed.  Nothing else tells that it changed an MTU.
_TUNED: Final = Path("/run/cni/tuning")
# Kinds of routes (RTN_*) and, but for throw, actions of rules (FR_ACT_*).
_REJECTS: Final = {6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_IFLA_VRF_TABLE: Final = 1
_ATTRIBUTES: Final = ("gw", "mtu", "advmss", "priority", "table", "scope")


@dataclass(frozen=True)
class Wanted:
    """A route to ``dst`` that must have these attributes (cni/protocol/result.py); others may have any value."""

    dst: Network
    values: Json

    @property
    def name(self) -> str:
        table = self.values.get("table")
        return f"route {self.dst}" + (f" in table {table}" if table else "")


@dataclass(frozen=True)
class Promised:
    """``interface`` is prevResult's, with MAC and MTU, which older versions leave out.  ``ips`` and ``rules`` are those
    of the record that are still in prevResult."""

    key: Key
    interface: Interface
    ips: tuple[Ip, ...]
    routes: tuple[Wanted, ...]
    rules: tuple[Json, ...]


def of(record: Record, promised: Result, netns: str) -> Promised:
    """What still has to hold of ADD's answer.  Raises CheckFailed if prevResult has no such interface."""
    own, key = Result.from_json(record.result), record.key
    index, said = _interface(promised, key.ifname, netns)
    ours = own.interfaces[0] if own.interfaces else said
    there = {ip.address for ip in promised.ips if ip.interface == index}
    ips = tuple(ip for ip in own.ips if ip.address in there)
    rules = tuple(rule for rule in record.rules if rule["from"] in {str(ip.address.ip) for ip in ips})
    kept, changed = _split(own.routes, promised.routes)
    if record.rules:
        kept = parts.routing.placed(replace(own, ips=ips, routes=kept), list(rules)).routes
    return Promised(
        key=key,
        interface=replace(said, mac=(said.mac or ours.mac).lower(), mtu=said.mtu or ours.mtu),
        ips=ips,
        # ADD chose a route's gateway among all of its addresses, so all of them are looked at here, too.
        routes=(*map(_left, addressing.with_gateways(replace(own, routes=kept))), *map(_said, changed)),
        rules=rules,
    )


def check(pod: Pod, link: Link, promised: Promised) -> None:
    """Compare with the kernel.  Raises CheckFailed for the first difference; OSError."""
    vrf_table = _check_link(pod, link, promised)
    _check_addresses(link, promised.ips, dump.addresses(pod.fd, link.index) if promised.ips else {})
    if not promised.ips and not promised.routes:
        return
    rules, routes = dump.rules(pod.fd), dump.routes(pod.fd)
    for rule in promised.rules:
        if not any(_is(rule, there) for there in rules):
            raise CheckFailed(f"{pod.path} has lost the rule: from {rule['from']} lookup {rule['table']}")
    led = _tables_led_to(rules, promised.ips) | ({vrf_table} if vrf_table else set())
    for wanted in promised.routes:
        if problem := differing(wanted, routes, link.index, led):
            raise CheckFailed(f"{link.name}: {problem}")
    connected = {ip.address.network for ip in promised.ips}
    for network in connected:
        if problem := _before_connected(network, routes, link.index, led):
            raise CheckFailed(f"{link.name}: {problem}")
    ways = {hop.route.table for hop in routes if hop.output == link.index} - {RT_TABLE_LOCAL}
    for ip in promised.ips:
        if found := _rejecting(ip, rules, ways, connected | {wanted.dst for wanted in promised.routes}):
            to = f" to {found.destination}" if found.destination else ""
            raise CheckFailed(
                f"{pod.path} has a rule before those that lead to {link.name}'s routes: "
                f"from {found.source or 'all'}{to} {_REJECTS[found.action]}; remove it"
            )


def differing(wanted: Wanted, there: Sequence[Hop], index: int, led: set[int]) -> str:
    """What is wrong with a route by the interface of that index; empty if it is as wanted.  ``led`` are the tables that
    rules lead to.  If ADD named no table, sbr may have moved the route to one of these."""
    same = [
        (position, hop)
        for position, hop in enumerate(there)
        if (hop.kind, hop.output, hop.route.dst) == (RTN_UNICAST, index, wanted.dst)
        and hop.route.table == wanted.values.get("table", hop.route.table)
    ]
    found = [(list(_differences(wanted, hop, led)), position) for position, hop in same]
    if not found:
        return f"{wanted.name} is lost"
    differences, position = min(found, key=lambda one: len(one[0]))
    if differences:
        return f"{wanted.name} is another: " + ", ".join(differences)
    return _in_front(there, position)


def _interface(promised: Result, ifname: str, sandbox: str) -> tuple[int, Interface]:
    for index, interface in enumerate(promised.interfaces):
        if interface.name == ifname and interface.sandbox == sandbox:
            return index, interface
    raise CheckFailed(f"prevResult has no interface {ifname} in sandbox {sandbox}")


def _split(own: Sequence[Route], promised: Sequence[Route]) -> tuple[tuple[Route, ...], tuple[Route, ...]]:
    """Our routes that prevResult has unchanged, and its routes in place of those that a later plugin changed.  If
    prevResult has no route to a destination any more, a later plugin removed it."""
    kept = tuple(route for route in own if any(_agrees(said, route) for said in promised))
    others = [said for said in promised if not any(_agrees(said, route) for route in own)]
    changed = {route.dst for route in own if route not in kept}
    return kept, tuple(said for said in others if said.dst in changed)


def _agrees(said: Route, route: Route) -> bool:
    """Whether both may be the same route.  Before 1.1.0 a result has only its destination and gateway."""
    if (said.dst, said.gw) != (route.dst, route.gw):
        return False
    return all(getattr(said, name) in (None, getattr(route, name)) for name in _ATTRIBUTES)


def _left(route: Route) -> Wanted:
    """The route as ADD left it.  If ADD named no table, a later plugin may have moved it and not said so, as sbr
    does."""
    kept = as_kept(route)
    names = (name for name in _ATTRIBUTES if name != "table" or route.table is not None)
    return Wanted(route.dst, {name: getattr(kept, name) for name in names})


def _said(route: Route) -> Wanted:
    """The route as a later plugin describes it.  An attribute that is missing there may be unknown to that plugin."""
    kept = as_kept(route)
    return Wanted(route.dst, {n: getattr(kept, n) for n in _ATTRIBUTES if getattr(route, n) is not None})


def _check_link(pod: Pod, link: Link, promised: Promised) -> int:
    """Compare the link.  Returns the table of its VRF, 0 if it is in none.  The chained plugin vrf puts it into one."""
    expected = promised.interface
    if expected.mac and link.mac != expected.mac:
        raise CheckFailed(f"{link.name} has MAC {link.mac}, expected {expected.mac}")
    # The MTU of an InfiniBand interface follows the subnet manager's multicast group.
    if expected.mtu and link.mtu != expected.mtu and not link.infiniband and not _tuned(promised.key):
        raise CheckFailed(f"{link.name} has MTU {link.mtu}, expected {expected.mtu}")
    if not link.up:
        raise CheckFailed(f"{link.name} is down, expected up; run in the pod: ip link set {link.name} up")
    if not link.enslaved:
        return 0
    over = pod.rtnl.link(index=link.enslaved)
    if over is None or over.kind != "vrf":
        where = f"{over.name} ({over.kind})" if over else f"the interface of index {link.enslaved}"
        raise CheckFailed(f"{link.name} is enslaved to {where}, expected on its own")
    return read_u32(attributes(over.data).get(_IFLA_VRF_TABLE, b""))


def _tuned(key: Key) -> bool:
    """Whether the plugin tuning says that it changed the interface's MTU.  It does not change the result, and compares
    the MTU in its own CHECK."""
    try:
        said = json.loads((_TUNED / f"{key.container_id}_{key.ifname}.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and bool(said.get("mtu"))


def _check_addresses(link: Link, ips: Sequence[Ip], there: dict[IPv4Interface | IPv6Interface, Assigned]) -> None:
    for ip in ips:
        if ip.address not in there:
            raise CheckFailed(f"{link.name} has lost address {ip.address}")
        has = there[ip.address]
        if has.flags & IFA_F_DADFAILED:
            raise CheckFailed(f"{link.name} cannot use {ip.address}: another host on the link has it")
        if ip.address.version == 4 and has.scope != RT_SCOPE_UNIVERSE:
            raise CheckFailed(f"{link.name} has {ip.address} with scope {has.scope}, expected 0 (global)")
        if _by_routers(ip):
            continue
        if has.flags & IFA_F_DEPRECATED:
            raise CheckFailed(f"{link.name} has {ip.address} deprecated, so nothing new leaves from it")
        if min(has.preferred, has.valid) != dump.FOREVER:
            raise CheckFailed(f"{link.name} has {ip.address} for {has.valid} s more, expected for ever")


def _by_routers(ip: Ip) -> bool:
    """Whether the address is made of a MAC.  So are those of routers' advertisements, which give this one a lifetime,
    too."""
    return ip.address.version == 6 and ip.address.ip.packed[11:13] == b"\xff\xfe"


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
    """The route that gets this route's packets first, and drops them; empty if there is none.  It has a lower metric,
    or the same and comes first, or is in the table local, which is asked before all others."""
    ours = there[position].route
    for at, hop in enumerate(there):
        if hop.kind not in _REJECTS or hop.proto == RTPROT_KERNEL or hop.route.dst != ours.dst:
            continue
        first = (hop.route.priority, at) < (ours.priority, position)
        if hop.route.table == RT_TABLE_LOCAL or (hop.route.table == ours.table and first):
            table = f"table {hop.route.table}, metric {hop.route.priority}"
            return f"{_REJECTS[hop.kind]} {ours.dst} ({table}) is before the interface's route; remove it"
    return ""


def _before_connected(network: Network, there: Sequence[Hop], index: int, led: set[int]) -> str:
    """``_in_front`` of the route that the kernel makes of an address.  This route need not be there, because a later
    plugin may remove it (sbr, route-override)."""
    for position, hop in enumerate(there):
        if (hop.output, hop.route.dst) == (index, network) and hop.route.table in led:
            return _in_front(there, position)
    return ""


def _is(rule: Json, there: Rule) -> bool:
    same = (there.source, there.table) == (ip_network(rule["from"]), rule["table"])
    return same and there.action == dump.FR_ACT_TO_TBL and not (there.conditional or there.destination)


def _covers(network: Network | None, ip: Ip) -> bool:
    return network is None or ip.address.ip in network


def _tables_led_to(rules: Sequence[Rule], ips: Sequence[Ip]) -> set[int]:
    """The tables to which a rule leads packets from one of the addresses, or from all."""
    return {
        rule.table
        for rule in rules
        if rule.action == dump.FR_ACT_TO_TBL
        and not rule.conditional
        and (rule.source is None or any(_covers(rule.source, ip) for ip in ips))
    }


def _rejecting(ip: Ip, rules: Sequence[Rule], ways: set[int], destinations: set[Network]) -> Rule | None:
    """The rule that drops packets from the address before another leads them to its interface's routes (``ways``)."""
    for rule in rules:
        if rule.version != ip.address.version or rule.conditional or not _covers(rule.source, ip):
            continue
        if rule.action == dump.FR_ACT_TO_TBL and rule.table in ways and rule.destination is None:
            return None
        if rule.action in _REJECTS and _concerns(rule.destination, destinations):
            return rule
    return None


def _concerns(network: Network | None, destinations: set[Network]) -> bool:
    return network is None or any(d.version == network.version and d.overlaps(network) for d in destinations)
