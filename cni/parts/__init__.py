"""What an attachment has besides its interface: addresses, and parts, which few attachments have.

A part is a module with the functions of ``Part``, and a row of ``_TABLE``.  STATUS, CHECK and undo go through the
table.  ADD calls each part by name in cni/commands.py, because there the parts depend on each other: the rules need the
addresses, routing decides in which table addressing puts a route, sysctls are written before addresses are added, and
GIDs are watched from before that.

Rejected: to call the parts through the table in ADD too, which would hide this order.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from cni.kernel.links import Link
from cni.state.journal import Entry
from cni.state.pod import Pod
from cni.state.record import Record

if TYPE_CHECKING:
    # Not at run time, because DEL does not need pydantic, and a start imports only the parts that it needs.
    from cni.models import Common
    from cni.parts import gids, program, promises, routing, rxe, steering, tuning
    from cni.parts.promises import Promised

    __all__ = ["program", "promises", "routing", "rxe", "steering", "tuning"]
    _PARTS: tuple["Part", ...] = (rxe, routing, tuning, gids, steering)  # so mypy compares each module with Part
else:

    def __getattr__(name: str) -> object:
        """Import a module that few attachments need when it is first used: ``parts.tuning``."""
        if name in _LATE:
            return import_module(f"cni.parts.{name}")
        raise AttributeError(name)


# A new part is a row here, in ADD's order: the record's member that says what there is of the part, the configuration's
# member that asks for it, the module.
_TABLE: Final = (
    ("rxe", "soft_roce", "rxe"),
    ("rules", "source_routing", "routing"),
    ("sysctl", "sysctl", "tuning"),
    ("gids", "rdma", "gids"),
    ("steering", "steered", "steering"),
)
_THIS: Final = sys.modules[__name__]
_LATE: Final = ("program", "promises", *(module for _, _, module in _TABLE))


class Part(Protocol):
    """What STATUS, CHECK and undo call in a part's module."""

    def status(self, attach: "Common", /) -> None:
        """Raise CniError if this node can serve no ADD of this configuration now, whatever the pod.  ADD calls it,
        too."""

    def check(self, record: Record, pod: Pod, link: Link, promised: "Promised", /) -> None:
        """Raise CheckFailed unless the part is as ADD left it.  ``promised`` is what later plugins of the chain left of
        the addresses and routes."""

    def undo(self, entry: Entry, record: Record, pod: Pod, /) -> Record:
        """Remove what ADD made, all of it or a part; if nothing is there, that is fine.  Raises CniError, OSError.

        Returns the record without what no repetition has to remove."""


def status(attach: "Common") -> None:
    """Call Part.status of the parts that the configuration asks for."""
    for part in _having(attach, 1):
        part.status(attach)


def check(record: Record, pod: Pod, link: Link, promised: "Promised") -> None:
    """Call Part.check of the parts that the attachment has."""
    for part in _having(record, 0):
        part.check(record, pod, link, promised)


def undo(entry: Entry, record: Record, pod: Pod) -> Record:
    """Call Part.undo of the parts that the attachment has, before its interface goes: a soft-RoCE device has to go
    first, and rules and sysctls of the namespace do not end with the interface."""
    for part in _having(record, 0):
        record = part.undo(entry, record, pod)
    return record


def _having(whole: "Record | Common", column: int) -> Iterator[Part]:
    """The parts whose member of the record or the configuration is not empty."""
    for row in _TABLE:
        if getattr(whole, row[column]):
            yield getattr(_THIS, row[2])  # not by import_module, which takes 2 us also if the module is there
