"""The order of events in ADD, DEL, CHECK and STATUS.

cni/transaction.py has the steps of ADD, and cni/collect.py has GC.  Only cni/undo.py undoes what a command changed.
"""

import os
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from base.kernel import links, rtnl
from base.protocol import arguments
from base.protocol.errors import (
    CheckFailed,
    CniError,
    DeviceTaken,
    InvalidConfig,
    NotAvailable,
    as_cni_error,
)
from base.protocol.location import CLAIMS_DIR, is_stripped, location
from base.protocol.result import Result
from base.protocol.spec import Config, Request
from base.state import chains, durable, journal, permitted
from base.state import pod as pods
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record
from cni import collect, features, kinds, transaction
from cni.features import delegate, gids
from cni.features.delegate import Programs
from cni.transaction import Asked
from cni.undo import Undo, can_free_one

if TYPE_CHECKING:
    # Not at run time, because DEL does not need pydantic.
    from cni.features.expected import Expected
    from cni.models import NetConf


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
    (own,) = transaction.attach([Asked(wanted, conf, request)], undo)
    collect.a_few(wanted.where, undo)
    return own.after(wanted.previous) if wanted.previous else own


def delete(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Detach whatever is left of the attachment.  Success means that nothing of it remains."""
    where, undo = location(conf), Undo(request, programs, log)
    # Several rails, or "claims" that the configuration lacks now.  Locks of attachments are taken after the chain's.
    if whole := chains.find(where.state_dir, where.network, request.key):
        undo.chain(whole)
        return
    with journal.lock(where.state_dir, where.network, request.key) as entry:
        request.refuse_if_abandoned()
        if undo.whatever_is_left(entry, request.key):
            return
        undo.release(where.ipam)


def check(request: Request, _conf: Config, _log: list[str], programs: Programs) -> None:
    """Raise CheckFailed unless the attachment is as ADD left it, apart from changes that prevResult reports."""
    wanted = _parsed(request)
    where, key, promised = wanted.where, request.key, wanted.previous
    if promised is None:
        raise InvalidConfig("prevResult is missing; CHECK compares the pod with ADD's result")
    with (
        pods.open_pod(request) as pod,
        rtnl.open_in() as host,
        journal.lock(where.state_dir, where.network, key) as entry,
    ):
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
            transaction.refuse_old_kernel(host)
            if not is_stripped(conf):
                _status_of_kind(wanted, host)
            transaction.refuse_features(wanted.attach)
    except (CniError, OSError) as e:
        raise NotAvailable(f"no ADD can be served: {as_cni_error(e).msg}") from e
    delegate.ask_if_it_can(wanted.where.ipam, request, programs)


def _status_of_kind(wanted: "NetConf", host: rtnl.Rtnl) -> None:
    try:
        kinds.named(wanted.attach.kind).status(wanted, host)
    except DeviceTaken as e:
        if not can_free_one(e.devices, wanted.where):
            raise


def _parsed(request: Request) -> "NetConf":
    """Parse the configuration.  Raises InvalidConfig, UnsupportedField, BadEnvironment."""
    # Imported here because DEL and GC need no pydantic, which takes most of a start's time.
    from cni import config  # noqa: PLC0415

    return config.of(request)


def allowed(
    request: Request, conf: Config, programs: Collection[str], permits: permitted.Permits | None = None
) -> "NetConf":
    """Parse the configuration.  ``programs`` are the names of our own IPAM plugins.  Raises what ``_parsed`` does, and
    InvalidConfig for a name in it, or a choice of the pod, that the policy file does not allow.  ``permits`` are that
    file's decisions, if the caller has read it."""
    permits = permits or permitted.read()
    permits.refuse_choices(request, conf)
    wanted = _parsed(request)
    # For STATUS, Multus (4.3) strips the configuration, so its names are not those of ADD.
    if request.command == "ADD" or not is_stripped(conf):
        permits.refuse_names(request, conf, wanted.named, has_leases=wanted.where.ipam in programs)
    return replace(wanted, remarks=(*wanted.remarks, *permits.remarks)) if permits.remarks else wanted
