"""What an attachment may have besides its interface: addresses, and what few ask for.

A part is a module with the functions of ``Part``, and a row of the table below.  ADD calls each part by name, in
cni/commands.py, because they interleave: rules need the addresses, routing decides where the routes go that addressing
adds, sysctls are written before the addresses, and GIDs are watched for from before them.  STATUS, CHECK and undo need
no such order, so they go through the table.

Rejected: one list of parts for ADD too, which would hide that order.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from cni.kernel.links import Link
from cni.state.journal import Entry
from cni.state.pod import Pod
from cni.state.record import Record

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic, and a start imports the parts that it needs.
    from cni.models import Common
    from cni.parts import gids, program, promises, routing, rxe, tuning
    from cni.parts.promises import Promised

    __all__ = ["program", "promises", "routing", "rxe", "tuning"]
    _PARTS: tuple["Part", ...] = (rxe, routing, tuning, gids)
else:

    def __getattr__(name: str) -> object:
        """A module that few attachments need, imported when it is first used: ``parts.tuning``."""
        if name in _RARE:
            return import_module(f"cni.parts.{name}")
        raise AttributeError(name)


_RARE: Final = ("program", "promises", "routing", "rxe", "tuning")
# In ADD's order: the record's member that a part's module keeps, the configuration's that asks for it, the module.
_TABLE: Final = (
    ("rxe", "soft_roce", "rxe"),
    ("rules", "policyRouting", "routing"),
    ("sysctl", "sysctl", "tuning"),
    ("gids", "rdma", "gids"),
)


class Part(Protocol):
    """What STATUS, CHECK and undo ask of a part's module."""

    def status(self, attach: "Common", /) -> None:
        """Raise CniError if this node can serve no ADD of this configuration now.  ADD asks it, too."""

    def check(self, record: Record, pod: Pod, link: Link, promised: "Promised", /) -> None:
        """Raise CheckFailed unless the part is as ADD left it, as far as ``promised`` still has it."""

    def undo(self, entry: Entry, record: Record, pod: Pod, /) -> Record:
        """Take back what ADD made, whole or in part; nothing there is fine.  Raises CniError, OSError.

        The record without what nobody has to take back any more."""


def status(attach: "Common") -> None:
    """Part.status of all parts that the configuration asks for."""
    for part in _having(attach, 1):
        part.status(attach)


def check(record: Record, pod: Pod, link: Link, promised: "Promised") -> None:
    """Part.check of all parts that the attachment has."""
    for part in _having(record, 0):
        part.check(record, pod, link, promised)


def undo(entry: Entry, record: Record, pod: Pod) -> Record:
    """Part.undo of all parts that the attachment has.  It comes before the interface goes: a soft-RoCE device has to go
    first, and what is the namespace's does not end with the interface."""
    for part in _having(record, 0):
        record = part.undo(entry, record, pod)
    return record


def _having(whole: "Record | Common", column: int) -> Iterator[Part]:
    """The parts whose member of the record or the configuration is not empty."""
    for row in _TABLE:
        if getattr(whole, row[column]):
            yield cast("Part", import_module(f"cni.parts.{row[2]}"))
