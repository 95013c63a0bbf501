"""What an operator does by hand: check an attachment (hpn check), and repair what is half-done (hpn repair).

A check is CHECK of an attachment that no runtime asks for: by its record, as a runtime's CHECK of it would end.  A
runtime hands over prevResult, the answer of the whole chain, from libcni's cache.  It is read there.  Where there is
none, ADD's own answer has to do, which does not know what later plugins of the chain have changed.

A repair is the one undo (undo.py), from the journal, under each attachment's lock:

    dead            Its pod is provably dead, as for hpn gc.  If its namespace lives on unseen (kernel/holders.py), its
                    interface comes home from there.
    half-attached   Its ADD did not end, and nobody has its lock.  It is undone.
    half-detached   An undo of it began and did not end.  That is finished.
    refused         It is detached, and its IPAM plugin would not release.  The plugin is asked once more.
    leftover        An ADD was killed while it wrote its record.  What it wrote is removed.

An attachment that is complete, and whose pod lives, is never touched.
"""

import json
import os
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
# Seconds: a command that works on the attachment mostly needs less.
_TIMEOUT: Final = 1.0
_ACTIONS: Final = {
    **dict.fromkeys(_UNDONE, ("undo", "undid")),
    REFUSED: ("release the addresses of", "released the addresses of"),
    LEFTOVER: ("remove the beginning of a record of", "removed the beginning of a record of"),
    UNREADABLE: ("leave alone", "left alone"),
}


@dataclass(frozen=True)
class Task:
    """One file of the journal that is not as it should be: how its attachment stands, and why."""

    found: Found
    word: str
    why: str

    @property
    def can_be_done(self) -> bool:
        """Whether there is anything to be done without its DEL."""
        return self.word != UNREADABLE

    @property
    def action(self) -> tuple[str, str]:
        """What is to be done with it, before and after it was done."""
        return _ACTIONS[self.word]


def tasks(found: Iterable[Found]) -> Iterator[Task]:
    """What is to be mended of these."""
    for one in found:
        word, why = one.state()
        if word in _ACTIONS:  # guard: only-these = True
            yield Task(one, word, why)


def leftovers(state_dirs: Iterable[Path]) -> Iterator[Task]:
    """The beginnings of records, of which nobody writes the rest."""
    for state_dir in state_dirs:
        for entry in journal.begun(state_dir):
            # guard below: running-add (state_dir)
            if not journal.at_work(state_dir, entry.network, entry.key) and entry.version() is None:
                why = "its ADD was killed while it wrote that, before it changed anything"
                yield Task(Found(state_dir, entry.path, None), LEFTOVER, why)


def mend(task: Task, programs: Programs, log: list[str]) -> bool:
    """Do it.  Returns whether it was to be done still: another command may have come first.  Raises CniError, OSError,
    and then it is to be done still."""
    found = task.found
    with journal.lock(found.state_dir, found.network, found.key, _TIMEOUT) as entry:
        if found.record is None:
            return task.word == LEFTOVER and _remove_leftover(entry)
        if task.word == REFUSED:
            return _release(entry, found.path, found.record, programs)
        return _undo(entry, found.record, programs, log)


def _undo(entry: Entry, seen: Record, programs: Programs, log: list[str]) -> bool:
    # Without the move to quarantine that Entry.load makes of what cannot be read: that is another command's.
    # guard below: as-it-was-seen (state_dir)
    if journal.peek(entry.state_dir, entry.network, entry.key) != seen or not _is_to_be_undone(entry, seen):
        return False
    # guard below: lives-on (identity)
    away = holders.opened(seen.identity.inode) if seen.of_this_boot and undo.is_dead(seen) else nullcontext(("", ""))
    with away as (path, _):
        # A plugin that says that it gave nothing may refuse: DEL goes on then, too.
        # guard below: not-counted (not seen.given -> True)
        undo.attachment(entry, seen, _undo_request(path, seen.network), programs, log, counts=not seen.given)
    return True


def _is_to_be_undone(entry: Entry, record: Record) -> bool:
    """Asked under its lock, so no ADD runs."""
    return not record.complete or attachment_state.is_half_undone(entry.state_dir, record) or undo.is_dead(record)


def _release(entry: Entry, file: Path, record: Record, programs: Programs) -> bool:
    if not file.exists():
        return False
    if entry.version() is not None:  # guard: attached-again
        raise TryAgain(
            f"{record.title}, is attached again; to release now would take its new addresses, delete it first"
        )
    undo.release_as_added(location(record.config).ipam, record, _undo_request("", record.network), programs)
    durable.remove(file)
    return True


def _remove_leftover(entry: Entry) -> bool:
    if entry.version() is not None:
        return False  # an ADD has come and ended meanwhile
    entry.forget()
    return True


def _undo_request(netns: str, network: str) -> Request:
    """As GC's; other IPAM plugins are looked for as by collect.sweep.

    The configuration is for a record that stands in for one that could not be read: it has none.
    """
    environ = {"CNI_COMMAND": "GC", "CNI_NETNS": netns, "CNI_PATH": os.environ.get("CNI_PATH", collect.PLUGINS)}
    stdin = json.dumps({"cniVersion": spec.NEWEST, "name": network, "type": "hpn"}).encode()
    return Request({**environ, "PATH": os.environ.get("PATH", "")}, stdin)


def check(state_dir: Path, record: Record, programs: Programs) -> None:
    """Raise CniError or OSError unless the attachment is as ADD left it.  Waits for a command that works on it."""
    with journal.lock(state_dir, record.network, record.key):
        # Without a move of what cannot be read: nothing is changed.
        now = journal.peek(state_dir, record.network, record.key)
        if now is None or not now.complete:
            raise CheckFailed(f"{record.title}, was detached or attached anew meanwhile; repeat this")
        with pods.find(now.identity, now.netns) as pod, rtnl.open_in() as host:
            if pod is None:
                raise CheckFailed(f"{now.title}: its namespace {now.netns} is gone, or cannot be seen from here")
            try:
                promised = prev_result(now)
                commands.compare(now, Result.from_json(promised), now.netns, pod, host)  # guard: compares
                if ipam := location(now.config).ipam:  # guard: ipam
                    delegate.call(ipam, _check_request(now, promised), programs)
            except (KeyError, TypeError, ValueError) as e:
                raise RecordUnreadable(f"the record of {now.title}, is another version's: {e!r}") from e


def prev_result(record: Record) -> Json:
    """The answer of the chain, in libcni's cache; if it is not there, ADD's own."""
    cached = libcni_cache.result(record.network, record.key)
    if cached is not None:  # guard: cached
        return cached
    version = str(record.config.get("cniVersion", spec.NEWEST))
    return {"cniVersion": version, **Result.from_json(record.result).to_json(version)}


def _check_request(record: Record, promised: Mapping[str, Any]) -> Request:
    """CHECK, as a runtime sends it."""
    environ = {
        "CNI_COMMAND": "CHECK",
        "CNI_CONTAINERID": record.key.container_id,
        "CNI_IFNAME": record.key.ifname,
        "CNI_NETNS": record.netns,
        "CNI_ARGS": record.args,
        "CNI_PATH": os.environ.get("CNI_PATH", collect.PLUGINS),
        "PATH": os.environ.get("PATH", ""),
    }
    return Request(environ, json.dumps({**record.config, "prevResult": promised}).encode())
