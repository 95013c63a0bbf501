"""The IPAM plugin's commands.  ADD answers without interfaces (SPEC 1.1.0, section 4, "Plugin Delegation")."""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cni.kernel import budget
from cni.protocol import arguments, report, spec
from cni.protocol.dispatch import Command, answer
from cni.protocol.errors import (
    AddressHeld,
    CheckFailed,
    CniError,
    InvalidConfig,
    IoFailure,
    NotAvailable,
    PoolExhausted,
)
from cni.protocol.result import Address, Ip, Result
from cni.protocol.spec import Config, Key, Reply, Request
from ipam import kernel, leases
from ipam.pool import Pool
from ipam.stores import Book, Choose, Owner, Sandbox, Store, Terms, directory, open_store

if TYPE_CHECKING:
    from ipam.cluster.giving import Network, Proven, Reserve, Unasked

T = TypeVar("T")


def run(request: Request) -> Reply:
    """Answer one request; never raises."""
    began = time.monotonic()
    budget.begin()  # guard: budget
    reply = answer(request, {**COMMANDS, "ADD": partial(_if_permitted, add), "STATUS": partial(_if_permitted, status)})
    report.send(request.command, reply, began)
    return reply


def ask(request: Request, log: list[str]) -> Result | None:
    """The same for a caller in this process that has checked the environment; raises errors and returns no JSON."""
    conf = spec.configuration(request)
    return (
        add(request, conf, log, again=not request.is_last)
        if request.command == "ADD"
        else COMMANDS[request.command](request, conf, log)
    )


def add(request: Request, conf: Config, log: list[str], *, again: bool = False) -> Result:
    """Hold one address of each range set for this attachment, all or none; a repeated ADD answers the same.

    ``again``: a caller that is told that there is no interface yet asks again when there is one.

    Raises InvalidConfig, UnsupportedField, BadEnvironment, AddressUnavailable, PoolExhausted, RecordUnreadable,
    IoFailure, TryAgain; AddressConflict, and LinkUnavailable where the interface is needed and not there (yet);
    StoreRefused where the nodes of a cluster share the addresses.
    """
    args = arguments.cni_args(request.var("CNI_ARGS"))
    pool = _pool(conf, args)
    pod, shared = arguments.pod_name(args), _shared(conf, pool)
    at = _rail(pool, conf)
    has_number = pool.aside and not pool.requested and (pool.sticky_name or arguments.is_ordinal(pod))
    # All that a container has on rails that are aligned is one number's.
    place = "" if has_number and pool.align else request.key.ifname if at is None else str(pool.rails[at])
    terms = leases.terms(pool, pod, place)
    store, ranges = _store(conf, log), tuple(s.all_spans for s in pool.sets)
    if shared and has_number:
        shared, terms = _named(shared, terms)
        pool = shared.pool
    sets = pool.sets if at is None else pool.rails[at].sets
    owner = Owner(request.key, pod, request.netns, _sandbox(request), terms)

    def hold(choose: Choose) -> tuple[Ip, ...]:
        def unless_abandoned(book: Book) -> tuple[Ip, ...]:
            request.refuse_if_abandoned()  # guard: abandoned
            return choose(book)

        return _with_the_deads(store, log, pool, lambda: store.reserve(owner, unless_abandoned, ranges))

    def give(reserve: "Reserve") -> tuple[Ip, ...]:
        if not pool.needs_link:
            return reserve(pool.requested)
        return _on_link(request, replace(pool, sets=sets), store, reserve, log)

    def prove(reserve: "Reserve", proven: "Proven", unasked: "Unasked") -> tuple[Ip, ...]:
        from ipam import link, models  # noqa: PLC0415

        here, proving = replace(pool, sets=sets, probe=models.PROBE), link.Proving(proven, unasked, again)
        return link.reserve_on_link(request, here, store, reserve, log, proving)

    def choice(pool: Pool, requested: Sequence[Address]) -> Choose:
        return _choice(pool, at, requested)

    if shared:
        ips = shared.give(choice, hold, give, prove, log)
    else:
        ips = give(lambda requested: hold(choice(pool, requested)))
    return Result(ips=ips, routes=pool.routes, dns=pool.dns)


def delete(request: Request, conf: Config, log: list[str]) -> None:
    """Release what this attachment holds, whatever ranges are configured by now.

    Raises IoFailure, TryAgain and, once, RecordUnreadable.
    """
    _store(conf, log).release(request.key, in_use=request.in_use)  # guard: in-use-is-kept-back (request)
    # What goes to names goes to the next node when hpn node has heard of this.
    report.send_freed(lambda: _may_free_number(request, conf))  # guard: tells (send_freed)


def check(request: Request, conf: Config, log: list[str]) -> None:
    """See that the lease stands, and that the runtime's previous result has its addresses.  Raises CheckFailed."""
    held = _store(conf, log).check(request.key)
    if conf.get("prevResult") is None:
        return
    try:
        previous = Result.from_json(conf["prevResult"])
    except ValueError as e:
        raise InvalidConfig(f"prevResult: {e}") from e
    if missing := set(held) - {ip.address.ip for ip in previous.ips}:  # guard: check-the-result
        names = ", ".join(map(str, missing))
        whose = request.key.of(arguments.pod_name(arguments.cni_args(request.var("CNI_ARGS"))), spec.network_of(conf))
        raise CheckFailed(f"{names}: held by {whose}, and not in prevResult.ips; delete the attachment and add it")


