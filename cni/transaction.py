"""ADD of a pod's attachments, all or none: each is an ``Attempt`` and takes ``STEPS``.

All attachments take a step before one takes the next, so their waits for duplicate detection overlap.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from base.kernel import links, nsid, rtnl
from base.protocol import spec
from base.protocol.errors import DeviceTaken, InterfaceExists, KernelRefused
from base.protocol.result import Result
from base.protocol.spec import Config, Json, Kept, Request
from base.state import journal, syncs
from base.state import pod as pods
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record
from cni import features, kinds
from cni.features import addressing, delegate, device_info, gids, granted
from cni.undo import Undo, after

if TYPE_CHECKING:
    # Not at run time, because DEL does not need pydantic.
    from cni.models import Common, NetConf


@dataclass(frozen=True)
class Asked:
    """One attachment to make: its configuration, parsed and as decoded, and its request.  ``title`` names it in
    messages, if there are several."""

    wanted: "NetConf"
    conf: Config
    request: Request
    title: str = ""


def attach(all_asked: Sequence[Asked], undo: Undo) -> list[Result]:
    """Make the attachments of one pod, all or none, and return their results.  ``undo`` is that of the pod's request.
    Raises CniError, OSError."""
    for asked in all_asked:
        undo.log.extend(asked.wanted.remarks)
        if asked.wanted.where.ipam:
            delegate.find(asked.wanted.where.ipam, asked.request, undo.programs)
    while True:
        try:
            return _attach(all_asked, undo)
        except DeviceTaken as e:
            # Free a device of a dead pod.  _attach has released our locks, so no two commands wait for each other's.
            if not undo.free_one(e.devices, all_asked[0].wanted.where):
                raise


def _attach(all_asked: Sequence[Asked], undo: Undo) -> list[Result]:
    entries = [Entry(a.wanted.where.state_dir, a.wanted.where.network, a.request.key) for a in all_asked]
    with pods.open_pod(undo.request) as pod, rtnl.open_in() as host, journal.lock_all(entries), Kept() as kept:
        undo.request.refuse_if_abandoned()
        pairs = zip(all_asked, entries, strict=True)
        attempts = [Attempt(asked, entry, host, pod, undo.of(asked.request), kept) for asked, entry in pairs]
        try:
            _take_all_steps(attempts, kept)
            if claimed := [(one.entry, one.complete) for one in attempts if one.complete.claim]:
                features.claimed.attached(claimed)
        except BaseException as failure:
            for one in attempts:
                one.undo(failure)
            raise
    return [one.own for one in attempts]


def _take_all_steps(attempts: Sequence["Attempt"], kept: Kept) -> None:
    """Take all steps with all attachments.  Several allocate in one transaction, and sync their leases at once, from
    one step to the end of the last."""
    with syncs.collected() if len(attempts) > 1 else nullcontext() as late:
        for step in STEPS:
            for one in attempts:
                one.take(step)
            kept.close()
            if late:
                late.begin()
        if late:
            late.wait()


class _OtherFailed(Exception):
    """Another attachment of the same ADD has failed, so this one does not wait any longer."""


class Attempt:
    """One attachment while ADD makes it.

    ``undo`` works from the record.  So the record must name what a step makes before the step begins.
    """

    record: Record  # the result of plan; later steps add to it
    link: links.Link | None  # of make_link; None for a device without an interface
    result: Result  # of configure: the IPAM plugin's
    complete: Record  # of finish
    own: Result  # of finish: the attachment's

    def __init__(self, asked: Asked, entry: Entry, host: rtnl.Rtnl, pod: Pod, undo: Undo, kept: Kept) -> None:
        self.entry, self._asked, self._host, self._pod, self._undo, self._kept = entry, asked, host, pod, undo, kept
        self._attach, self._kind = asked.wanted.attach, kinds.named(asked.wanted.attach.kind)
        self._ipam = delegate.Ipam(asked.wanted.where.ipam, asked.request, undo.programs, undo.log)
        self._waits, self._is_recorded = ExitStack(), False

    def take(self, step: Callable[["Attempt"], None]) -> None:
        """Take the step.  If it fails, undo the attachment and raise the failure."""
        try:
            step(self)
        except BaseException as failure:
            if self._asked.title:
                failure.add_note(f"for {self._asked.title}")
            self.undo(failure)
            raise

    def settle(self) -> None:
        """Undo what an earlier ADD of the same key left."""
        self._undo.settle(self.entry, self._pod)

    def plan(self) -> None:
        """Decide everything, and write the first record.  Raises CniError if ADD cannot be served."""
        with self._kind.claiming(self._asked.wanted) as chosen:
            refuse_old_kernel(self._host)
            plan = self._kind.plan(chosen, self._host, self._pod)
            refuse_features(chosen.attach)
            if self.entry.key.ifname in self._pod.before[0]:
                self._refuse_taken_name()
            self.record = self._recorded(plan)
        self._is_recorded = True

    def allocate(self) -> None:
        """Ask our own IPAM plugin for addresses, because a refusal is cheaper before there is a link."""
        self._ipam.ask_early(self._pod, self._kept)

    def make_link(self) -> None:
        """Call Kind.attach.  Raises InterfaceExists if the name was taken after ``plan`` found it free."""
        plan = self.record.link
        with granted.kept(self._attach, plan, self._asked.request, self._undo.log, self.record.claim):
            try:
                self.link = self._kind.attach(plan, self._host, self._pod, self.entry.key.ifname)
            except FileExistsError:
                self._refuse_taken_name()
                raise
        self.record = replace(self.record, link={**plan, "index": self.link.index if self.link else 0})

    def configure(self) -> None:
        """Ask another IPAM plugin, which may need the link, and make all changes up to the waits."""
        if self.record.rxe:
            features.rxe.make(self.entry, self.record, self._pod)
        self.result = self._ipam.ask()
        if self.link:
            if by_source := self._attach.source_routing:
                self.record = features.routing.claim(by_source.table, self.entry, self.record, self._pod, self.result)
            self._waits.enter_context(self._configured(self.link))

    def finish(self) -> None:
        """Wait until the interface can be used, and write the device information and the complete record."""
        self._waits.close()
        if self.link and self._attach.steered:
            # Some drivers request their interrupts only when the link goes up.
            self.record = features.steering.claim(self._attach, self.entry, self.record, self._pod, self.link)
            self.record = features.steering.make(self.record, self._pod, self.link)
        record, result = self.record, self.result
        interfaces = self._kind.interfaces(record.link, self.link, self._host, self._pod, self.entry.key.ifname)
        if record.host_network:
            result = features.host_network.with_taken(result, record)
        ips = tuple(replace(ip, interface=0) for ip in result.ips)
        self.own = Result(interfaces, ips, result.routes, self._attach.dns or result.dns)
        device_info.write(record.device_info, record.link, record.rdma_devs, record.gids)
        self.complete = replace(record, complete=True, result=self.own.to_json(spec.NEWEST))
        self.entry.save(self.complete)

    def undo(self, failure: BaseException) -> None:
        """Undo the attachment, once, if it has a record.  A problem becomes a note of ``failure``."""
        self._kept.close()
        with suppress(_OtherFailed), self._waits:
            raise _OtherFailed  # which ends the waits; close() would wait
        if self._is_recorded:
            self._is_recorded = False
            record = replace(self.record, given=not self._ipam.has_refused)
            with after(failure, "and could not undo it all, DEL has to"):
                self._undo.attachment(self.entry, record, ask_ipam=self._ipam.may_hold)

    def _refuse_taken_name(self) -> None:
        ifname, pod = self.entry.key.ifname, self._pod
        if taken := pod.rtnl.link(ifname):
            altname = f" (as altname of {taken.name})" if taken.name != ifname else ""
            raise InterfaceExists(
                f"CNI_IFNAME={ifname}: {pod.path} has an interface of that name{altname}; choose another name, or "
                "remove it"
            )

    def _recorded(self, plan: Json) -> Record:
        """Write the first record to disk and return it.  Raises InvalidConfig for sysctls that cannot be set."""
        wanted, conf, request = self._asked.wanted, self._asked.conf, self._asked.request
        record = Record(
            network=wanted.where.network,
            key=self.entry.key,
            netns=self._pod.path,
            identity=self._pod.identity,
            kind=self._attach.kind,
            link=plan,
            config={k: v for k, v in conf.items() if k != "prevResult"},
            args=request.var("CNI_ARGS"),
            pod=wanted.pod,
            rxe=features.rxe.name() if self._attach.soft_roce else "",
            device_info=device_info.plan(conf, plan),
            claim=wanted.claim,
            rail_of=wanted.rail_of,
        )
        if self._attach.sysctl or self._attach.multiRail:
            return features.tuning.claim(self._attach, self.entry, record, self._pod)
        self.entry.save(record)
        return record

    @contextmanager
    def _configured(self, link: links.Link) -> Iterator[None]:
        """Bring the interface up with its addresses, routes, rules and sysctls before the body, and wait after it.

        The record gets the sysctls' values as the kernel spells them, and the GIDs.
        """
        record, result, pod, log = self.record, self.result, self._pod, self._undo.log
        placed = result
        if record.rules:
            features.routing.add(pod, record.rules)
            placed = features.routing.placed(result, record.rules)
        log += addressing.replaced_defaults(pod, link, placed)
        with gids.watch(pod, record.rdma_devs) as tables:
            sysctls = {path: setting["value"] for path, setting in record.sysctl.items()}
            if record.host_network:
                sysctls = features.host_network.settings(record, link) | sysctls
            with addressing.applied(pod, link, placed, self._attach, sysctls, log):
                yield
            if record.host_network:
                features.host_network.make(record, pod, link)
                result = features.host_network.with_taken(result, record)
            found = tables.find(link.name, [ip.address.ip for ip in result.ips], self._attach.rdma, log)
        if record.sysctl:
            record = replace(record, sysctl=features.tuning.read_back(pod, record.sysctl))
        self.record = replace(record, gids=found) if found else record


# The order of events in ADD.
STEPS: Final = (Attempt.settle, Attempt.plan, Attempt.allocate, Attempt.make_link, Attempt.configure, Attempt.finish)


def refuse_old_kernel(host: rtnl.Rtnl) -> None:
    """Raise KernelRefused if the kernel cannot list what a pod hides."""
    if not nsid.can_be_asked(host):
        raise KernelRefused(
            f"Linux {os.uname().release} cannot list what a pod hides, so DEL would leave it; use a kernel from 5.10 on"
        )


def refuse_features(attach: "Common") -> None:
    """Raise CniError if this node can serve no ADD with these features now, for any pod."""
    if attach.soft_roce:
        features.rxe.status()
    if attach.sysctl:
        features.tuning.status(attach)
    if attach.steered:
        features.steering.status(attach)
