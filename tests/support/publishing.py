"""A publisher of hpn node and its loop: its rounds are child processes that leave something behind."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from support.node_loop import turn

MOST = 60.0  # seconds


class Publishing:
    """A publisher that ``made`` makes; ``rounds`` are those that have begun."""

    publisher: Any

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    @property
    def rounds(self) -> Sequence[object]:
        raise NotImplementedError

    def until(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + MOST
        while not there():
            assert time.monotonic() < deadline
            turn(self.loop, 0.01)

    def after(self, number: int) -> None:
        """Wait until so many rounds have ended."""
        self.until(lambda: len(self.rounds) >= number and not self.publisher._background.is_at_work)

    @contextmanager
    def closing(self) -> Iterator[Self]:
        """Close the publisher and the loop afterwards."""
        yield self
        self.until(lambda: not self.publisher._background.is_at_work)  # close waits for no child
        self.publisher.close()
        self.loop.close()
