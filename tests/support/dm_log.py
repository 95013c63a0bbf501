"""Read the log of a dm-log-writes device (Linux, Documentation/admin-guide/device-mapper/log-writes.rst).

sector 0    superblock
then        entries: a sector each, followed by the written data
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from random import Random
from struct import Struct

FLUSH, FUA, DISCARD, MARK, METADATA = 1, 2, 4, 8, 16
SECTOR = 512
BLOCK = 4096

_SUPER = Struct("<QQQI")
_ENTRY = Struct("<QQQQ")
_MAGIC = 0x6A736677736872


@dataclass(frozen=True)
class Entry:
    flags: int
    at: int = 0  # in bytes
    data: bytes = b""
    text: str = ""  # of a mark


def entries(path: Path) -> list[Entry]:
    """Return all entries, in the order in which they were certain to be on the disk."""
    log = path.read_bytes()
    magic, version, count, size = _SUPER.unpack_from(log)
    assert (magic, version, size) == (_MAGIC, 1, SECTOR)
    at, found = SECTOR, list[Entry]()
    for _ in range(count):
        sector, sectors, flags, length = _ENTRY.unpack_from(log, at)
        if flags & MARK:
            text = log[at + _ENTRY.size : at + _ENTRY.size + length]
            found.append(Entry(flags, text=text.rstrip(b"\0").decode()))
            at += SECTOR
            continue
        at += SECTOR
        data = b"" if flags & DISCARD else log[at : at + sectors * SECTOR]
        found.append(Entry(flags, sector * SECTOR, data))
        at += len(data)
    return found


@dataclass
class Cut:
    """The disk and the marks so far at a power failure."""

    disk: bytes
    marks: list[str]


def cuts(log: list[Entry], size: int, points: list[int], random: Random) -> Iterator[Cut]:
    """Yield a possible disk for a power failure before each of these entries, in ascending order.

    The log records a write when a flush makes it certain to be on the disk, before that flush.  So everything before
    the last flush is present.  Each sector that the next flush would make certain is present or missing.  Such a sector
    may have been written after the next mark, so entries from that mark on are left out.
    """
    safe, done, marks, loose = bytearray(size), 0, list[str](), list[Entry]()
    for point in points:
        for entry in log[done:point]:
            if entry.flags & MARK:
                marks.append(entry.text)
                continue
            loose.append(entry)
            if entry.flags & (FLUSH | FUA):
                for one in loose:
                    safe[one.at : one.at + len(one.data)] = one.data
                loose.clear()
        done = point
        disk = bytearray(safe)
        for one in (*loose, *takewhile(lambda entry: not entry.flags & (FLUSH | FUA | MARK), log[point:])):
            # ext4 requires that its own blocks are written whole: its superblock has two sectors.
            step = BLOCK if one.flags & METADATA or one.at < BLOCK else SECTOR
            for i in range(0, len(one.data), step):
                if random.random() < 0.5:
                    disk[one.at + i : one.at + i + step] = one.data[i : i + step]
        yield Cut(bytes(disk), list(marks))
