"""A request's budget: the seconds that all its waits for others may take together.

A hostile pod can make every wait a long one, and a command has twenty.  Bounds for single waits would add up, so all
waits spend one budget.  These do not count: work, waits for locks and for other programs, and waits that have a timeout
in the configuration.

A wait for the kernel's one lock of links (rtnl_lock) does not count either: any other pod's namespace can hold that
lock for long.  Such waits have a separate bound, KERNEL_TIMEOUT.
"""

import time
from _thread import _local  # threading.local; importing threading takes as long as some requests
from collections.abc import Iterator
from typing import Final

# Seconds: a request's budget, and the least remainder for each attachment that the request undoes.  So no command waits
# longer than the sum, except for GC, which undoes many attachments.
REQUEST: Final = 5.0
UNDOING: Final = 3.0
# Seconds that a request may wait for the kernel alone.  kubelet gives a pod four minutes; the launcher gives an agent
# two.
KERNEL_TIMEOUT: Final = 60.0
# Seconds: a kernel that need not wait for its lock answers sooner, even about a pod that is full of links.
_MOMENT: Final = 0.1


class _Budget(_local):
    left = REQUEST
    kernel_left = KERNEL_TIMEOUT
    excused = 0.0
    is_patient = False


_budget = _Budget()


def begin(*, is_patient: bool = False, seconds: float = 0.0) -> None:
    """Give this thread's next request the whole budget, or that many seconds.

    ``is_patient``: no command waits, so each request to a server gets it again (``begin_one``).
    """
    _budget.left, _budget.kernel_left, _budget.is_patient = seconds or REQUEST, KERNEL_TIMEOUT, is_patient


def begin_one() -> None:
    """Give the next request to a server the whole budget, if no command waits."""
    if _budget.is_patient:
        begin(is_patient=True)


def extend_for_undo() -> None:
    """Keep enough of the budget to undo one attachment, even if the request has spent all of it."""
    _budget.left = max(_budget.left, UNDOING)


def left() -> float:
    """The seconds that the request may still wait."""
    return _budget.left


def kernel_left() -> float:
    """The seconds that the request may still wait for the kernel alone."""
    return _budget.kernel_left


def clock() -> float:
    """Seconds of a clock of this thread that stops while the thread waits for the kernel alone."""
    return time.monotonic() - _budget.excused


def excuse(since: float) -> None:
    """Do not count the wait since that time of the monotonic clock, beyond a moment: only the kernel caused it."""
    waited = min(time.monotonic() - since - _MOMENT, _budget.kernel_left)
    if waited > 0:
        _budget.kernel_left -= waited
        _budget.excused += waited


def spend(seconds: float) -> None:
    """Take waited seconds from the budget."""
    _budget.left = max(_budget.left - seconds, 0.0)


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """Yield at once, then after every ``pause``, until ``seconds`` are over or the budget is spent.  A loop over it
    checks a condition and leaves when that is true: if the loop ends, it never was."""
    deadline = clock() + seconds
    yield
    while clock() < deadline and left():
        time.sleep(pause)
        spend(pause)
        yield
