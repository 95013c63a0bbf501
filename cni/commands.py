"""The order of events: what each command but GC does, one screen each.

What a command changed is undone by cni/undo.py and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cni import collect, kinds, parts, undo
from cni.kernel import links, netns, rtnl
from cni.parts import addressing, delegate, device_info, gids, rxe
from cni.parts.delegate import Programs
from cni.protocol import spec
from cni.protocol.errors import (
    CheckFailed,
    CniError,
    DelegateError,
    DelegateNotRun,
    DeviceInUse,
    DeviceTaken,
    InterfaceExists,
    InvalidConfig,
    InvalidNetns,
    NotAvailable,
    RecordUnreadable,
)
from cni.protocol.location import Location, is_stripped, location
from cni.protocol.result import Interface, Ip, Result
from cni.protocol.spec import Config, Json, Request
from cni.state import durable, journal, places
from cni.state import pod as pods
from cni.state.journal import Entry
from cni.state.pod import Pod
from cni.state.record import Record

if TYPE_CHECKING:
    from cni.config import NetConf


def add(request: Request, conf: Config, log: list[str], programs: Programs) -> Result:
    """Attach: all of it, or nothing and an error."""
    wanted = _parsed(request)
    log.extend(wanted.remarks)
    if wanted.where.ipam:
        delegate.find(wanted.where.ipam, request, programs)
    result = _attached_at_last(wanted, request, conf, log, programs)
    collect.a_few(wanted.where, request, log, programs)
    return result


def _attached_at_last(wanted: "NetConf", request: Request, conf: Config, log: list[str], programs: Programs) -> Result:
    """``_attached``, with the device of an attachment that is provably dead if need be."""
    while True:
        try:
            return _attached(wanted, request, conf, log, programs)
        except DeviceTaken as e:
            # Not under our own attachment's lock: it takes the owner's, and the two may be one file.
            if not undo.free_one(e.devices, wanted.where, request, programs, log):
                raise


def _attached(wanted: "NetConf", request: Request, conf: Config, log: list[str], programs: Programs) -> Result:
    where, key, kind = wanted.where, request.key, kinds.named(wanted.attach.kind)
    with (
        _pod(request) as pod,
        rtnl.open_in() as host,
        journal.lock(where.state_dir, where.network, key) as entry,
    ):
        request.refuse_if_abandoned()
        undo.settle(entry, pod, request, log, programs)
        with kind.claiming(wanted):
            _refuse_owned(wanted.attach.device, where)
            plan = kind.plan(wanted, host, pod)
            parts.status(wanted.attach)
            _refuse_taken_name(pod, key.ifname)
            record = _recorded(entry, wanted, request, conf, pod, plan)
        result, holds, asking = Result(), False, request
        try:
            # Ours is all or nothing, and mostly needs no link: refusing before there is one is cheaper and quieter.
            if where.ipam in programs:
                asking = request if request.inside else replace(request, inside=(pod.fd, pod.rtnl.sock.fileno()))
                with delegate.unless_it_needs_the_link():
                    result, holds = delegate.addresses(where.ipam, asking, programs, log), True
            link = _made(kind, plan, host, pod, key.ifname)
            record = replace(record, link={**plan, "index": link.index if link else 0})
            if record.rxe:
                rxe.make(entry, record, pod)
            # A program may need the link, as dhcp does, and may hold something also if it fails.
            if where.ipam and not holds:
                holds = True
                result = delegate.addresses(where.ipam, asking, programs, log)
            found = list[Json]()
            if link:
                given = result
                if wanted.attach.policyRouting:
                    from cni.parts import routing  # noqa: PLC0415  # few ask for it, and every start would pay; so below

                    record = routing.claimed(wanted.attach.policyRouting.table, entry, record, pod, result)
                    routing.add(pod, record.rules)
                    given = routing.placed(result, record.rules)
                with gids.watched(pod, record.rdma_devs) as tables:
                    values = {path: setting["value"] for path, setting in record.sysctl.items()}
                    addressing.apply(pod, link, given, wanted.attach.dad, values)
                    addresses = [ip.address.ip for ip in result.ips]
                    found = tables.found(link.name, addresses, wanted.attach.rdma, log)
                if record.sysctl:
                    from cni.parts import tuning  # noqa: PLC0415

                    record = replace(record, sysctl=tuning.written(pod, record.sysctl))
            interfaces = kind.interfaces(plan, link, host, pod, key.ifname)
            own = _own_result(wanted, interfaces, result)
            device_info.write(record.device_info, plan, record.rdma_devs, found)
            entry.save(replace(record, complete=True, result=own.to_json(spec.NEWEST), gids=found))
        except BaseException as failure:
            holds = holds and not isinstance(failure, DelegateNotRun)
            record = replace(record, given=not isinstance(failure, DelegateError))
            with undo.after(failure, "and could not undo it all, DEL has to"):
                undo.attachment(entry, record, request, programs, log, ask_ipam=holds)
            raise
    return own.after(wanted.previous) if wanted.previous else own


def delete(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Detach whatever is there.  Success means that nothing of the attachment is left."""
    where = location(conf)
    with journal.lock(where.state_dir, where.network, request.key) as entry:
        request.refuse_if_abandoned()
        if _detached(entry, request, log, programs):
            return
        noted = places.state_dir_of(where.network, request.key)
        if noted and noted != where.state_dir:
            with journal.lock(noted, where.network, request.key) as elsewhere:
                if _detached(elsewhere, request, log, programs):
                    return
        undo.release(where.ipam, request, programs)


