"""How an attachment stands, in one word and a sentence, by its record, its lock and its pod's namespace.

Nothing is changed, and no lock is taken: who reads this may be wrong by the time that it takes to read it.
"""

from pathlib import Path
from typing import Final, NamedTuple

from base.state import journal
from base.state.record import LOST, Record
from cni import undo

ATTACHED: Final = "attached"
ATTACHING: Final = "attaching"
HALF_ATTACHED: Final = "half-attached"
DETACHING: Final = "detaching"
HALF_DETACHED: Final = "half-detached"
DETACHED: Final = "detached"
DEAD: Final = "dead"
UNREADABLE: Final = "unreadable"
REFUSED: Final = "refused"
# What is to be done about a record that nobody can read.
REMEDY: Final = "delete the pod: its DEL undoes what it finds"


class State(NamedTuple):
    """One of the words above, and why it is that one."""

    word: str
    why: str


def of(state_dir: Path, record: Record, *, is_dead: bool) -> State:
    """How the attachment of this record stands, whose pod is provably dead or is not."""
    if is_dead:  # guard: dead
        boot = "" if record.of_this_boot else "it is of an older boot"
        return State(DEAD, boot or "no process is in the pod's namespace, and no mount holds it")
    if record.kind == LOST:
        return State(UNREADABLE, f"{record.trouble}; {REMEDY}")
    if record.complete and not is_half_undone(state_dir, record):  # guard: half-undone (state_dir)
        return State(ATTACHED, "ADD has ended, and nothing says that the pod is dead")
    return _of_unfinished(state_dir, record)


def _of_unfinished(state_dir: Path, record: Record) -> State:
    """The same of an attachment that a command works on, or that one has left half-done."""
    begun = is_half_undone(state_dir, record)
    if holder := journal.at_work(state_dir, record.network, record.key):  # guard: at-work
        return State(DETACHING if begun else ATTACHING, f"{holder} works on it")
    # Whoever had the lock may have ended since the record was read.
    now = journal.peek(state_dir, record.network, record.key)
    if now is None:
        return State(DETACHED, "its record was removed just now")
    if now != record:  # guard: looked-again
        return of(state_dir, now, is_dead=undo.is_dead(now))
    if begun:
        refusal = f"; its IPAM would not release: {record.trouble}" if record.trouble else ""
        return State(HALF_DETACHED, f"to undo it was begun and did not end{refusal}")
    return State(HALF_ATTACHED, "its ADD did not end, and nothing works on it")


def is_half_undone(state_dir: Path, record: Record) -> bool:
    """Whether an undo has begun and says so: it found the interface and was about to remove it, or it asked the IPAM
    plugin to release, after the interface was gone."""
    return bool(record.refusals) or journal.Entry(state_dir, record.network, record.key).was_found
