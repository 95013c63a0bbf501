"""What is half-done, finished or undone: by the one undo (undo.py), from the journal, under each attachment's lock.

    dead            Its pod is provably dead, as for hpn gc.  If its namespace lives on unseen (kernel/held.py), its
                    interface comes home from there.
    half-attached   Its ADD did not end, and nobody has its lock.  It is undone.
    half-detached   An undo of it began and did not end.  That is finished.
    refused         It is detached, and its IPAM plugin would not release.  The plugin is asked once more.
    leftover        An ADD was killed while it wrote its record.  What it wrote is removed.

An attachment that is complete, and whose pod lives, is never touched.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cni import collect, standing, undo
from cni.attachments import Found
from cni.kernel import held
from cni.parts.delegate import Programs
from cni.protocol import spec
from cni.protocol.errors import TryAgain
from cni.protocol.location import location
from cni.protocol.spec import Request
from cni.standing import DEAD, HALF_ATTACHED, HALF_DETACHED, REFUSED, UNREADABLE
from cni.state import durable, journal
from cni.state.journal import Entry
from cni.state.record import Record

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
        word, why = one.standing()
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
    away = held.opened(seen.identity.inode) if seen.of_this_boot and undo.is_dead(seen) else nullcontext(("", ""))
    with away as (path, _):
        # A plugin that says that it gave nothing may refuse: DEL goes on then, too.
        # guard below: not-counted (not seen.given -> True)
        undo.attachment(entry, seen, _request(path, seen.network), programs, log, counts=not seen.given)
    return True


def _is_to_be_undone(entry: Entry, record: Record) -> bool:
    """Asked under its lock, so no ADD runs."""
    return not record.complete or standing.is_half_undone(entry.state_dir, record) or undo.is_dead(record)


def _release(entry: Entry, file: Path, record: Record, programs: Programs) -> bool:
    if not file.exists():
        return False
    if entry.version() is not None:  # guard: attached-again
        raise TryAgain(
            f"{record.whose}, is attached again; to release now would take its new addresses, delete it first"
        )
    undo.release_as_added(location(record.config).ipam, record, _request("", record.network), programs)
    durable.remove(file)
    return True


def _remove_leftover(entry: Entry) -> bool:
    if entry.version() is not None:
        return False  # an ADD has come and ended meanwhile
    entry.forget()
    return True


def _request(netns: str, network: str) -> Request:
    """As GC's; other IPAM plugins are looked for as by collect.sweep.

    The configuration is for a record that stands in for one that could not be read: it has none.
    """
    environ = {"CNI_COMMAND": "GC", "CNI_NETNS": netns, "CNI_PATH": os.environ.get("CNI_PATH", collect.PLUGINS)}
    stdin = json.dumps({"cniVersion": spec.NEWEST, "name": network, "type": "hpn"}).encode()
    return Request({**environ, "PATH": os.environ.get("PATH", "")}, stdin)
