"""The page, made by a process that ends.

So the journal of 3,000 attachments holds up nobody who waits for the loop, and what prometheus_client imports is gone
with that process.
"""

import time
from collections.abc import Callable
from typing import Final

from node.apart import Child
from node.loop import Loop

# For so many times as long as it took a page counts as new, and after that another one is made.  So whoever asks again
# and again, which every user of the machine can where a port is used, has a tenth of a processor for making pages.
_REST: Final = 10

Told = Callable[[bytes | None, str], None]
# Makes the page, and says in a sentence each why something is missing on it.
Make = Callable[[], tuple[bytes, tuple[str, ...]]]


class Collection:
    """One process at a time, whoever asks meanwhile.  ``say`` is given the sentences of each page."""

    def __init__(self, loop: Loop, make: Make, say: Callable[[tuple[str, ...]], None]) -> None:
        self._loop, self._make, self._say = loop, make, say
        self._child: Child | None = None
        self._began = self._until = 0.0
        self._page = b""
        self._waiting = list[Told]()

    def ask(self, told: Told) -> None:
        """Have the page told, at once or soon."""
        if self._page and time.monotonic() < self._until:
            told(self._page, "")
            return
        self._waiting.append(told)
        if not self._child:
            self._start()

    def withdraw(self, told: Told) -> None:
        """Do not tell it any more; it may have been told."""
        if told in self._waiting:
            self._waiting.remove(told)

    def _start(self) -> None:
        self._page, self._began = b"", time.monotonic()
        try:
            self._child = Child(self._make)
        except OSError as e:
            self._tell(None, f"no process can be started: {e.strerror}")
            return
        self._loop.watch(self._child.fd, self._take)

    def close(self) -> None:
        """Nobody is told any more."""
        self._waiting.clear()
        if self._child:
            self._loop.unwatch(self._child.fd)
            self._child.end()
            self._child = None

    def _take(self) -> None:
        child, self._child = self._child, None
        if not child:
            return
        self._loop.unwatch(child.fd)
        try:
            page, sentences = child.answer()
        except (OSError, EOFError) as e:
            self._tell(None, f"the process that reads the numbers {e}")
            return
        now = time.monotonic()
        self._until = now + _REST * (now - self._began)
        self._page = page
        self._say(sentences)
        self._tell(page, "")

    def _tell(self, page: bytes | None, why: str) -> None:
        if why:
            self._say((why,))
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            told(page, why)
