"""The index of ``leases``: a binary file derived from it, and rebuilt whenever it may be wrong.

    0         header     the mark and the identity of leases; counts; the addresses allocated last; a checksum
    4096      heads      a hash table of keys: the first line of each chain
    + 256 K   pages      a hash table of pages: the first page of each chain
    + 64 K    records    one per line: the key's digest and the chain's next line, or the next free line.
                         A checksum of the lease follows, so that no other line can replace it unnoticed.
    + 32 M    a page for each run of 4096 addresses since the first allocation from it (pages.py)

Heads, pages and records have a checksum after every 256 bytes (pages.py); the sizes above do not count them.
A lookup takes one or two reads, for any number of leases.  The tables never grow: with 60,000 leases a chain has one
link, with 600,000 it has ten.

The mark is "clean" only for one state of the leases file (inode, size, time) and one boot, and "dirty" during a change.
So the index is never synced, and the next call detects a crash at any point.  A reader of a damaged part raises
IndexCorrupt, and the store marks the index "suspect": it was complete once.
"""

import os
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from struct import Struct
from typing import Final
from zlib import crc32

from base.protocol.result import Address
from base.state import durable
from ipam.ranges import Span
from ipam.stores.files.codec import DIGEST
from ipam.stores.files.lines import MOST_LINES
from ipam.stores.files.pages import HEADS_SIZE, SIZE, Blocks, IndexCorrupt, Pages, stored_size

MAGIC: Final = b"HPNIDX\0\3"
HEADS: Final = 1 << 16
HEADER: Final = 4096

# Magic, boot id, mark, checksum of the rest.
_PREFIX: Final = Struct("<8s16sB3xI")
# The number of addresses allocated last; inode, size and time of leases; lines, first free line, leases, pages.
# Then: the file's generation, new after each rebuild; the number of leases ever written; the digest of the file
# ``ranges``.
_HEADER: Final = Struct("<B7xQQQIIIII4xQ8s")
_LAST: Final = Struct("<B16s")
_LASTS: Final = 24
_MARK_AT: Final = 24
_DIRTY, _CLEAN, _SUSPECT = range(3)
_RECORD: Final = Struct(f"<{DIGEST}sII12x")
_U32: Final = Struct("<I")

