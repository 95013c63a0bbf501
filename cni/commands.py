"""The order of events in ADD, DEL, CHECK and STATUS.

GC is in cni/collect.py.  Only cni/undo.py undoes what a command changed.
"""

import os
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from base.kernel import links, netns, nsid, rtnl
from base.protocol import arguments, spec
from base.protocol.errors import (
    CheckFailed,
    CniError,
    DelegateError,
    DeviceTaken,
    InterfaceExists,
    InvalidConfig,
    InvalidNetns,
    KernelRefused,
    NotAvailable,
    as_cni_error,
)
from base.protocol.location import CLAIMS_DIR, is_stripped, location
from base.protocol.result import Interface, Result
from base.protocol.spec import Config, Json, Request
from base.state import chains, durable, journal, permitted, places, syncs
from base.state import pod as pods
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record
from cni import collect, features, kinds
from cni.features import addressing, delegate, device_info, gids, granted
from cni.features.delegate import Programs
from cni.undo import Undo, after, can_free_one

if TYPE_CHECKING:
    # Not at run time, because DEL does not need pydantic.
    from cni.features.expected import Expected
    from cni.models import Common, NetConf


@dataclass(frozen=True)
class Asked:
    """One attachment to make: its configuration, parsed and as decoded, and its request."""

    wanted: "NetConf"
    conf: Config
    request: Request


class Made(NamedTuple):
    """One complete attachment: its place in the journal, its record, and its own result."""

    entry: Entry
    record: Record
    result: Result


def add(request: Request, conf: Config, log: list[str], programs: Programs) -> Result:
    """Attach the interface with its features, or change nothing and raise CniError or OSError."""
    claimed = None
    if arguments.chosen_device(conf, "deviceID", "pciBusID") and os.path.isdir(CLAIMS_DIR):
        claimed = features.claimed.find(request, conf)
    if claimed:
        request, conf = features.claimed.with_keys(claimed, request, conf)
    wanted = allowed(request, conf, programs)
    if claimed:
        wanted = replace(wanted, claim=claimed.of_record)
    undo = Undo(request, programs, log)
    (own,) = attach([Asked(wanted, conf, request)], undo)
    collect.a_few(wanted.where, undo)
    return own.after(wanted.previous) if wanted.previous else own


def attach(all_asked: Sequence[Asked], undo: Undo) -> list[Result]:
    """Make the attachments of one pod, all or none, and return their results.  Raises CniError, OSError."""
    for asked in all_asked:
        undo.log.extend(asked.wanted.remarks)
        if asked.wanted.where.ipam:
            delegate.find(asked.wanted.where.ipam, asked.request, undo.programs)
    while True:
        try:
            return _attach(all_asked, undo)
        except DeviceTaken as e:
            # Free a device of a dead pod.  _attach has released our locks, so no two commands wait for each other's.
            where = all_asked[0].wanted.where
            if not undo.free_one(e.devices, where):
                raise


def _attach(all_asked: Sequence[Asked], undo: Undo) -> list[Result]:
    entries = [Entry(a.wanted.where.state_dir, a.wanted.where.network, a.request.key) for a in all_asked]
    with open_pod(undo.request) as pod, rtnl.open_in() as host, journal.lock_all(entries):
        undo.request.refuse_if_abandoned()
        pairs = zip(all_asked, entries, strict=True)
        return _in_step([_steps(asked, entry, host, pod, undo.of(asked.request)) for asked, entry in pairs])


class _OtherFailed(Exception):
    """Another attachment of the same ADD has failed, so this one is undone too."""


def _in_step(making: Sequence[Generator[Made | None, None, None]]) -> list[Result]:
    """Make all attachments and return their results: each begins a step when all have ended the one before.

    If one fails, it has undone itself.  Undo the others, and raise its failure.
    """
    made: list[Made | None] = [None]
    try:
        if len(making) > 1:
            with syncs.collected() as late:
                while None in made:
                    made = [next(one) for one in making]
                    late.begin()
                late.wait()
        while None in made:
            made = [next(one) for one in making]
        complete = [one for one in made if one]
        if claimed := [(one.entry, one.record) for one in complete if one.record.claim]:
            features.claimed.attached(claimed)
    except BaseException as failure:
        for one in making:
            try:
                one.throw(_OtherFailed())
            except _OtherFailed as undone:
                for problem in getattr(undone, "__notes__", ()):
                    failure.add_note(problem)
        raise
    for one in making:
        next(one, None)  # it ends
    return [one.result for one in complete]


