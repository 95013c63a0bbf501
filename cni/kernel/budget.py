"""A request's budget: the seconds that it may wait for others, all of its waits together.

A hostile pod can make every wait a long one, and a command has twenty.  A bound for each of them would bound nothing,
so all of them spend one budget.  These are not counted: work, and waits for locks, for other programs, and for what has
a timeout in the configuration.
"""

import time
from _thread import _local  # threading's, which takes as long to import as some answers to make
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cni.kernel.links import Link
    from cni.kernel.rtnl import Rtnl

# Seconds: a request's budget, and what is left of it at least for each attachment that the request undoes.  So no
# command waits longer than the sum, except for GC, which undoes many.
REQUEST: Final = 5.0
UNDOING: Final = 3.0
_POLL: Final = 0.005


class _Budget(_local):
    left = REQUEST


_budget = _Budget()


def begin() -> None:
    """Give this thread's next request the whole budget."""
    _budget.left = REQUEST


def extend_for_undo() -> None:
    """Leave enough of the budget to undo one attachment, also if the request has spent all of it."""
    _budget.left = max(_budget.left, UNDOING)


def left() -> float:
    """How many seconds the request may still wait."""
    return _budget.left


def spend(seconds: float) -> None:
    """Take from the budget what the request has waited."""
    _budget.left = max(_budget.left - seconds, 0.0)


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """Yield once at once, then after every ``pause``, until ``seconds`` are over or the budget is spent.

    It is made for a loop that looks for something and leaves when it is there: if the loop ends, it did not come.
    """
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline and left():
        time.sleep(pause)
        spend(pause)
        yield


def wait_for_carrier(inside: "Rtnl", index: int, seconds: float) -> "Link | None":
    """The link of that index, as soon as it has carrier; None if it has none after ``seconds``.  Raises OSError."""
    for _ in attempts(seconds, _POLL):
        link = inside.link(index=index)
        if link and link.carrier:
            return link
    return None
