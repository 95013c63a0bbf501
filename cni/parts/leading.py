"""Where rules of policy routing lead the packets of an interface's addresses, as CHECK sees it.  Pure."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from typing import Final

from cni.kernel import dump
from cni.kernel.addresses import RT_TABLE_LOCAL, RT_TABLE_MAIN, RTN_LOCAL
from cni.kernel.dump import Hop, Rule
from cni.protocol.result import Ip, Network
from cni.protocol.spec import Json

# Kinds of routes (RTN_*) and, but for throw, actions of rules (FR_ACT_*).
REJECTS: Final = {6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}


def _is(rule: Json, there: Rule) -> bool:
    same = (there.source, there.table) == (ip_network(rule["from"]), rule["table"])
    return same and there.action == dump.FR_ACT_TO_TBL and not (there.conditional or there.destination)


def _covers(network: Network | None, ip: Ip) -> bool:
    return network is None or ip.address.ip in network


def tables(rules: Sequence[Rule], version: int, ips: Sequence[Ip] = ()) -> set[int]:
    """The tables to which a rule leads packets from one of the addresses, or from all.  A kernel that has no rules for
    IPv6 leads to these two."""
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
    """Whether our rule is lost, or comes after one that has the main table asked first; empty if it is as ADD left
    it."""
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
            return "a rule behind one that leads to the main table"  # guard: behind-main = continue
    return "lost the rule"


def rejecting(ip: Ip, rules: Sequence[Rule], ways: set[int], destinations: set[Network]) -> Rule | None:
    """The rule that drops packets from the address before another leads them to its interface's routes (``ways``)."""
    for rule in rules:
        if rule.version != ip.address.version or rule.conditional or not _covers(rule.source, ip):
            continue
        if rule.action == dump.FR_ACT_TO_TBL and rule.table in ways and rule.destination is None:
            return None
        if rule.action in REJECTS and _concerns(rule.destination, destinations):
            return rule
    return None


def _concerns(network: Network | None, destinations: set[Network]) -> bool:
    return network is None or any(d.version == network.version and d.overlaps(network) for d in destinations)


def local_tables(ip: Ip, there: Sequence[Hop]) -> set[int]:
    """The tables in which the address is local."""
    own = ip_network(ip.address.ip)
    return {hop.route.table for hop in there if (hop.kind, hop.route.dst) == (RTN_LOCAL, own)}


def unheard(ip: Ip, rules: Sequence[Rule], there: Sequence[Hop]) -> Iterator[str]:
    """Why nothing that is sent to the address arrives.  In a VRF the address is in its table."""
    own, local = ip_network(ip.address.ip), local_tables(ip, there)
    if not local:
        yield f"{own} is lost from the table local, so nothing sent to it arrives; remove the address and add it again"
    if local == {RT_TABLE_LOCAL} and RT_TABLE_LOCAL not in tables(rules, own.version):
        family = "-6 " if own.version == 6 else ""
        yield f"no rule leads to the table local, so nothing arrives; run in the pod: ip {family}rule add lookup local"
