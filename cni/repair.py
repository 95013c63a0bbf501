"""The operator's check (hpn check) and repair (hpn repair) of attachments.

A check does what CHECK would, from the record.  A runtime's CHECK has prevResult, the result of the whole chain, from
libcni's cache, and so does this check.  If the cache has none, ADD's own result replaces it, which lacks the changes of
later plugins.

A repair is the one undo (undo.py), from the journal, under each attachment's lock:

    dead            The pod is provably dead, as for hpn gc.  Undo the attachment.  If the namespace exists unseen
                    (base/kernel/holders.py), move the interface home from there.
    half-attached   ADD did not end, and nothing holds the lock.  Undo the attachment.
    half-detached   An undo began and did not end.  Finish it.
    refused         The attachment is detached, and the IPAM plugin refused to release.  Call the plugin once more.
    leftover        ADD was killed while it wrote the record.  Remove the beginning of the record.

A complete attachment of a living pod is never changed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.kernel import holders, rtnl
from base.protocol import spec
from base.protocol.errors import CheckFailed, RecordUnreadable, TryAgain
from base.protocol.location import location
from base.protocol.result import Result
from base.protocol.spec import Json, Request
from base.state import durable, journal, libcni_cache
from base.state import pod as pods
from base.state.journal import Entry
from base.state.record import Record
from cni import attachment_state, collect, commands, undo
from cni.attachment_state import DEAD, HALF_ATTACHED, HALF_DETACHED, REFUSED, UNREADABLE
from cni.attachments import Found
from cni.features import delegate
from cni.features.delegate import Programs

LEFTOVER: Final = "leftover"
_UNDONE: Final = (DEAD, HALF_ATTACHED, HALF_DETACHED)
# Seconds to wait for the lock; a command that holds it usually needs less.
_TIMEOUT: Final = 1.0
_ACTIONS: Final = {
    **dict.fromkeys(_UNDONE, ("undo", "undid")),
    REFUSED: ("release the addresses of", "released the addresses of"),
    LEFTOVER: ("remove the beginning of a record of", "removed the beginning of a record of"),
    UNREADABLE: ("leave alone", "left alone"),
}


@dataclass(frozen=True)
class Task:
    """One file of the journal to repair: its attachment's state, and the reason."""

    found: Found
    word: str
    why: str

    @property
    def can_be_done(self) -> bool:
        """Whether a repair is possible; if not, only DEL helps."""
        return self.word != UNREADABLE

    @property
    def action(self) -> tuple[str, str]:
        """The repair, as words for before and after it."""
        return _ACTIONS[self.word]


def tasks(found: Iterable[Found]) -> Iterator[Task]:
    """Yield the repairs that these need."""
    for one in found:
        word, why = one.state()
        if word in _ACTIONS:
            yield Task(one, word, why)


def leftovers(state_dir: Path) -> Iterator[Task]:
    """Yield the beginnings of records that no command is writing."""
    for entry in journal.begun(state_dir):
        if not journal.at_work(state_dir, entry.network, entry.key) and entry.version() is None:
            why = "its ADD was killed while it wrote the record, before it changed anything"
            yield Task(Found(state_dir, entry.path, None), LEFTOVER, why)


def mend(task: Task, programs: Programs, log: list[str]) -> bool:
    """Carry out the repair; return False if another command already did.  Raises CniError, OSError."""
    found = task.found
    with journal.lock(found.state_dir, found.network, found.key, _TIMEOUT) as entry:
        if found.record is None:
            if task.word != LEFTOVER or entry.version() is not None:
                return False  # an ADD has completed meanwhile
            entry.forget()
            return True
        if task.word == REFUSED:
            return _release(entry, found.path, found.record, programs)
        return _undo(entry, found.record, programs, log)


def _undo(entry: Entry, seen: Record, programs: Programs, log: list[str]) -> bool:
    # By peek, because Entry.load would move an unreadable record to quarantine, which is another command's.
    if journal.peek(entry.state_dir, entry.network, entry.key) != seen:
        return False
    is_dead = undo.is_dead(seen)
    if seen.complete and not is_dead and not attachment_state.is_half_undone(entry.state_dir, seen):
        return False
    away = holders.opened(seen.identity.inode) if seen.of_this_boot and is_dead else nullcontext(("", ""))
    with away as (path, _):
        # A plugin that reported that it allocated nothing may refuse, as in DEL.
        undo.Undo(_undo_request(path, seen.network), programs, log).attachment(entry, seen, counts=not seen.given)
    return True


def _release(entry: Entry, file: Path, record: Record, programs: Programs) -> bool:
    if not file.exists():
        return False
    if entry.version() is not None:
        raise TryAgain(f"{record.title}: attached again; a release now would take its new addresses; delete it first")
    undo.Undo(_undo_request("", record.network), programs, []).release_as_added(record)
    durable.remove(file)
    return True


def _undo_request(netns: str, network: str) -> Request:
    """Return a request like GC's.  Its configuration replaces that of an unreadable record."""
    conf = {"cniVersion": spec.NEWEST, "name": network, "type": "hpn"}
    return collect.own_request(json.dumps(conf).encode(), CNI_COMMAND="GC", CNI_NETNS=netns)


def check(state_dir: Path, record: Record, programs: Programs) -> None:
    """Raise CniError or OSError unless the attachment is as ADD left it.  Waits for a command that works on it."""
    with journal.lock(state_dir, record.network, record.key):
        # By peek, which moves no unreadable record, because a check changes nothing.
        now = journal.peek(state_dir, record.network, record.key)
        if now is None or not now.complete:
            raise CheckFailed(f"{record.title}: detached or attached anew meanwhile; repeat this")
        with pods.find(now.identity, now.netns) as pod, rtnl.open_in() as host:
            if pod is None:
                raise CheckFailed(f"{now.title}: its namespace {now.netns} is gone, or cannot be seen from here")
            try:
                promised = prev_result(now)
                commands.compare(now, Result.from_json(promised), now.netns, pod, host)
                if ipam := location(now.config).ipam:
                    delegate.call(ipam, _check_request(now, promised), programs)
            except (KeyError, TypeError, ValueError) as e:
                raise RecordUnreadable(f"{now.title}: its record is another version's: {e!r}") from e


def prev_result(record: Record) -> Json:
    """Return the chain's result from libcni's cache; if it is not there, ADD's own."""
    cached = libcni_cache.result(record.network, record.requested)
    if cached is not None:
        return cached
    version = str(record.config.get("cniVersion", spec.NEWEST))
    return {"cniVersion": version, **Result.from_json(record.result).to_json(version)}


def _check_request(record: Record, promised: Mapping[str, Any]) -> Request:
    """Return a CHECK request like a runtime's."""
    return collect.own_request(
        json.dumps({**record.config, "prevResult": promised}).encode(),
        CNI_COMMAND="CHECK",
        CNI_CONTAINERID=record.key.container_id,
        CNI_IFNAME=record.key.ifname,
        CNI_NETNS=record.netns,
        CNI_ARGS=record.args,
    )