def status(_request: Request, conf: Config, log: list[str]) -> None:
    """See that an ADD without requests would be served.  Raises NotAvailable, InvalidConfig, UnsupportedField."""
    if _says_nothing(conf):
        return
    pool = _pool(conf, {})
    kernel.refuse_without_ipv6(pool)
    store, network = _store(conf, log), _shared(conf, pool)

    def rehearse() -> None:
        store.rehearse(network.choice(_rehearsal) if network else _rehearsal(pool))

    try:
        if network:
            network.see_that(lambda: _with_the_deads(store, log, pool, rehearse))
        else:
            _with_the_deads(store, log, pool, rehearse)
    except (PoolExhausted, IoFailure) as e:
        raise NotAvailable(e.msg, e.details) from e


def _says_nothing(conf: Config) -> bool:
    """Whether the configuration says nothing but ipam.type: Multus (4.3) strips a network to that which it has from a
    file.  No ADD comes like that, and an error here would take the node down."""
    ipam, runtime = conf.get("ipam"), conf.get("runtimeConfig")
    return (
        isinstance(ipam, dict) and ipam.keys() <= {"type"} and not (isinstance(runtime, dict) and "ipRanges" in runtime)
    )


def collect(request: Request, conf: Config, log: list[str]) -> None:
    """Release the leases that the runtime's list does not name; without a list, those that are provably dead."""
    store = _store(conf, log)

    def attached() -> Collection[Key]:
        # Asked here, because the caller may have been killed while this waited for the store.
        request.refuse_if_abandoned()
        return request.attached()  # guard: attached-is-spared = ()

    store.collect(spec.valid_attachments(conf), attached)
    # An address that another host had is free again: whoever gets it next probes for it.
    store.release_conflicts()  # guard: release_conflicts


COMMANDS: Mapping[str, Command] = {
    "ADD": add,
    "DEL": delete,
    "CHECK": check,
    "STATUS": status,
    "GC": collect,
}


def _if_permitted(command: Command, request: Request, conf: Config, log: list[str]) -> Result | None:
    """The command of another main plugin, which does not ask what the node allows.  ``ask``'s caller does."""
    from cni.state import permitted  # noqa: PLC0415  # neither DEL nor VERSION needs it

    if not _says_nothing(conf):
        permits = permitted.read()
        permits.refuse_choices(request, conf, ("ips", "sticky"))  # guard: choices-of-a-pod
        permits.refuse_names(request, conf, (), has_leases=True)
    return command(request, conf, log)


def _may_free_number(request: Request, conf: Config) -> bool:
    """Whether this node has numbers that go to names, and the attachment may have had one."""
    with suppress(CniError):
        args = arguments.cni_args(request.var("CNI_ARGS"))
        name = arguments.requested(conf, args, "sticky", "STICKY")
        if name or arguments.is_ordinal(arguments.pod_name(args)):
            return os.path.exists(f"{directory(conf)}/sticky/blocks")  # ipam/cluster/named.py
    return False


def _named(network: "Network", terms: Terms) -> "tuple[Network, Terms]":
    """The network as an attachment sees it whose name has one number on all nodes.  The cluster's store keeps that for
    the name, so this node need not keep the address."""
    from ipam.cluster.named import Named  # noqa: PLC0415  # where numbers are set aside only

    return Named.of(network, terms.sticky, max(terms.ttl, terms.cooldown)), Terms()


def _with_the_deads(store: Store, log: list[str], pool: Pool, ask: Callable[[], T]) -> T:
    """What ``ask`` answers; if addresses are short, after the provably dead leases were released.

    Not before, because that looks at every lease.
    """
    try:
        return ask()
    except (PoolExhausted, AddressHeld):
        freed = store.collect(None, probing=bool(pool.probe))
        if not freed:  # guard: the-deads = True
            raise
        log.append(f"released {freed} leases: of an older boot, of namespaces that are gone, or kept back long enough")
    return ask()


# pydantic and filelock take most of this program's start.  VERSION needs neither.  DEL needs filelock only, and must
# work under a configuration that is no longer valid.


def _sandbox(request: Request) -> Sandbox | None:
    from ipam import sandboxes  # noqa: PLC0415

    return sandboxes.of(request)


def _gone(boxes: Collection[Sandbox]) -> Collection[Sandbox]:
    from ipam import sandboxes  # noqa: PLC0415

    return sandboxes.gone(boxes)


def _rail(pool: Pool, conf: Config) -> int | None:
    """The place of the rail that the attachment is on; None if there are no rails.  Raises InvalidConfig."""
    if not pool.rails:
        return None
    from ipam import device, rails  # noqa: PLC0415

    return rails.rail_of(pool.rails, device.of(conf))


def _choice(pool: Pool, at: int | None, requested: Sequence[Address]) -> Choose:
    """How this attachment gets its addresses."""
    if at is None:
        return partial(leases.choose, pool.sets, requested)
    from ipam import rails  # noqa: PLC0415

    return rails.choice(pool, at, requested)


def _on_link(request: Request, pool: Pool, store: Store, reserve: "Reserve", log: list[str]) -> tuple[Ip, ...]:
    from ipam import link  # noqa: PLC0415

    return link.reserve_on_link(request, pool, store, reserve, log)


def _shared(conf: Config, pool: Pool) -> "Network | None":
    """The network as the nodes of a cluster share it; None if this node has it to itself."""
    if not pool.cluster:
        return None
    from ipam.cluster.giving import Network  # noqa: PLC0415

    return Network(spec.network_of(conf), directory(conf), pool.cluster, pool)


def _rehearsal(pool: Pool) -> Choose:
    if not pool.rails:
        return partial(leases.choose, pool.sets, ())
    from ipam import rails  # noqa: PLC0415

    return rails.rehearsal(pool)


def _pool(conf: Config, args: Mapping[str, str]) -> Pool:
    from ipam.config import load  # noqa: PLC0415

    return load(conf, args)


def _store(conf: Config, log: list[str]) -> Store:
    return open_store(conf, log, _gone)
