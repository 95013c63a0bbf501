"""What the kernel does in its own time, and says nothing of, is looked for again and again."""

import time
from collections.abc import Iterator
from typing import Final

from cni.kernel.rtnl import Link, Rtnl

_POLL: Final = 0.005


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """One at once, others after a ``pause`` each, until so many seconds are over; all in seconds.

    A loop that ends without having left it has looked for what did not come.
    """
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        yield


def with_carrier(inside: Rtnl, index: int, seconds: float) -> Link | None:
    """The link, as soon as it has carrier; None if it gets none in time.  Raises OSError."""
    for _ in attempts(seconds, _POLL):
        link = inside.link(index=index)
        if link and link.carrier:
            return link
    return None
