"""The features of attachments: everything besides the interface.

A feature is a module with the functions of ``Feature``, and a row of ``_TABLE``.  STATUS, CHECK and undo go through the
table.  ADD calls each feature by name in cni/commands.py, because there the features depend on each other.  The rules
need the addresses, and routing chooses the table for each of addressing's routes.  ADD writes sysctls before it adds
addresses, and watches the GIDs from before that.

Rejected: to call the features through the table in ADD too, which would hide this order.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from base.kernel.links import Link
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record

if TYPE_CHECKING:
    # Not at run time, because DEL does not need pydantic, and a start imports only the features that it needs.
    from cni.features import expected, gids, program, routing, rxe, steering, tuning
    from cni.features.expected import Expected
    from cni.models import Common

    __all__ = ["expected", "program", "routing", "rxe", "steering", "tuning"]
    # So mypy compares each module with Feature.
    _FEATURES: tuple["Feature", ...] = (rxe, routing, tuning, gids, steering)
else:

    def __getattr__(name: str) -> object:
        """Import a module that few attachments need when it is first used: ``features.tuning``."""
        if name in _LATE:
            return import_module(f"cni.features.{name}")
        raise AttributeError(name)


# A new feature is a row here, in ADD's order: the record's member for it, the configuration's member that asks for it,
# its module.
_TABLE: Final = (
    ("rxe", "soft_roce", "rxe"),
    ("rules", "source_routing", "routing"),
    ("sysctl", "sysctl", "tuning"),
    ("gids", "rdma", "gids"),
    ("steering", "steered", "steering"),
)
_THIS: Final = sys.modules[__name__]
_LATE: Final = ("program", "expected", *(module for _, _, module in _TABLE))


class Feature(Protocol):
    """The functions of a feature's module, which STATUS, CHECK and undo call."""

    def status(self, attach: "Common", /) -> None:
        """Raise CniError if this node can serve no ADD of this configuration now, for any pod.  ADD also calls it."""

    def check(self, record: Record, pod: Pod, link: Link, expected: "Expected", /) -> None:
        """Raise CheckFailed unless the feature is as ADD left it.  ``expected`` has the addresses and routes that later
        plugins of the chain left."""

    def undo(self, entry: Entry, record: Record, pod: Pod, /) -> Record:
        """Remove what ADD made, in whole or in part; succeed if there is nothing.  Raises CniError, OSError.

        Returns the record without what a repetition need not remove."""


def status(attach: "Common") -> None:
    """Call Feature.status of the features that the configuration asks for."""
    for feature in _having(attach, 1):
        feature.status(attach)


def check(record: Record, pod: Pod, link: Link, expected: "Expected") -> None:
    """Call Feature.check of the features that the attachment has."""
    for feature in _having(record, 0):
        feature.check(record, pod, link, expected)


def undo(entry: Entry, record: Record, pod: Pod) -> Record:
    """Call Feature.undo of the features that the attachment has.  This precedes the interface's removal: a soft-RoCE
    device must go first, and rules and sysctls of the namespace do not end with the interface."""
    for feature in _having(record, 0):
        record = feature.undo(entry, record, pod)
    return record


def _having(whole: "Record | Common", column: int) -> Iterator[Feature]:
    """Yield the features with a non-empty member in the record or the configuration."""
    for row in _TABLE:
        if getattr(whole, row[column]):
            yield getattr(_THIS, row[2])  # not by import_module, which takes 2 us also if the module is there
