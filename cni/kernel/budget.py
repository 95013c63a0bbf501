"""How long a request waits for what others do in their own time.

A pod may be hostile and make every wait a long one.  So each request has seconds to spend on all of its waits, whatever
it waits for and however often: none of them is long because an earlier one was short.  Work is not counted, nor are
waits for locks, for other programs, or for what a configuration itself says how long to wait.
"""

import time
from _thread import _local  # threading's, which takes as long to import as some answers to make
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cni.kernel.links import Link
    from cni.kernel.rtnl import Rtnl

# Seconds for a request, and at least for each attachment that it undoes after that: no command waits for longer than
# LONGEST, but GC, which undoes many.
REQUEST: Final = 5.0
UNDOING: Final = 3.0
LONGEST: Final = REQUEST + UNDOING
_POLL: Final = 0.005


class _Budget(_local):
    left = REQUEST


_budget = _Budget()


def begin() -> None:
    """A request begins, on this thread."""
    _budget.left = REQUEST


def extend_for_undo() -> None:
    """What the request changed is to be undone, also if it has waited for all of its time."""
    _budget.left = max(_budget.left, UNDOING)


def left() -> float:
    """The seconds that the request may still wait."""
    return _budget.left


def spend(seconds: float) -> None:
    """The request has waited so long."""
    _budget.left = max(_budget.left - seconds, 0.0)


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """One at once, others after a ``pause`` each, until so many seconds are over, or all that the request may wait; all
    in seconds.

    A loop that ends without having left it has looked for what did not come.
    """
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline and left():
        time.sleep(pause)
        spend(pause)
        yield


def wait_for_carrier(inside: "Rtnl", index: int, seconds: float) -> "Link | None":
    """The link, as soon as it has carrier; None if it gets none in time.  Raises OSError."""
    for _ in attempts(seconds, _POLL):
        link = inside.link(index=index)
        if link and link.carrier:
            return link
    return None