def _steps(asked: Asked, entry: Entry, host: rtnl.Rtnl, pod: Pod, undo: Undo) -> Generator[Made | None, None, None]:
    """Carry out ADD for one attachment.  Yield between its steps, and the attachment after the last one.

    If a step fails, this undoes the attachment from ``record``.  So ``record`` must name what a step makes before the
    step begins.
    """
    wanted, request, key, log = asked.wanted, asked.request, asked.request.key, undo.log
    kind = kinds.named(wanted.attach.kind)
    undo.settle(entry, pod)
    yield None
    with kind.claiming(wanted) as chosen:
        plan = _plan(kind, chosen, host, pod, key.ifname)
        record = _record(entry, asked, pod, plan)
    ipam = delegate.Ipam(wanted.where.ipam, request, undo.programs, log)
    try:
        yield None
        ipam.ask_early(pod)
        yield None
        with granted.kept(wanted.attach, plan, request, log, wanted.claim):
            link = _make_link(kind, plan, host, pod, key.ifname)
        record = replace(record, link={**plan, "index": link.index if link else 0})
        yield None
        if record.rxe:
            features.rxe.make(entry, record, pod)
        result = ipam.ask()
        if link and (by_source := wanted.attach.source_routing):
            record = features.routing.claim(by_source.table, entry, record, pod, result)
        if link:
            record = yield from _configure(wanted, record, pod, link, result, log)
        else:
            yield None
        if link and wanted.attach.steered:
            # Some drivers request their interrupts only when the link goes up.
            record = features.steering.claim(wanted.attach, entry, record, pod, link)
            record = features.steering.make(record, pod, link)
        interfaces = kind.interfaces(plan, link, host, pod, key.ifname)
        yield _complete(entry, record, interfaces, result, wanted.attach.dns)
    except BaseException as failure:
        record = replace(record, given=not isinstance(failure, DelegateError))
        with after(failure, "and could not undo it all, DEL has to"):
            undo.attachment(entry, record, ask_ipam=ipam.may_hold(failure))
        raise


def _complete(entry: Entry, record: Record, interfaces: tuple[Interface, ...], result: Result, dns: Json) -> Made:
    """Write the device information and the complete record."""
    if record.host_network:
        result = features.host_network.with_taken(result, record)
    ips = tuple(replace(ip, interface=0) for ip in result.ips)
    own = Result(interfaces, ips, result.routes, dns or result.dns)
    device_info.write(record.device_info, record.link, record.rdma_devs, record.gids)
    record = replace(record, complete=True, result=own.to_json(spec.NEWEST))
    entry.save(record)
    return Made(entry, record, own)


def _plan(kind: kinds.Kind, wanted: "NetConf", host: rtnl.Rtnl, pod: Pod, ifname: str) -> Json:
    """Return the kind's plan; change nothing.  Raises CniError if ADD cannot be served."""
    refuse_old_kernel(host)
    plan = kind.plan(wanted, host, pod)
    _refuse_features(wanted.attach)
    _refuse_taken_name(pod, ifname)
    return plan


def refuse_old_kernel(host: rtnl.Rtnl) -> None:
    """Raise KernelRefused if the kernel cannot list what a pod hides."""
    if not nsid.can_be_asked(host):
        raise KernelRefused(
            f"Linux {os.uname().release} cannot list what a pod hides, so DEL would leave it; use a kernel from 5.10 on"
        )


def _refuse_features(attach: "Common") -> None:
    """Raise CniError if this node can serve no ADD with these features now, for any pod."""
    if attach.soft_roce:
        features.rxe.status()
    if attach.sysctl:
        features.tuning.status(attach)
    if attach.steered:
        features.steering.status(attach)


def _refuse_taken_name(pod: Pod, ifname: str) -> None:
    if taken := pod.rtnl.link(ifname):
        altname = f" (as altname of {taken.name})" if taken.name != ifname else ""
        raise InterfaceExists(
            f"CNI_IFNAME={ifname}: {pod.path} has an interface of that name{altname}; choose another name, or remove it"
        )


