"""The state of an attachment, as one word and a sentence, from its record, its lock and its pod's namespace.

Reading the state changes nothing and takes no lock, so it may be out of date at once.
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
# The remedy for an unreadable record.
REMEDY: Final = "delete the pod: its DEL undoes what it finds"


class State(NamedTuple):
    """One of the words above, and the reason in a sentence."""

    word: str
    why: str


def of(state_dir: Path, record: Record, *, is_dead: bool) -> State:
    """Return the state of the record's attachment.  ``is_dead`` is true if its pod is provably dead."""
    if is_dead:
        boot = "" if record.of_this_boot else "it is of an older boot"
        return State(DEAD, boot or "no process is in the pod's namespace, and no mount holds it")
    if record.kind == LOST:
        return State(UNREADABLE, f"{record.trouble}; {REMEDY}")
    if record.complete and not is_half_undone(state_dir, record):
        return State(ATTACHED, "ADD has ended, and nothing says that the pod is dead")
    return _of_unfinished(state_dir, record)


def _of_unfinished(state_dir: Path, record: Record) -> State:
    """Return the state of an attachment that a command is changing, or has left half-done."""
    begun = is_half_undone(state_dir, record)
    if holder := journal.at_work(state_dir, record.network, record.key):
        return State(DETACHING if begun else ATTACHING, f"{holder} works on it")
    # The lock's holder may have ended after the record was read.
    now = journal.peek(state_dir, record.network, record.key)
    if now is None:
        return State(DETACHED, "its record was removed just now")
    if now != record:
        return of(state_dir, now, is_dead=undo.is_dead(now))
    if begun:
        refusal = f"; its IPAM would not release: {record.trouble}" if record.trouble else ""
        return State(HALF_DETACHED, f"an undo of it began and did not end{refusal}")
    return State(HALF_ATTACHED, "its ADD did not end, and nothing works on it")


def is_half_undone(state_dir: Path, record: Record) -> bool:
    """Whether an undo has begun and left a mark.  It marks that it found the interface, before it removes it, and that
    the IPAM plugin refused to release."""
    return bool(record.refusals) or journal.Entry(state_dir, record.network, record.key).was_found
