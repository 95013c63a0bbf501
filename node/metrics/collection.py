"""The page, made by a process that ends.

It takes long to read the journal of 3,000 attachments, and the loop does not wait for that.  What prometheus_client
imports is gone with that process.
"""

import time
from collections.abc import Callable
from typing import Final

from node.apart import Child
from node.loop import Loop

# A page is given again for so many times as long as it took to make it; after that a new one is made.  So to make pages
# takes a tenth of a processor at most, however often somebody asks.  At a port, every user of the machine can ask.
_REST: Final = 10

Told = Callable[[bytes | None, str], None]
# Makes the page, and a sentence for each thing that is missing on it, which says why.
Make = Callable[[], tuple[bytes, tuple[str, ...]]]


class Collection:
    """Has one process at a time make the page, however many ask for it.

    ``say`` is given the sentences of each page.
    """

    def __init__(self, loop: Loop, make: Make, say: Callable[[tuple[str, ...]], None]) -> None:
        self._loop, self._make, self._say = loop, make, say
        self._child: Child | None = None
        self._began = self._until = 0.0
        self._page = b""
        self._waiting = list[Told]()

    def ask(self, told: Told) -> None:
        """Give the page to ``told``: at once, or when it is made."""
        if self._page and time.monotonic() < self._until:  # guard: a-tenth-of-a-processor
            told(self._page, "")
            return
        self._waiting.append(told)
        if not self._child:
            self._start()

    def withdraw(self, told: Told) -> None:
        """Do not call ``told`` any more.  It is fine if that was called already."""
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
        """Stop, and give the page to nobody any more."""
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
