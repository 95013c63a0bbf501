"""The one undo of attachments: after an ADD that failed or was killed, by DEL, and by GC.

It reads only the journal, which holds all that it needs before any change is made.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from base.kernel import budget
from base.protocol import spec
from base.protocol.errors import (
    CniError,
    DelegateError,
    DelegateFailed,
    InterfaceExists,
    IoFailure,
    RecordUnreadable,
    TryAgain,
    combine,
)
from base.protocol.location import Location, location
from base.protocol.spec import Kept, Key, Request
from base.state import journal, owned, syncs
from base.state import pod as pods
from base.state.chains import Chain, Member
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import LOST, Record
from cni import features, kinds
from cni.features import delegate, device_info
from cni.features.delegate import Programs
from cni.kinds import escaped

# After so many refusals of another project's IPAM plugin, DEL succeeds, and the record is kept for people.
REFUSALS: Final = 10
# Error codes of a plugin that may succeed later.
_FOR_NOW: Final = (TryAgain.code, IoFailure.code)


class Undo:
    """The undo for one request.  ``programs`` are the IPAM plugins that are functions of this program, and ``log`` gets
    lines for the caller."""

    # Not a dataclass: each start would take a millisecond longer.
    __slots__ = ("log", "programs", "request")

    def __init__(self, request: Request, programs: Programs, log: list[str]) -> None:
        self.request, self.programs, self.log = request, programs, log

    def of(self, request: Request) -> "Undo":
        """Return the undo for another request of the same command."""
        return Undo(request, self.programs, self.log)

    def as_gc(self) -> "Undo":
        """Return the undo for attachments of dead pods: the request's namespace is another pod's."""
        return self.of(self.request.but(CNI_NETNS="", CNI_COMMAND="GC"))

    def attachment(self, entry: Entry, record: Record, *, ask_ipam: bool = True, counts: bool = True) -> None:
        """Undo all that the record names, then remove the record.  If it raises CniError or OSError, the record stays.

        It releases an address only after the interface with it is gone, so no two pods ever have one address.
        ``ask_ipam`` is false if the IPAM plugin holds nothing.  ``counts`` is true if the plugin's refusal counts
        towards REFUSALS.
        """
        budget.extend_for_undo()
        if record.kind == LOST:
            self._lost(entry, record)
            return
        if record.claim:
            features.claimed.undo([record])
        doubt = ""
        if record.of_this_boot:
            with pods.find(record.identity, record.netns, self.request) as pod:
                if pod:
                    record = _undo_features(entry, record, pod)
                doubt = _remove_interface(entry, record, pod, self.log)
        self.rest(entry, record, doubt, ask_ipam=ask_ipam, counts=counts)

    def rest(
        self, entry: Entry, record: Record, doubt: str = "", *, ask_ipam: bool = True, counts: bool = True
    ) -> None:
        """Undo what must wait for the end of the interface, and remove the record.  ``doubt`` is the reason why the
        interface may still exist; empty if it is gone."""
        if doubt:
            self.log.append(f"{record.title}: its interface was not found: {doubt}; its addresses may be in use")
        if record.steering:
            features.steering.put_back(record)
        device_info.undo(record.device_info)
        if not ask_ipam or self._release_addresses(entry, record, counts=counts, in_use=bool(doubt)):
            entry.forget()

    def whatever_is_left(self, entry: Entry, requested: Key | None = None) -> bool:
        """Undo the attachment if it has a record; return False if there is none.  With ``requested``, one that another
        request made stays: a rail of it.  Raises CniError, OSError; RecordUnreadable after it has undone an attachment
        with an unreadable record."""
        try:
            record = entry.load()
        except RecordUnreadable as unreadable:
            lost = entry.load()
            if lost:
                with after(unreadable, "repeat DEL"):
                    self.attachment(entry, lost)
            raise
        if record is None:
            entry.forget()
            return False
        if requested in (None, record.requested):
            self.attachment(entry, record)
        return True

    def settle(self, entry: Entry, pod: Pod) -> None:
        """Undo what an earlier ADD of the same key left.  Raises InterfaceExists if that attachment still exists, and
        its caller got the reply.

        A runtime that derives container ids from paths (cnitool) reuses a key for another namespace.
        """
        record = entry.load()
        if record is None:
            return
        here = record.of_this_boot and record.identity == pod.identity and not self.request.was_taken
        if here and record.complete and kinds.named(record.kind).stands(record.link, pod, record.key.ifname):
            raise InterfaceExists(f"{record.title}: already attached since {record.time}; send DEL first")
        self.attachment(entry, record)
        self.log.append(f"undid an earlier ADD of {record.title}; it began {record.time}")

    def chain(self, whole: Chain) -> None:
        """Undo all attachments of a chain, then remove the chain.  Raises all failures as one, after every attachment
        was tried; then the chain stays."""
        with whole.lock():
            self.request.refuse_if_abandoned()
            self.members_of_chain(whole, whole.load())

    def members_of_chain(self, whole: Chain, members: Sequence[Member]) -> None:
        """``chain`` for a caller that holds the chain's lock and has loaded its members."""
        failures = list[Exception]()
        with journal.lock_all([member.entry(whole.key.container_id) for member in members]):
            own = whole.own(members)
            removed = _remove_links({entry: record for entry, (_, record) in own.items() if record}, self.request)
            with syncs.collected() as late, Kept() as kept:
                # First what is quick, because others wait for a store that is kept.
                for entry in sorted(own, key=lambda one: one not in removed):
                    try:
                        if entry in removed:
                            self.of(replace(self.request, kept=kept)).rest(entry, removed[entry])
                        else:
                            kept.close()
                            self.of(own[entry][0].request(self.request)).whatever_is_left(entry)
                    except (CniError, OSError) as e:
                        failures.append(e)
                kept.close()
                late.wait()
            if failures:
                raise combine(failures)
            whole.forget()

    def free_one(self, devices: tuple[str, ...], where: Location) -> bool:
        """Undo one attachment that owns one of the devices and belongs to a provably dead pod.

        Returns whether a device is free now.  Raises CniError, OSError if there are dead owners and none could be
        undone.  Waits for a living owner's command only if no owner is dead: it may be the DEL that frees the device.
        """
        owners, failures = owned.use(where.state_dir, devices).devices, list[Exception]()
        dead = dict(zip(owners, are_dead([*owners.values()]), strict=True))
        for device in sorted(devices, key=lambda one: not dead.get(one, True)):
            if device not in owners:
                return True
            record = owners[device]
            with journal.lock(where.state_dir, record.network, record.key) as entry:
                owner = entry.load()
                if owner is None:
                    return True
                if is_dead(owner):
                    try:
                        self.as_gc().attachment(entry, owner)
                        return True
                    except (CniError, OSError) as e:
                        failures.append(e)
        if failures:
            raise combine(failures)
        return False

    def _lost(self, entry: Entry, record: Record) -> None:
        """Undo an attachment with an unreadable record.  Its addresses may be in use if its interface is not found."""
        from cni.kinds import lost  # noqa: PLC0415  # rarely needed

        in_use = record.of_this_boot and not lost.remove(record, self.request)
        asked = self.request.but(CNI_CONTAINERID=record.key.container_id, CNI_IFNAME=record.key.ifname)
        self.of(replace(asked, in_use=in_use)).release(location(spec.configuration(self.request)).ipam)
        entry.forget()

    def _release_addresses(self, entry: Entry, record: Record, *, counts: bool, in_use: bool) -> bool:
        """Call the IPAM plugin to release; if the pod may use the addresses, with ``in_use``.  Returns whether the
        record may be removed; if not, it was set aside for people.

        Raises the plugin's error.  After REFUSALS refusals another project's plugin is not called again.  A plugin that
        answered ADD with an error is called only twice, because it reported that it allocated nothing.
        """
        undo = self.of(replace(self.request, in_use=True)) if in_use else self
        try:
            undo.release_as_added(record)
        except (DelegateError, DelegateFailed) as why:
            if not undo.request.in_use:
                # The interface is gone, so a repeated DEL need not search for it.
                record = replace(record, link={**record.link, "index": 0})
            if location(record.config).ipam in self.programs or why.code in _FOR_NOW or not counts:
                raise
            record = replace(record, refusals=record.refusals + 1, trouble=f"{why}")
            if record.refusals < (REFUSALS if record.given else 2):
                entry.save(record)
                raise
            if record.given:
                entry.keep_for_people(record)
                return False
        return True

    def release_as_added(self, record: Record) -> None:
        """Call the IPAM plugin to release with ADD's configuration.  If it refuses, repeat with the caller's present
        configuration, in which a person may have corrected a mistake.  Raises DelegateError, DelegateFailed."""
        ipam = location(record.config).ipam
        as_added = self.request.but(
            stdin=json.dumps(record.config).encode(),
            CNI_CONTAINERID=record.key.container_id,
            CNI_IFNAME=record.key.ifname,
            CNI_ARGS=record.args,
            CNI_NETNS=self.request.netns if self.request.command == "DEL" else record.netns,
        )
        try:
            self.of(as_added).release(ipam)
        except (DelegateError, DelegateFailed) as refusal:
            if not _differs(self.request, record, ipam):
                raise
            now = as_added.but(stdin=self.request.stdin, CNI_ARGS=self.request.var("CNI_ARGS"))
            try:
                self.of(now).release(ipam)
            except (DelegateError, DelegateFailed):
                raise refusal from None

    def release(self, ipam: str) -> None:
        """Call the IPAM plugin, if there is one, to release the addresses of the request's attachment.  Raises
        DelegateError, DelegateFailed."""
        if ipam:
            delegate.call(ipam, self.request.but(CNI_COMMAND="DEL"), self.programs)


