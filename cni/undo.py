"""The one way anything is undone, whether ADD failed, DEL or GC asked, or an earlier process died half-way.

It reads the journal only, so what it needs was on disk before the change was made.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from cni import kinds, parts
from cni.kernel import budget
from cni.kinds import escaped
from cni.parts import delegate, device_info
from cni.parts.delegate import Programs
from cni.protocol import spec
from cni.protocol.errors import CniError, DelegateError, DelegateFailed, InterfaceExists, IoFailure, TryAgain, combine
from cni.protocol.location import Location, location
from cni.protocol.spec import Request
from cni.state import journal
from cni.state import pod as pods
from cni.state.journal import Entry
from cni.state.pod import Pod
from cni.state.record import LOST, Record

# An IPAM plugin of others that has refused to release so often is in the way of a pod's end: people have to look.
REFUSALS: Final = 10
# These say that another time may be better.
_FOR_NOW: Final = (TryAgain.code, IoFailure.code)


def attachment(  # noqa: PLR0913  # one way for all who undo, and each says how
    entry: Entry,
    record: Record,
    request: Request,
    programs: Programs,
    log: list[str],
    *,
    ask_ipam: bool = True,
    counts: bool = True,
) -> None:
    """Undo all that the record names, and forget it once that is confirmed.  Raises CniError, OSError; the record
    stays then.

    An address goes back only after the interface that had it is gone, so that no two pods ever have it.  ``counts``
    says whether a refusal of its IPAM plugin is one of those after which it is not asked again.
    """
    budget.extend_for_undo()
    if record.kind == LOST:
        _undo_lost(entry, record, request, programs)
        return
    if record.of_this_boot:
        with pods.find(record.identity, record.netns, request) as pod:
            if pod:
                record = parts.undo(entry, record, pod)
            was_found = entry.was_found
            search = kinds.named(record.kind).detach(record.link, pod, record.key.ifname, entry.note_found)
            if search and was_found:
                search = replace(search, index=0, mac="")
            if search and (doubt := escaped.removed(search, entry, record, pod)):
                log.append(f"the interface of {record.whose}, was not found: {doubt}; its addresses may be in use")
                request = replace(request, in_use=True)
    device_info.undo(record.device_info)
    if not ask_ipam or _released(entry, record, request, programs, counts=counts):
        entry.forget()


@contextmanager
def after(failure: BaseException, then: str) -> Iterator[None]:
    """Undo because of that failure: what cannot be undone becomes a note of it, with ``then``, what has to be done."""
    try:
        yield
    except (CniError, OSError) as problem:
        failure.add_note(f"{then}: {problem}")


def _undo_lost(entry: Entry, record: Record, request: Request, programs: Programs) -> None:
    """The same for a record that could not be read.  Unless its interface was found, its addresses may be in use."""
    from cni.kinds import lost  # noqa: PLC0415  # hardly ever

    in_use = record.of_this_boot and not lost.remove(record, request)
    asked = request.but(CNI_CONTAINERID=record.key.container_id, CNI_IFNAME=record.key.ifname)
    release(location(spec.configuration(request)).ipam, replace(asked, in_use=in_use), programs)
    entry.forget()


def _released(entry: Entry, record: Record, request: Request, programs: Programs, *, counts: bool) -> bool:
    """Have the IPAM plugin release; whether the record may be forgotten, and not only kept for people.

    Raises what the plugin answers.  A plugin of others that has refused REFUSALS times is not asked again, and one that
    answered ADD with an error is asked twice: it gave nothing, by its own word.
    """
    ipam = location(record.config).ipam
    try:
        _release_as_added(ipam, record, request, programs)
    except (DelegateError, DelegateFailed) as why:
        if not request.in_use:
            record = replace(record, link={**record.link, "index": 0})  # it is not to be looked for again
        if ipam in programs or why.code in _FOR_NOW or not counts:
            raise
        record = replace(record, refusals=record.refusals + 1, trouble=f"{why}")
        if record.refusals < (REFUSALS if record.given else 2):
            entry.save(record)
            raise
        if record.given:
            entry.keep_for_people(record)
            return False
    return True


def _release_as_added(ipam: str, record: Record, request: Request, programs: Programs) -> None:
    """By the configuration that ADD had and, where the plugin refuses that, by the one the caller has now: what was
    wrong with it may have been corrected."""
    as_added = request.but(
        stdin=json.dumps(record.config).encode(),
        CNI_CONTAINERID=record.key.container_id,
        CNI_IFNAME=record.key.ifname,
        CNI_ARGS=record.args,
        CNI_NETNS=request.netns if request.command == "DEL" else record.netns,
    )
    try:
        release(ipam, as_added, programs)
    except (DelegateError, DelegateFailed) as refusal:
        if not _is_for(request, record, ipam):
            raise
        try:
            release(ipam, as_added.but(stdin=request.stdin, CNI_ARGS=request.var("CNI_ARGS")), programs)
        except (DelegateError, DelegateFailed):
            raise refusal from None


def _is_for(request: Request, record: Record, ipam: str) -> bool:
    """Whether the caller's configuration is of the record's network, and another than the recorded one."""
    conf = spec.configuration(request)
    if conf.get("name") != record.network or location(conf).ipam != ipam:
        return False
    return conf.get("ipam") != record.config.get("ipam") or request.var("CNI_ARGS") != record.args


def may_be_dead(record: Record) -> bool:
    """A look that costs next to nothing: whether the path that the runtime named leads elsewhere now, or nowhere."""
    try:
        return not record.of_this_boot or os.stat(record.netns).st_ino != record.identity.inode
    except OSError:
        return True


def is_dead(record: Record) -> bool:
    """Whether the pod provably lives no more."""
    if record.kind == LOST:
        return not record.of_this_boot  # nothing else that it says is certain
    return not record.of_this_boot or pods.is_gone(record.identity, record.netns)


def settle(entry: Entry, pod: Pod, request: Request, log: list[str], programs: Programs) -> None:
    """Clear what an earlier ADD of the same key left.  Raises InterfaceExists if it still stands.

    The same key comes back for another namespace where the runtime names containers after a path (cnitool).
    """
    record = entry.load()
    if record is None:
        return
    here = record.of_this_boot and record.identity == pod.identity
    if here and record.complete and kinds.named(record.kind).stands(record.link, pod, record.key.ifname):
        raise InterfaceExists(f"{record.whose}, is attached already, since {record.time}; send DEL first")
    attachment(entry, record, request, programs, log)
    log.append(f"undid what an earlier ADD of {record.whose}, left, of {record.time}")


def free_one(devices: tuple[str, ...], where: Location, request: Request, programs: Programs, log: list[str]) -> bool:
    """Take one of the devices from an attachment that is provably dead; whether one of them is nobody's now.

    Raises what went wrong if there are dead owners and none could be undone.
    """
    owners, failures = journal.devices(where.state_dir), list[Exception]()
    for device in devices:
        if device not in owners:
            return True
        with journal.lock(where.state_dir, owners[device].network, owners[device].key) as entry:
            owner = entry.load()
            if owner is None:
                return True
            if is_dead(owner):
                try:
                    attachment(entry, owner, request.but(CNI_NETNS="", CNI_COMMAND="GC"), programs, log)
                    return True
                except (CniError, OSError) as e:
                    failures.append(e)
    raise_all(failures)
    return False


def can_free_one(devices: tuple[str, ...], where: Location) -> bool:
    """Whether ``free_one`` would try."""
    owners = journal.devices(where.state_dir)
    return any(device not in owners or is_dead(owners[device]) for device in devices)


def release(ipam: str, request: Request, programs: Programs) -> None:
    if ipam:
        delegate.call(ipam, request.but(CNI_COMMAND="DEL"), programs)


def raise_all(failures: list[Exception]) -> None:
    if failures:
        raise combine(failures)
