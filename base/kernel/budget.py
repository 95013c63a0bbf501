"""A request's budget: the seconds that it may wait for others, all of its waits together.

A hostile pod can make every wait a long one, and a command has twenty.  A bound for each of them would bound nothing,
so all of them spend one budget.  These are not counted: work, and waits for locks, for other programs, and for what has
a timeout in the configuration.

Nor is a wait counted in which the kernel alone was silent, because it waited for its one lock of links (rtnl_lock): the
namespace of any other pod can have that for long.  Such waits have a bound of their own, KERNEL_TIMEOUT.
"""

import time
from _thread import _local  # threading's, which takes as long to import as some answers to make
from collections.abc import Iterator
from typing import Final

# Seconds: a request's budget, and what is left of it at least for each attachment that the request undoes.  So no
# command waits longer than the sum, except for GC, which undoes many.
REQUEST: Final = 5.0
UNDOING: Final = 3.0
# Seconds that a request may wait for the kernel alone.  kubelet gives a pod four minutes, the launcher an agent two.
KERNEL_TIMEOUT: Final = 60.0
# Seconds: a kernel that can begin at once answers in less, also about a pod that is full of links.
_MOMENT: Final = 0.1


class _Budget(_local):
    left = REQUEST
    kernel_left = KERNEL_TIMEOUT
    excused = 0.0


_budget = _Budget()


def begin() -> None:
    """Give this thread's next request the whole budget."""
    _budget.left, _budget.kernel_left = REQUEST, KERNEL_TIMEOUT


def extend_for_undo() -> None:
    """Leave enough of the budget to undo one attachment, also if the request has spent all of it."""
    _budget.left = max(_budget.left, UNDOING)  # guard: undoing


def left() -> float:
    """How many seconds the request may still wait."""
    return _budget.left


def kernel_left() -> float:
    """How many seconds the request may still wait for the kernel alone."""
    return _budget.kernel_left


def clock() -> float:
    """Seconds, of a clock of this thread that stands still while it waits for the kernel alone."""
    return time.monotonic() - _budget.excused


def excuse(since: float) -> None:
    """Do not count, beyond a moment, the wait since that time of the monotonic clock: nobody but the kernel was waited
    for."""
    waited = min(time.monotonic() - since - _MOMENT, _budget.kernel_left)
    if waited > 0:
        _budget.kernel_left -= waited  # guard: kernel-time-spent
        _budget.excused += waited


def spend(seconds: float) -> None:
    """Take from the budget what the request has waited."""
    _budget.left = max(_budget.left - seconds, 0.0)  # guard: spent


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """Yield once at once, then after every ``pause``, until ``seconds`` are over or the budget is spent.

    It is made for a loop that looks for something and leaves when it is there: if the loop ends, it did not come.
    """
    deadline = clock() + seconds
    yield
    while clock() < deadline and left():
        time.sleep(pause)
        spend(pause)  # guard: attempts-spend
        yield
