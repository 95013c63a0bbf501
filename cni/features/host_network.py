"""The host's network of a device (``useInterfaceNetwork``): its addresses, routes and rules, into the pod and back.

The journal has it in the device's plan, so it is on disk before the device moves.  The kernel drops addresses and
routes when the device leaves a namespace, but no rule.  So the host keeps its rules, which select nothing meanwhile,
and ``undo`` removes those of the pod.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from socket import AF_INET6
from typing import Final

from base.kernel import host_network, rtnl
from base.kernel import rules as kernel_rules
from base.kernel.host_network import HostNetwork
from base.kernel.links import Link
from base.kernel.netlink import NLM_F_EXCL, AnswerLost, Change
from base.kernel.rtnl import Rtnl
from base.protocol.errors import CheckFailed, doing
from base.protocol.result import Result
from base.protocol.spec import Json
from base.state import journal
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record
from cni.features import addressing

_NAMED: Final = 5  # losses in a message


def read(link: Link) -> Json:
    """Return the network of an interface of the host, for its plan.  Raises OSError."""
    with rtnl.open_in(strictly=True) as host:
        return asdict(host_network.read(host, link.index))


def with_taken(result: Result, record: Record) -> Result:
    """Return the result with the addresses and routes that came from the host."""
    ips, routes = host_network.results(HostNetwork(**record.host_network))
    there = {ip.address for ip in result.ips}
    more = tuple(ip for ip in ips if ip.address not in there)
    return replace(result, ips=(*result.ips, *more), routes=(*result.routes, *routes))


def settings(record: Record, link: Link) -> dict[str, str]:
    """Return the sysctls that the addresses need in the pod.  Raises InvalidConfig."""
    ips, _ = host_network.results(HostNetwork(**record.host_network))
    return addressing.settings(link, needs_v6=any(ip.address.version == 6 for ip in ips), dad="off")


def make(record: Record, pod: Pod, link: Link) -> None:
    """Add addresses, routes and rules in the pod, where the interface is up.  Raises OSError.

    What is there already is as good: the kernel's route to an address's network, or the rule of another device.
    """
    network, netdev = HostNetwork(**record.host_network), record.link["netdev"]
    addresses = filter(host_network.in_pod, host_network.in_order(network))
    changes = [
        *(host_network.address_for_pod(body, link.index, netdev, link.name) for body in addresses),
        *(host_network.route_for(body, link.index) for body in host_network.messages(network.routes)),
        *_rules(network.rules, netdev, link.name),
    ]
    for what, kind, flags, body in changes:
        with doing(f"{what} of {netdev} in {pod.path}"), suppress(FileExistsError):
            pod.rtnl.change(kind, flags, body)


def check(record: Record, pod: Pod) -> None:
    """Raise CheckFailed if a rule is lost.  features.expected compares addresses and routes with the result."""
    there = {body for _, _, _, body in _rules(host_network.shown_rules(pod.rtnl))}
    for what, _, _, body in _rules(record.host_network["rules"], record.link["netdev"], record.key.ifname):
        if body not in there:
            raise CheckFailed(f"{pod.path} has lost the {what.removeprefix('adding ')}")


def undo(entry: Entry, record: Record, pod: Pod) -> None:
    """Remove the rules from the pod, but for those that another device of it brought too.  Raises OSError."""
    others = journal.beside(entry.state_dir, record)
    kept = {digits for other in others if other.host_network for digits in other.host_network["rules"]}
    mine = [digits for digits in record.host_network["rules"] if digits not in kept]
    for what, _, _, body in _rules(mine, record.link["netdev"], record.key.ifname):
        with doing(f"{what.replace('adding', 'removing')} from {pod.path}"):
            kernel_rules.remove_as_is(pod.rtnl, body)


def give_back(taken: Json, index: int, netdev: str) -> str:
    """Add what the host has lost of the network; return a note for the log, empty if the host has it as it was.

    Nothing replaces what is there: an agent of the host may have configured the interface meanwhile.  Raises OSError
    only if the kernel does not answer; a repetition is safe.
    """
    network = HostNetwork(**taken)
    with rtnl.open_in(strictly=True) as host:
        lost = [*_addresses_back(host, network, index), *_routes_back(host, network, index)]
        lost += [problem for change in _rules(network.rules) if (problem := _problem(host, [change]))]
    more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return f"the host's {netdev} is home, but not as it was: {'; '.join(lost[:_NAMED])}{more}" if lost else ""


def _rules(rules: Iterable[str], netdev: str = "", ifname: str = "") -> list[Change]:
    return [host_network.rule_for(body, netdev, ifname) for body in host_network.messages(rules)]


def _addresses_back(host: Rtnl, network: HostNetwork, index: int) -> Iterator[str]:
    """Add the addresses that the host lacks, unless another interface got one.  Yield what differs from before."""
    elapsed, now = time.monotonic() - network.at, host_network.addresses(host)
    elsewhere = [has for has in now if not has[1].is_link_local and f"{has[1].ip}" not in network.shared]
    there = {has[1].ip: has for has in (*elsewhere, *(has for has in now if has[0] == index))}
    ours = {(index, host_network.address_of(body)) for body in host_network.messages(network.addresses)}
    for body in host_network.in_order(network):
        address = host_network.address_of(body)
        changes = host_network.address_for_host(body, index, elapsed)
        if has := there.get(address.ip):
            if has not in ours:
                yield f"the host has {has[1]} on {_name(host, has[0])} already"
        elif not changes:
            yield f"the lifetime of {address} has ended"
        elif problem := _problem(host, changes):
            yield problem
    for one, address in now:
        if one == index and (one, address) not in ours:
            yield f"it has {address} too"


def _routes_back(host: Rtnl, network: HostNetwork, index: int) -> Iterator[str]:
    """Add the routes that the interface lacks.  Yield those that differ from a present one, and failures."""
    there = {host_network.route_for(b, index)[3]: host_network.key_of(b) for b in host_network.routes(host, index)}
    ours = {host_network.route_for(b, index): host_network.key_of(b) for b in host_network.messages(network.routes)}
    messages = {change[3] for change in ours}
    others = {key for message, key in there.items() if message not in messages}
    for (what, kind, flags, message), key in ours.items():
        if message in there:
            continue
        another = f"the host has another {what.removeprefix('adding ')} already"
        # A second route of IPv6 would join the first, whichever interface that has.
        exclusive = flags | NLM_F_EXCL if message[0] == AF_INET6 else flags
        if key in others:
            yield another
        elif problem := _problem(host, [(what, kind, exclusive, message)], another):
            yield problem


def _problem(host: Rtnl, changes: list[Change], exists: str = "") -> str:
    """Make the changes together; return why the kernel refused one, which must not make DEL fail for ever.  ``exists``
    is the reason for an object that is there."""
    try:
        host.change_all(changes)
    except FileExistsError:
        return exists
    except AnswerLost:
        raise
    except OSError as e:
        return f"{changes[0][0]}: {e.strerror}"
    return ""


def _name(host: Rtnl, index: int) -> str:
    link = host.link(index=index)
    return link.name if link else f"the interface of index {index}"
