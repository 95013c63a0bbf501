"""The IPAM plugin's commands.  ADD's result has no interfaces (SPEC 1.1.0, section 4, "Plugin Delegation")."""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from base.kernel import budget
from base.protocol import arguments, report, spec
from base.protocol.dispatch import Command, answer
from base.protocol.errors import CheckFailed, CniError, InvalidConfig, IoFailure, NotAvailable, PoolExhausted
from base.protocol.result import Result
from base.protocol.spec import Config, Kept, Key, Reply, Request
from ipam import allocation, leases
from ipam.allocation import Allocation
from ipam.pool import Cluster, Pool
from ipam.stores import Owner, Sandbox, Store
from ipam.stores.access import directory, open_store

if TYPE_CHECKING:
    from ipam.cluster.rules.network import Network
    from ipam.config import Find, Named
    from ipam.models import Parent
    from ipam.pool import Prefix


def run(request: Request) -> Reply:
    """Answer one request; never raises."""
    began = time.monotonic()
    budget.begin()
    reply = answer(request, {**COMMANDS, "ADD": partial(_if_permitted, add), "STATUS": partial(_if_permitted, status)})
    report.send(request.command, reply, began)
    return reply


def ask(request: Request, log: list[str]) -> Result | None:
    """Like ``run``, for a caller in this process that has checked the environment; raises errors."""
    conf = spec.configuration(request)
    return (
        add(request, conf, log, again=not request.is_last)
        if request.command == "ADD"
        else COMMANDS[request.command](request, conf, log)
    )


def add(request: Request, conf: Config, log: list[str], *, again: bool = False) -> Result:
    """Hold one address of each range set for this attachment, all or none; a repeated ADD returns the same.

    ``again``: if the interface does not exist yet, the caller repeats the call once it does.

    Raises InvalidConfig, UnsupportedField, BadEnvironment, AddressUnavailable, PoolExhausted, RecordUnreadable,
    IoFailure, TryAgain.  Raises AddressConflict, and LinkUnavailable if a necessary interface does not exist (yet).
    Raises BackendRefused for a pool that nodes share.
    """
    wanted = _allocation(request, conf, log)
    pool = wanted.pool
    ips = () if pool.needs_link else wanted.hold(wanted.requested)
    if not ips:
        from ipam import link  # noqa: PLC0415  # few configurations need it

        ips = link.hold(wanted, again=again)
    return Result(ips=ips, routes=pool.routes, dns=pool.dns)


def delete(request: Request, conf: Config, log: list[str]) -> None:
    """Release all addresses of this attachment, whatever ranges the configuration has by now.

    Raises IoFailure, TryAgain and, once, RecordUnreadable.
    """
    _store(conf, log, request.kept).release(request.key, in_use=request.in_use)
    # A number reserved for a name goes to the next node once hpn node receives this.
    report.send_freed(lambda: _may_free_number(request, conf))


def check(request: Request, conf: Config, log: list[str]) -> None:
    """Check that the lease exists, and that prevResult has its addresses.  Raises CheckFailed."""
    held = _store(conf, log).check(request.key)
    if conf.get("prevResult") is None:
        return
    try:
        previous = Result.from_json(conf["prevResult"])
    except ValueError as e:
        raise InvalidConfig(f"prevResult: {e}") from e
    if missing := set(held) - {ip.address.ip for ip in previous.ips}:
        names = ", ".join(map(str, missing))
        title = request.key.of(arguments.pod_name(arguments.cni_args(request.var("CNI_ARGS"))), spec.network_of(conf))
        raise CheckFailed(f"{names}: held by {title}, and not in prevResult.ips; delete the attachment and add it")


def status(_request: Request, conf: Config, log: list[str]) -> None:
    """Check that an ADD without requested addresses would succeed.  Raises NotAvailable, InvalidConfig,
    UnsupportedField."""
    if _is_stripped(conf):
        return
    pool = _pool(conf, {}, _parent_if_named)
    _refuse_without_ipv6(pool)
    store = _store(conf, log)
    try:
        if pool.cluster:
            from ipam.cluster import allocate  # noqa: PLC0415

            allocate.rehearse(_network(conf, pool, pool.cluster), store, log, _master(conf))
        else:
            allocation.rehearse(store, pool, partial(allocation.newcomers, pool), log, _master(conf))
    except (PoolExhausted, IoFailure) as e:
        raise NotAvailable(e.msg, e.details) from e


def _refuse_without_ipv6(pool: Pool) -> None:
    """Raise NotAvailable if a range is IPv6 and the kernel has none.  A hidden /proc counts as IPv6."""
    if not os.path.exists("/proc/sys/net") or os.path.exists("/proc/sys/net/ipv6"):
        return
    if of_ipv6 := [s.key for s in pool.sets if s.ranges[0].subnet.version == 6]:
        raise NotAvailable(
            f"{', '.join(of_ipv6)}: this kernel has no IPv6 (/proc/sys/net/ipv6 is not there); boot it without "
            "ipv6.disable=1, or remove that range from ipam"
        )


def _is_stripped(conf: Config) -> bool:
    """Whether ``ipam`` has no key but ``type``: Multus 4.3 reduces a network that it has from a file to that.  No ADD
    comes like this, and an error here would take the node down."""
    ipam, runtime = conf.get("ipam"), conf.get("runtimeConfig")
    return (
        isinstance(ipam, dict) and ipam.keys() <= {"type"} and not (isinstance(runtime, dict) and "ipRanges" in runtime)
    )


