"""What the kernel does in its own time, and says nothing of, is looked for again and again."""

import time
from collections.abc import Iterator


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """One at once, others after a ``pause`` each, until so many seconds are over; all in seconds.

    A loop that ends without having left it has looked for what did not come.
    """
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        yield