def _remove_links(found: Mapping[Entry, Record], request: Request) -> dict[Entry, Record]:
    """Remove the macvlans of a chain together, as far as that is possible, because the kernel takes as long for eight
    as for one.

    Return the attachments with a link that is gone now, and with nothing stacked on it; the caller undoes the rest of
    them.
    """
    ours = {entry: r for entry, r in found.items() if r.kind == "macvlan" and r.of_this_boot and not r.rxe}
    if len(ours) < 2:
        return {}
    from cni.kinds import child  # noqa: PLC0415  # only for chains

    first = next(iter(ours.values()))
    with suppress(CniError, OSError), pods.find(first.identity, first.netns, request) as pod:
        if pod is None:
            return {}
        here = {entry: record for entry, record in ours.items() if record.identity == pod.identity}
        features.claimed.undo([record for record in here.values() if record.claim])
        # Before the mark of ``note_found``, which a write of the record would remove.
        undone = {entry: _undo_features(entry, record, pod) for entry, record in here.items()}
        gone = child.remove_together({entry: record.link for entry, record in here.items()}, pod)
        return {entry: undone[entry] for entry in gone}
    return {}


def _undo_features(entry: Entry, record: Record, pod: Pod) -> Record:
    """Undo what does not end with the interface: a soft-RoCE device must go first, and rules and sysctls belong to the
    namespace.  Returns the record without what a repetition need not undo."""
    if record.rxe:
        features.rxe.undo(entry, record)
    if record.rules:
        features.routing.undo(record, pod)
    if record.host_network:
        features.host_network.undo(entry, record, pod)
    return features.tuning.undo(entry, record, pod) if record.sysctl else record