def collect(request: Request, conf: Config, log: list[str]) -> None:
    """Release the leases that are not in the runtime's list; without a list, those that are provably dead."""
    store = _store(conf, log)

    def attached() -> Collection[Key]:
        # Checked here, because the caller may have been killed while this waited for the store.
        request.refuse_if_abandoned()
        return request.attached()

    store.collect(spec.valid_attachments(conf), attached)
    # Addresses that other hosts used become free too: the next ADD probes for them.
    store.release_conflicts()


COMMANDS: Mapping[str, Command] = {"ADD": add, "DEL": delete, "CHECK": check, "STATUS": status, "GC": collect}


def _if_permitted(command: Command, request: Request, conf: Config, log: list[str]) -> Result | None:
    """Check the node's policy, which another main plugin does not, and run the command.  The caller of ``ask`` has
    checked it."""
    from base.state import permitted  # noqa: PLC0415  # neither DEL nor VERSION needs it

    if not _is_stripped(conf):
        permits = permitted.read()
        permits.refuse_choices(request, conf, ("ips", "sticky"))
        permits.refuse_names(request, conf, (), has_leases=True)
    return command(request, conf, log)


def _may_free_number(request: Request, conf: Config) -> bool:
    """Whether this node has numbers reserved for names, and the attachment may have had one."""
    with suppress(CniError):
        args = arguments.cni_args(request.var("CNI_ARGS"))
        name = arguments.requested(conf, args, "sticky", "STICKY")
        if name or arguments.is_ordinal(arguments.pod_name(args)):
            return os.path.exists(f"{directory(conf)}/sticky/blocks")  # ipam/cluster/rules/network.py
    return False


# The imports below are deferred: pydantic and filelock take most of this program's start.  VERSION needs neither.  DEL
# needs only filelock, and must work with a configuration that is no longer valid.


def _gone(boxes: Collection[Sandbox]) -> Collection[Sandbox]:
    from ipam import sandboxes  # noqa: PLC0415

    return sandboxes.gone(boxes)


def _allocation(request: Request, conf: Config, log: list[str]) -> Allocation:
    """The attachment's request.  Raises InvalidConfig, UnsupportedField, BadEnvironment."""
    from ipam import sandboxes  # noqa: PLC0415

    args = arguments.cni_args(request.var("CNI_ARGS"))
    pool, pod, kept = _pool(conf, args, _parent), arguments.pod_name(args), request.kept
    if kept and (pool.cluster or pool.needs_link):
        kept.close()
        kept = None
    log.extend(line for s in pool.sets for line in s.left_out)
    rail = None
    if pool.rails:
        from ipam import rails  # noqa: PLC0415

        rail = rails.rail_of(pool.rails, rails.device_of(conf, by={one.by for one in pool.rails}))
        if "rails" in conf and pool.requested:  # the ADD of all rails
            pool = replace(pool, requested=rails.requested_of(pool, rail))
    has_number = bool(pool.aside and not pool.requested and (pool.sticky_name or _is_stateful(conf, pool, pod)))
    # With aligned rails, one number covers all addresses of a container.
    place = "" if has_number and pool.align else request.key.ifname if rail is None else str(pool.rails[rail])
    owner = Owner(request.key, pod, request.netns, sandboxes.of(request), leases.terms(pool, pod, place))
    ranges = tuple(s.all_spans for s in pool.sets)
    alone = Allocation(request, pool, rail, owner, ranges, _store(conf, log, kept), log, _master(conf))
    if not pool.cluster:
        return alone
    from ipam.cluster import allocate  # noqa: PLC0415

    return allocate.shared(alone, _network(conf, pool, pool.cluster), has_number=has_number)


def _master(conf: Config) -> str:
    """The interface below the attachment's; empty if unknown.  A device that moves has no address of the host."""
    named = (conf.get(key) for key in ("master", "device"))
    return next((name for name in named if isinstance(name, str) and not spec.bad_ifname(name, spec.ALTNAME)), "")


def _is_stateful(conf: Config, pool: Pool, pod: str) -> bool:
    """Whether the pod belongs to a StatefulSet, as far as is known."""
    if not (pool.cluster and arguments.is_ordinal(pod)):
        return False
    from ipam.cluster import allocate  # noqa: PLC0415

    return allocate.may_have_number(_network(conf, pool, pool.cluster), pod)


def _network(conf: Config, pool: Pool, cluster: Cluster) -> "Network":
    """The network as the nodes of a cluster share it."""
    from ipam.cluster.rules.network import Network  # noqa: PLC0415

    return Network(spec.network_of(conf), directory(conf), cluster, pool)


def _pool(conf: Config, args: Mapping[str, str], find: "Find") -> Pool:
    from ipam.config import load  # noqa: PLC0415

    return load(conf, args, find)


def _parent(conf: Config, named: "Named") -> "Mapping[Parent, Prefix]":
    from ipam import parent  # noqa: PLC0415  # few configurations name a subnet of the parent

    return parent.find(conf, named)


def _parent_if_named(conf: Config, named: "Named") -> "Mapping[Parent, Prefix]":
    """As ``_parent``; nothing if only an ADD names the device."""
    from ipam import parent  # noqa: PLC0415  # as above

    return parent.find(conf, named) if parent.is_named(conf) else {}


def _store(conf: Config, log: list[str], kept: Kept | None = None) -> Store:
    return open_store(conf, log, _gone, kept)