def _record(entry: Entry, asked: Asked, pod: Pod, plan: Json) -> Record:
    """Write the first record to disk and return it.  Raises InvalidConfig for sysctls that cannot be set."""
    wanted, conf, request = asked.wanted, asked.conf, asked.request
    record = Record(
        network=wanted.where.network,
        key=request.key,
        netns=pod.path,
        identity=pod.identity,
        kind=wanted.attach.kind,
        link=plan,
        config={k: v for k, v in conf.items() if k != "prevResult"},
        args=request.var("CNI_ARGS"),
        pod=wanted.pod,
        rxe=features.rxe.name() if wanted.attach.soft_roce else "",
        device_info=device_info.plan(conf, plan),
        claim=wanted.claim,
    )
    places.note(entry.state_dir, entry.network, entry.key)
    if wanted.attach.sysctl or wanted.attach.multiRail:
        return features.tuning.claim(wanted.attach, entry, record, pod)
    entry.save(record)
    return record


def _make_link(kind: kinds.Kind, plan: Json, host: rtnl.Rtnl, pod: Pod, ifname: str) -> links.Link | None:
    """Call Kind.attach.  Raises InterfaceExists if the name was taken after ``_plan`` found it free."""
    try:
        return kind.attach(plan, host, pod, ifname)
    except FileExistsError:
        _refuse_taken_name(pod, ifname)
        raise


def _configure(
    wanted: "NetConf", record: Record, pod: Pod, link: links.Link, result: Result, log: list[str]
) -> Generator[None, None, Record]:
    """Bring the interface up with its addresses, routes, rules and sysctls; yield before the waits.

    Returns the record with the sysctls' values as the kernel spells them, and with the GIDs.
    """
    placed = result
    if record.rules:
        features.routing.add(pod, record.rules)
        placed = features.routing.placed(result, record.rules)
    log += addressing.replaced_defaults(pod, link, placed)
    with gids.watch(pod, record.rdma_devs) as tables:
        sysctls = {path: setting["value"] for path, setting in record.sysctl.items()}
        if record.host_network:
            sysctls = features.host_network.settings(record, link) | sysctls
        yield from addressing.apply(pod, link, placed, wanted.attach, sysctls, log)
        if record.host_network:
            features.host_network.make(record, pod, link)
            result = features.host_network.with_taken(result, record)
        found = tables.find(link.name, [ip.address.ip for ip in result.ips], wanted.attach.rdma, log)
    if record.sysctl:
        record = replace(record, sysctl=features.tuning.read_back(pod, record.sysctl))
    return replace(record, gids=found) if found else record