# Offsets in the blocks.
_PAGES_AT: Final = 4 * HEADS
_RECORDS_AT: Final = _PAGES_AT + HEADS_SIZE
# Offset of the pages in the file.
_END: Final = HEADER + -(-stored_size(_RECORDS_AT + _RECORD.size * MOST_LINES) // 4096) * 4096


class Index:
    """The open file; the caller holds the lock, and closes it.  Reads and writes raise IndexCorrupt, OSError."""

    def __init__(self, fd: int = -1) -> None:
        """Without a file, create an index in memory for this call only."""
        self.fd = fd if fd >= 0 else os.memfd_create("index")
        data = os.pread(self.fd, _PREFIX.size + _HEADER.size + _LASTS * _LAST.size, 0)
        magic, boot, self._mark, checksum = _PREFIX.unpack(data[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
        body = data[_PREFIX.size :].ljust(_HEADER.size, b"\0")
        body = body[: _HEADER.size + _LAST.size * body[0]]
        is_readable = magic == MAGIC and crc32(body) == checksum
        if not is_readable:
            body = bytes(_HEADER.size)
        _, *numbers, ranges = _HEADER.unpack_from(body)
        self.ranges: bytes = ranges
        self._of = tuple[int, ...](numbers[:3])
        self.lines, self.free, self.leases, pages, self._generation, self.written = map(int, numbers[3:])
        self.of_this_boot = is_readable and boot == _boot()
        self._last = body[_HEADER.size :]
        self._lasts: tuple[Address, ...] | None = None  # decoded
        self._blocks = Blocks(self.fd, HEADER, self._generation)
        self.pages = Pages(self.fd, self._blocks, _PAGES_AT, _END, self._generation, pages)

    def close(self) -> None:
        os.close(self.fd)

    @property
    def is_complete(self) -> bool:
        """Whether it was once clean in this boot, though it or the leases may be damaged since."""
        return self.of_this_boot and self._mark in (_CLEAN, _SUSPECT)

    def is_clean(self, leases: os.stat_result) -> bool:
        return self.of_this_boot and self._mark == _CLEAN and self._of == _identity(leases)

    def mark_dirty(self) -> None:
        """Call before a change."""
        self._set_mark(_DIRTY)

    def mark_suspect(self) -> None:
        """Call when the index or the leases prove damaged."""
        if self._mark == _CLEAN:
            self._set_mark(_SUSPECT)

    def _set_mark(self, mark: int) -> None:
        self._mark = mark
        os.pwrite(self.fd, bytes([mark]), _MARK_AT)

    def mark_clean(self, leases: os.stat_result) -> None:
        """Call after a change."""
        counts = (self.lines, self.free, self.leases, self.pages.count, self._generation, self.written)
        lasts = len(self._last) // _LAST.size
        body = _HEADER.pack(lasts, *_identity(leases), *counts, self.ranges) + self._last
        os.pwrite(self.fd, _PREFIX.pack(MAGIC, _boot(), _CLEAN, crc32(body)) + body, 0)
        self._mark = _CLEAN

    @property
    def last(self) -> tuple[Address, ...]:
        """The addresses allocated last, after which the next search starts.  They survive a reboot if they reached the
        disk."""
        if self._lasts is None:
            whole = len(self._last) // _LAST.size * _LAST.size
            numbers = [(version, int.from_bytes(n)) for version, n in _LAST.iter_unpack(self._last[:whole])]
            self._lasts = tuple(Span(v, n, n).address(n) for v, n in numbers if v == 6 or (v == 4 and n < 1 << 32))
        return self._lasts

    @last.setter
    def last(self, addresses: Sequence[Address]) -> None:
        self._lasts = tuple(addresses[:_LASTS])
        self._last = b"".join(_LAST.pack(a.version, int(a).to_bytes(16)) for a in self._lasts)

    def rebuild(self, lines: int, held: Iterable[tuple[int, bytes, int, Iterable[tuple[int, int]]]]) -> None:
        """Write the index for a file of ``lines`` lines.  ``held`` are the lines in use: line, digest of the key, the
        lease's checksum, its addresses as version and number.  A continuation has an empty digest.

        The index is built in memory and written at once.  60,000 leases take a third of a second, mostly to read them.
        """
        heads = array("I", bytes(4 * HEADS))
        entries = list[tuple[int, int, int]]()
        records = bytearray(-(-_RECORD.size * lines // SIZE) * SIZE)
        self.lines, self.leases = lines, 0
        taken = bytearray(lines)
        for line, digest, checksum, addresses in held:
            taken[line] = 1
            if not digest:
                continue
            self.leases += 1
            hashed = int.from_bytes(digest[:4]) % HEADS
            _RECORD.pack_into(records, line * _RECORD.size, digest, heads[hashed], checksum)
            heads[hashed] = line
            entries += [(version, number, line) for version, number in addresses]
        self.free = 0
        for line in range(lines - 1, 0, -1):
            if not taken[line]:
                _U32.pack_into(records, line * _RECORD.size + DIGEST, self.free)
                self.free = line
        os.ftruncate(self.fd, 0)  # an index without a header is not clean
        self._mark, self._generation = _DIRTY, int.from_bytes(os.urandom(4))
        self._blocks = Blocks(self.fd, HEADER, self._generation)
        os.ftruncate(self.fd, _END)
        self._blocks.fill(0, heads.tobytes())
        self._blocks.fill(_RECORDS_AT, bytes(records))
        self.pages = Pages(self.fd, self._blocks, _PAGES_AT, _END, self._generation)
        self.pages.rebuild(entries)

    # Keys

    def find(self, digest: bytes) -> int:
        """The line of the key's lease; 0 if it has none."""
        line, left = self._head(digest), self.lines
        while line:
            found, after, _ = self._record(line)
            if found == digest:
                return line
            line, left = after, left - 1
            if left < 0:
                raise IndexCorrupt("a chain of the index has no end")
        return 0

    def digest(self, line: int) -> bytes:
        """The key's digest of the lease that begins at the line; zeros if none does."""
        return self._record(line)[0]

    def is_head(self, line: int) -> bool:
        return any(self.digest(line))

    def checksum(self, line: int) -> int:
        """The checksum of the lease that begins at the line."""
        return self._record(line)[2]

    def add(self, digest: bytes, line: int, checksum: int) -> None:
        self._set_record(line, digest, self._head(digest), checksum)
        self._set_head(digest, line)
        self.leases += 1

    def replace(self, old: bytes, new: bytes, line: int, checksum: int) -> None:
        """Record a change of the lease at the line, and of its key."""
        self._unlink(old, line)
        self._set_record(line, new, self._head(new), checksum)
        self._set_head(new, line)

    def remove(self, digest: bytes, line: int) -> None:
        """Remove the lease, and add its line to the free ones."""
        self._unlink(digest, line)
        self.leases -= 1
        self.push(line)

    def _unlink(self, digest: bytes, line: int) -> None:
        after = self._record(line)[1]
        at, left = self._head(digest), self.lines
        if at == line:
            self._set_head(digest, after)
            return
        while at and left:
            found, following, checksum = self._record(at)
            if following == line:
                self._set_record(at, found, after, checksum)
                return
            at, left = following, left - 1
        raise IndexCorrupt(f"line {line} is not found by its key")

    # Free lines

    def push(self, line: int) -> None:
        self._set_record(line, bytes(DIGEST), self.free, 0)
        self.free = line

    def push_all(self, first: int, lines: int) -> None:
        """Add the new lines from ``first`` up to ``lines`` to the free ones."""
        chain = [_RECORD.pack(bytes(DIGEST), line + 1, 0) for line in range(first, lines - 1)]
        chain.append(_RECORD.pack(bytes(DIGEST), self.free, 0))
        # The first of them may share a block with other lines.
        begun = -first % (SIZE // _RECORD.size)
        for line, record in zip(range(first, first + begun), chain, strict=False):
            self._blocks.write(_record_at(line), record)
        rest = b"".join(chain[begun:])
        self._blocks.fill(_record_at(first + begun), rest.ljust(-(-len(rest) // SIZE) * SIZE, b"\0"))
        self.free, self.lines = first, lines

    def pop(self) -> int:
        """Take a free line; one must exist."""
        line = self.free
        digest, self.free, _ = self._record(line)
        if any(digest):
            raise IndexCorrupt(f"line {line} is in use and counts as free")
        return line

    def free_lines(self) -> list[int]:
        """All free lines, in the order of ``pop``."""
        lines, line = list[int](), self.free
        while line and len(lines) < self.lines:
            lines.append(line)
            line = self._record(line)[1]
        return lines

    def _head(self, digest: bytes) -> int:
        return self._blocks.number(4 * (int.from_bytes(digest[:4]) % HEADS))

    def _set_head(self, digest: bytes, line: int) -> None:
        self._blocks.write(4 * (int.from_bytes(digest[:4]) % HEADS), _U32.pack(line))

    def _record(self, line: int) -> tuple[bytes, int, int]:
        if not 0 < line < self.lines:
            raise IndexCorrupt(f"the index names line {line} of {self.lines}")
        digest, after, checksum = _RECORD.unpack(self._blocks.read(_record_at(line), _RECORD.size))
        return digest, after, checksum

    def _set_record(self, line: int, digest: bytes, after: int, checksum: int) -> None:
        self._blocks.write(_record_at(line), _RECORD.pack(digest, after, checksum))


def _record_at(line: int) -> int:
    return _RECORDS_AT + _RECORD.size * line


def _identity(file: os.stat_result) -> tuple[int, ...]:
    return file.st_ino, file.st_size, file.st_mtime_ns


@cache
def _boot() -> bytes:
    return bytes.fromhex(durable.boot_id().replace("-", ""))
