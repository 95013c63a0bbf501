"""The file ``leases``: lines of one sector each, replaced in place.

    line 0      {"schema": 1, ...}
    line n      a lease, a continuation of one, or blank

    jq . leases          shows all of it: to JSON, blank lines are white space
    grep 10.0.0.7 leases shows who has an address

A disk writes a sector whole or not at all, so replacing a line is a commit: before it nothing has happened, after it
everything.  In place there is nothing to allocate: a lease can be freed on a full disk.  The file grows by many lines
at once, and is never made smaller.  Not here: locks, and what the lines mean.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cni import durable
from ipam.stores.lease import BLANK, LINE, seal

SCHEMA: Final = 1
# So many lines at once.
GROWTH: Final = 128
# So many lines are read at once.
READ: Final = 2048

HEAD: Final = seal({"schema": SCHEMA, "about": "hpn-ipam: a lease per line of 512 bytes; jq . shows them"})


class Slots:
    """The open file; the caller has the lock, and closes.  A new one is empty, which ``repair`` makes good."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self) -> None:
        os.close(self.fd)

    def read(self, slot: int) -> bytes:
        return os.pread(self.fd, LINE, slot * LINE)

    def write(self, slot: int, line: bytes) -> None:
        _write(self.fd, line, slot * LINE)

    def write_head(self) -> None:
        self.write(0, HEAD)

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def size(self) -> int:
        """In lines, the last perhaps not whole."""
        return -(-os.fstat(self.fd).st_size // LINE)

    def lines(self, slots: int) -> Iterator[tuple[int, bytes]]:
        """So many lines with their numbers, from the first on; shorter than a line where the file ends."""
        for start in range(0, slots, READ):
            data = os.pread(self.fd, READ * LINE, start * LINE)
            for i in range(min(READ, slots - start)):
                yield start + i, data[i * LINE : (i + 1) * LINE]

    def containing(self, text: bytes, slots: int) -> Iterator[int]:
        """Which of so many lines have the text somewhere; without taking each line by itself."""
        for start in range(0, slots, READ):
            data = os.pread(self.fd, READ * LINE, start * LINE)
            at = data.find(text)
            while at >= 0:
                yield start + at // LINE
                at = data.find(text, (at // LINE + 1) * LINE)

    def grow(self, slots: int) -> int:
        """Blank lines from ``slots`` on, on disk; how many there are in all then.  Raises OSError, and none are."""
        more = GROWTH - slots % GROWTH
        try:
            _write(self.fd, BLANK * more, slots * LINE)
            self.sync()
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.fd, slots * LINE)
            raise
        return slots + more

    def copy(self, lines: Sequence[bytes], to: Path) -> Path:
        """The lines in a new file in that directory, on disk, for people to look at.  Raises OSError, IoFailure."""
        durable.directory(to)
        target = next(t for n in range(1_000_000) if not (t := to / f"leases.{n}").exists())
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, b"".join(lines), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        durable.sync_directory(to)
        return target


def _write(fd: int, data: bytes, at: int) -> None:
    # A full disk may take a part, and says so only when asked for the rest.
    while data:
        done = os.pwrite(fd, data, at)
        data, at = data[done:], at + done