def delete(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Detach whatever is left of the attachment.  Success means that nothing of it remains."""
    where, undo = location(conf), Undo(request, programs, log)
    with journal.lock(where.state_dir, where.network, request.key) as entry:
        request.refuse_if_abandoned()
        if undo.whatever_is_left(entry):
            return
        whole = chains.find(where.state_dir, where.network, request.key)
        noted = places.state_dir_of(where.network, request.key)
        if not whole and noted and noted != where.state_dir:
            with journal.lock(noted, where.network, request.key) as elsewhere:
                if undo.whatever_is_left(elsewhere):
                    return
        if not whole:
            undo.release(where.ipam)
    if whole:
        # The configuration lacks "claims" now.  Its attachments' locks are taken after the chain's only.
        undo.chain(whole)


def check(request: Request, _conf: Config, _log: list[str], programs: Programs) -> None:
    """Raise CheckFailed unless the attachment is as ADD left it, apart from changes that prevResult reports."""
    wanted = _parsed(request)
    where, key, promised = wanted.where, request.key, wanted.previous
    if promised is None:
        raise InvalidConfig("prevResult is missing; CHECK compares the pod with ADD's result")
    with open_pod(request) as pod, rtnl.open_in() as host, journal.lock(where.state_dir, where.network, key) as entry:
        record = _load_complete(entry, wanted, pod)
        compare(record, promised, request.netns, pod, host)
        if where.ipam:
            delegate.call(where.ipam, request, programs)


def compare(record: Record, promised: Result, sandbox: str, pod: Pod, host: rtnl.Rtnl) -> None:
    """Raise CheckFailed unless the pod matches the record and ``promised``, the chain's result, in which ``sandbox``
    is the pod's path.  Raises OSError."""
    still = features.expected.of(record, promised, sandbox)
    link = kinds.named(record.kind).check(record.link, host, pod, record.key.ifname)
    if record.claim:
        features.claimed.check(record)
    if link is None:
        return
    features.expected.check_carries(link)
    # What the pod has put into its bridge or bond, as bond-cni and KubeVirt do, is as that needs it.
    if not pod.has_as_port(link):
        features.expected.check(pod, link, still)
        _check_features(record, pod, link, still)


def _check_features(record: Record, pod: Pod, link: links.Link, still: "Expected") -> None:
    """Raise CheckFailed unless the features are as ADD left them.  expected.check compares the rules with routes."""
    if record.rxe:
        features.rxe.check(record)
    if record.sysctl:
        features.tuning.check(record, pod)
    if record.host_network:
        features.host_network.check(record, pod)
    if record.gids:
        gids.check(record, pod, link, still)
    if record.steering:
        features.steering.check(record, pod, link)


def _load_complete(entry: Entry, wanted: "NetConf", pod: Pod) -> Record:
    """Return the record.  Raises CheckFailed unless its attachment is complete and in this same namespace."""
    record = entry.load()
    if record is None or not record.complete:
        title = entry.key.of(wanted.pod, entry.network)
        raise CheckFailed(f"{title}: not attached" + (" completely" if record else ""))
    if not record.of_this_boot or record.identity != pod.identity:
        raise CheckFailed(f"{record.title}: attached to another namespace than {pod.path} is now")
    return record


def status(request: Request, conf: Config, _log: list[str], programs: Programs) -> None:
    """Raise NotAvailable, or the IPAM plugin's error, if no ADD of this configuration can be served now."""
    wanted = allowed(request, conf, programs)
    try:
        durable.probe(wanted.where.state_dir / "locks")
        with rtnl.open_in() as host:
            refuse_old_kernel(host)
            if not is_stripped(conf):
                _status_of_kind(wanted, host)
            _refuse_features(wanted.attach)
    except (CniError, OSError) as e:
        raise NotAvailable(f"no ADD can be served: {as_cni_error(e).msg}") from e
    delegate.ask_if_it_can(wanted.where.ipam, request, programs)


def _status_of_kind(wanted: "NetConf", host: rtnl.Rtnl) -> None:
    try:
        kinds.named(wanted.attach.kind).status(wanted, host)
    except DeviceTaken as e:
        if not can_free_one(e.devices, wanted.where):
            raise


@contextmanager
def open_pod(request: Request) -> Iterator[Pod]:
    """Open CNI_NETNS.  Raises BadEnvironment; InvalidNetns for the plugin's own namespace, because ADD would change the
    host."""
    with pods.open_netns(request) as pod:
        if netns.is_own(pod.fd) and request.var("CNI_NETNS_OVERRIDE").lower() not in ("1", "true"):
            raise InvalidNetns(f"CNI_NETNS={request.netns!r} is the plugin's own namespace; give the pod's")
        yield pod


def _parsed(request: Request) -> "NetConf":
    """Parse the configuration.  Raises InvalidConfig, UnsupportedField, BadEnvironment."""
    # Imported here because DEL and GC need no pydantic, which takes most of a start's time.
    from cni import config  # noqa: PLC0415

    return config.of(request)


def allowed(request: Request, conf: Config, programs: Collection[str]) -> "NetConf":
    """Parse the configuration.  ``programs`` are the names of our own IPAM plugins.  Raises what ``_parsed`` does, and
    InvalidConfig for a name in it, or a choice of the pod, that the policy file does not allow."""
    permits = permitted.read()
    permits.refuse_choices(request, conf)
    wanted = _parsed(request)
    # For STATUS, Multus (4.3) strips the configuration, so its names are not those of ADD.
    if request.command == "ADD" or not is_stripped(conf):
        permits.refuse_names(request, conf, wanted.named, has_leases=wanted.where.ipam in programs)
    return wanted