def _remove_interface(entry: Entry, record: Record, pod: Pod | None, log: list[str]) -> str:
    """Remove the interface from the pod, then search for what the pod has hidden or stacked on it.

    Returns the reason why the interface may still exist; empty if it is gone.
    """
    was_found = entry.was_found
    search = kinds.named(record.kind).detach(record.link, pod, record.key.ifname, entry.note_found)
    if search is None:
        return ""
    if search.note:
        log.append(f"{search.note}; it was that of {record.title}")
    if was_found:
        # An earlier undo found the interface and was killed, so it is gone and not hidden.
        search = replace(search, index=0, mac="")
    elif search.index:  # this undo may have found it, and not removed it
        entry.note_found(is_there=False)
    return escaped.remove(search, entry, record, pod)


def _differs(request: Request, record: Record, ipam: str) -> bool:
    """Whether the caller's configuration is for the record's network and differs from the recorded one."""
    conf = spec.configuration(request)
    if conf.get("name") != record.network or location(conf).ipam != ipam:
        return False
    return conf.get("ipam") != record.config.get("ipam") or request.var("CNI_ARGS") != record.args


@contextmanager
def after(failure: BaseException, then: str) -> Iterator[None]:
    """Run an undo after ``failure``, which stays the error.  If the undo fails too, its error becomes a note of
    ``failure``, after ``then``, the remedy."""
    try:
        yield
    except (CniError, OSError) as problem:
        failure.add_note(f"{then}: {problem}")


def can_free_one(devices: tuple[str, ...], where: Location) -> bool:
    """Whether ``free_one`` would find a free device or a dead owner."""
    owners = owned.use(where.state_dir, devices).devices
    return any(device not in owners or is_dead(owners[device]) for device in devices)


def may_be_dead(record: Record) -> bool:
    """A cheap check before ``is_dead``: whether the runtime's path leads to another namespace now, or to none."""
    try:
        return not record.of_this_boot or os.stat(record.netns).st_ino != record.identity.inode
    except OSError:
        return True


def is_dead(record: Record) -> bool:
    """Whether the pod is provably dead."""
    return are_dead([record])[0]


def are_dead(records: Sequence[Record]) -> list[bool]:
    """Return for each record whether its pod is provably dead.  Any number of records takes one scan of /proc."""
    # An unreadable record proves nothing but its boot.
    sought = [(r.identity, r.netns) if r.of_this_boot and r.kind != LOST else None for r in records]
    gone = iter(pods.gone([one for one in sought if one]))
    return [next(gone) if one else not r.of_this_boot for one, r in zip(sought, records, strict=True)]


def is_chain_dead(whole: Chain, members: Sequence[Member]) -> bool:
    """Whether the pod of a chain is provably dead.  A chain without records proves nothing."""
    found = [member.entry(whole.key.container_id) for member in members]
    records = [r for one in found if (r := journal.peek(one.state_dir, one.network, one.key))]
    return bool(records) and all(are_dead(records))