def _detached(entry: Entry, request: Request, log: list[str], programs: Programs) -> bool:
    """Undo the attachment if there is a record of it here; whether there was."""
    try:
        record = entry.load()
    except RecordUnreadable as unreadable:
        lost = entry.load()
        if lost:
            with undo.after(unreadable, "repeat DEL"):
                undo.attachment(entry, lost, request, programs, log)
        raise
    if record is None:
        entry.forget()
        return False
    undo.attachment(entry, record, request, programs, log)
    return True


def check(request: Request, _conf: Config, _log: list[str], programs: Programs) -> None:
    """Raise unless the attachment is what ADD left, as later plugins of the chain may have changed it."""
    from cni.parts import promises  # noqa: PLC0415  # no other command needs it

    wanted = _parsed(request)
    where, key, promised = wanted.where, request.key, wanted.previous
    if promised is None:
        raise InvalidConfig("prevResult is missing; CHECK compares with what ADD answered")
    with (
        _pod(request) as pod,
        rtnl.open_in() as host,
        journal.lock(where.state_dir, where.network, key) as entry,
    ):
        record = entry.load()
        if record is None or not record.complete:
            raise CheckFailed(
                f"{key.of(wanted.pod, where.network)}, is not attached" + (" completely" if record else "")
            )
        if not record.of_this_boot or record.identity != pod.identity:
            raise CheckFailed(f"{record.whose}, was attached to another namespace than {pod.path} is now")
        still = promises.of(record, promised, request.netns)
        link = kinds.named(record.kind).check(record.link, host, pod, key.ifname)
        if link:
            promises.check(pod, link, still)
            parts.check(record, pod, link, still)
        if where.ipam:
            delegate.call(where.ipam, request, programs)


def status(request: Request, conf: Config, _log: list[str], programs: Programs) -> None:
    """Raise NotAvailable if an ADD could not be served now, or the IPAM plugin's own answer."""
    wanted = _parsed(request)
    try:
        durable.probe(wanted.where.state_dir / "locks")
        with rtnl.open_in() as host:
            if not is_stripped(conf):
                _status_of_kind(wanted, host)
            parts.status(wanted.attach)
    except (CniError, OSError) as e:
        raise NotAvailable(f"no ADD can be served: {e}") from e
    delegate.ask_if_it_can(wanted.where.ipam, request, programs)


def _status_of_kind(wanted: "NetConf", host: rtnl.Rtnl) -> None:
    try:
        kinds.named(wanted.attach.kind).status(wanted, host)
    except DeviceTaken as e:
        if not undo.can_free_one(e.devices, wanted.where):
            raise


def _parsed(request: Request) -> "NetConf":
    # pydantic is most of this program's start: DEL and GC do without it.
    from cni import config  # noqa: PLC0415

    return config.of(request)


def _refuse_owned(device: str, where: Location) -> None:
    if owner := journal.owner(where.state_dir, device):
        raise DeviceInUse(
            f"deviceID {device!r} belongs to {owner.whose}, since {owner.time}; delete that first",
            owner.device,
        )


def _refuse_taken_name(pod: Pod, ifname: str) -> None:
    if taken := pod.rtnl.link(ifname):
        whose = f" (as altname of {taken.name})" if taken.name != ifname else ""
        raise InterfaceExists(
            f"CNI_IFNAME={ifname}: {pod.path} has an interface of that name{whose}; choose another, or remove it"
        )


def _made(kind: kinds.Kind, plan: Json, host: rtnl.Rtnl, pod: Pod, ifname: str) -> links.Link | None:
    """Kind.attach.  Raises InterfaceExists where the name was taken since it was looked for."""
    try:
        return kind.attach(plan, host, pod, ifname)
    except FileExistsError:
        _refuse_taken_name(pod, ifname)
        raise


def _recorded(entry: Entry, wanted: "NetConf", request: Request, conf: Config, pod: Pod, plan: Json) -> Record:
    """The record, on disk.  Raises InvalidConfig for sysctls that the pod does not have."""
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
        rxe=rxe.name() if wanted.attach.soft_roce else "",
        device_info=device_info.plan(conf, plan),
    )
    places.note(entry.state_dir, entry.network, entry.key)
    if wanted.attach.sysctl:
        from cni.parts import tuning  # noqa: PLC0415

        record = tuning.claimed(wanted.attach.sysctl, entry, record, pod)
    else:
        entry.save(record)
    return record


def _own_result(wanted: "NetConf", interfaces: tuple[Interface, ...], addresses: Result) -> Result:
    """What we add to the chain's result: interfaces, and the addresses as the first one's."""
    ips = tuple(Ip(ip.address, ip.gateway, 0) for ip in addresses.ips)
    return Result(interfaces, ips, addresses.routes, wanted.dns or addresses.dns)


@contextmanager
def _pod(request: Request) -> Iterator[Pod]:
    """CNI_NETNS, opened.  Raises BadEnvironment, and InvalidNetns for our own: whatever is done in there would
    be done to the host."""
    with pods.open_netns(request) as pod:
        if netns.is_own(pod.fd) and request.var("CNI_NETNS_OVERRIDE").lower() not in ("1", "true"):
            raise InvalidNetns(f"CNI_NETNS={request.netns!r} is the plugin's own namespace; give the pod's")
        yield pod
