"""The file ``leases``: lines of one sector each, replaced in place.

    line 0      {"schema": 1, ...}
    line n      a lease, a continuation of one, or blank

    jq . leases          shows all leases: blank lines are white space in JSON
    grep 10.0.0.7 leases shows the owner of an address

A disk writes a sector whole or not at all, so replacing a line is a commit.  It needs no new block, so a lease can be
freed on a full disk.  The file grows by many lines at once and never shrinks.  This module knows neither locks nor
leases.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.state import durable
from ipam.stores.files.codec import BLANK, LINE, to_line

SCHEMA: Final = 1
# The most lines of a file.
MOST_LINES: Final = 1 << 20
# The file's length is a multiple of this many lines.
GROWTH: Final = 128
# Lines per read.
READ: Final = 2048

QUARANTINE: Final = "quarantine"
# O_NONBLOCK: opening a FIFO or a device must not wait.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK

HEAD: Final = to_line({"schema": SCHEMA, "about": "hpn-ipam: a lease per line of 512 bytes; jq . shows them"})


class Lines:
    """The open file.  A writer holds the lock, and the opener closes the file.  A new file is empty until ``repair``
    writes its first line."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def close(self) -> None:
        os.close(self.fd)

    def read(self, line: int) -> bytes:
        return os.pread(self.fd, LINE, line * LINE)

    def write(self, line: int, data: bytes) -> None:
        _write(self.fd, data, line * LINE)

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def count(self) -> int:
        """The number of lines, at most MOST_LINES; the last may be incomplete."""
        return min(-(-os.fstat(self.fd).st_size // LINE), MOST_LINES)

    def each(self, lines: int) -> Iterator[tuple[int, bytes]]:
        """The first ``lines`` lines with their numbers; data is shorter where the file ends."""
        for start in range(0, lines, READ):
            data = os.pread(self.fd, READ * LINE, start * LINE)
            for i in range(min(READ, lines - start)):
                yield start + i, data[i * LINE : (i + 1) * LINE]

    def containing(self, text: bytes, lines: int) -> Iterator[int]:
        """The numbers of the first ``lines`` lines that contain the text; faster than checking each line."""
        for start in range(0, lines, READ):
            data = os.pread(self.fd, READ * LINE, start * LINE)
            at = data.find(text)
            while at >= 0:
                yield start + at // LINE
                at = data.find(text, (at // LINE + 1) * LINE)

    def grow(self, lines: int) -> int:
        """Add blank lines to a file with ``lines`` lines, durably; return the new number.

        Raises OSError, and then the file is unchanged.
        """
        more = GROWTH - lines % GROWTH
        try:
            _write(self.fd, BLANK * more, lines * LINE)
            self.sync()
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.fd, lines * LINE)
            raise
        return lines + more

    def copy(self, lines: Sequence[bytes], to: Path) -> Path:
        """Write the lines to a new file in a directory, durably, for people.  Raises OSError, IoFailure."""
        target = place(to, "leases")
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write(fd, b"".join(lines), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        durable.sync_directory(to)
        return target


def read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """All lines of a file with their numbers, without a lock.  Raises OSError."""
    file = Lines(path, reading(path))
    try:
        yield from file.each(file.count())
    finally:
        file.close()


def place(quarantine: Path, name: str) -> Path:
    """An unused path in quarantine for a file of that name.  Raises OSError, IoFailure."""
    if not stat.S_ISDIR(_mode(quarantine) or stat.S_IFDIR):
        quarantine.rename(_unused(quarantine))
    return _unused(durable.directory(quarantine) / name)


def open_file(path: str, log: list[str] | None = None) -> int:
    """Open a regular file, and create it if it does not exist.  Raises OSError, IoFailure.

    With ``log``, move anything else in its place to quarantine, and append a message to ``log``.
    """
    try:
        return _regular(os.open(path, _FLAGS, 0o600), path)
    except OSError:
        if log is None or stat.S_ISREG(_mode(Path(path)) or stat.S_IFREG):
            raise
    there = Path(path)
    kept = place(there.parent / QUARANTINE, there.name)
    there.rename(kept)
    log.append(f"{path} was not a regular file; moved to {kept}; check it")
    return os.open(path, _FLAGS, 0o600)


def reading(path: Path | str) -> int:
    """Open a regular file for reading.  Raises OSError."""
    return _regular(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), path)


def _regular(fd: int, path: Path | str) -> int:
    """The descriptor.  If it is not a regular file's, close it and raise OSError."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a file; move it away", str(path))


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _unused(path: Path) -> Path:
    return next(p for n in range(1_000_000) if not _mode(p := path.with_name(f"{path.name}.{n}")))


def _write(fd: int, data: bytes, at: int) -> None:
    # A full disk may accept a part, and fail only for the rest.
    while data:
        done = os.pwrite(fd, data, at)
        data, at = data[done:], at + done
