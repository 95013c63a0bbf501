"""The parts of the index with checksums: blocks of 256 bytes, and pages that map addresses to lines.

A block is followed by its checksum, which also covers the block's number and the file's generation.  So a reader finds
a flipped bit, a moved block and a page of zeros, and reads no more than the block.

The index has a page for each run of 4096 addresses since the first allocation from it:

    4096 bytes    the page's IP version and first address, the next page with the same hash, a checksum of these.
                  A checksum for each 64 entries follows.
    16384 bytes   for each address the line of its lease, or 0

Entries and their checksums are in different pages of the file.  If the disk keeps an old page, the checksum differs, so
no allocated address is read as free.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import Final
from zlib import crc32

from base.protocol.result import Address
from ipam.ranges import Span

SIZE: Final = 256
_STRIDE: Final = SIZE + 4
BLOCK: Final = 1 << 12
_HEADS: Final = 1 << 14
HEADS_SIZE: Final = 4 * _HEADS

_ABOUT: Final = Struct("<B3x16sI8x")
_U32: Final = Struct("<I")
# Entries per checksum; the size in bytes of these entries, and of all checksums of a page.
_SOME: Final = 64
_PART: Final = 4 * _SOME
_SUMS_AT: Final = _ABOUT.size + 4
_SUMS: Final = 4 * BLOCK // _SOME
_ENTRIES_AT: Final = 4096
_PAGE_SIZE: Final = _ENTRIES_AT + 4 * BLOCK
# Set in the entry of every held address, so that four zero bytes occur only for a free address.
_HELD: Final = 1 << 31
_FREE: Final = b"\0\0\0\0"


class IndexCorrupt(Exception):
    """A part of the index differs from what was written."""


class Blocks:
    """The blocks of an open file from ``start`` on.  The caller holds the file's lock, so reads are cached."""

    __slots__ = ("_fd", "_generation", "_seen", "_start")

    def __init__(self, fd: int, start: int, generation: int) -> None:
        self._fd = fd
        self._start = start
        self._generation = generation
        self._seen = dict[int, bytes]()

    def read(self, at: int, size: int) -> bytes:
        """Read ``size`` bytes within one block.  Raises IndexCorrupt, OSError."""
        n, within = divmod(at, SIZE)
        return (self._seen.get(n) or self._read(n))[within : within + size]

    def number(self, at: int) -> int:
        """Read a number of four bytes.  Raises IndexCorrupt, OSError."""
        return int.from_bytes(self.read(at, 4), "little")

    def write(self, at: int, part: bytes) -> None:
        """Write bytes within one block.  Raises IndexCorrupt, OSError."""
        n, within = divmod(at, SIZE)
        before = self._seen.get(n) or self._read(n)
        self._seen[n] = data = before[:within] + part + before[within + len(part) :]
        os.pwrite(self._fd, data + crc32(data, self._generation ^ n).to_bytes(4, "little"), self._start + n * _STRIDE)

    def fill(self, at: int, data: bytes) -> None:
        """Write whole blocks without reading the old ones.  Raises OSError."""
        parts = list[bytes]()
        for i in range(0, len(data), SIZE):
            part = data[i : i + SIZE]
            parts += (part, crc32(part, self._generation ^ (at + i) // SIZE).to_bytes(4, "little"))
        os.pwrite(self._fd, b"".join(parts), self._start + at // SIZE * _STRIDE)
        self._seen.clear()

    def _read(self, n: int) -> bytes:
        stored = os.pread(self._fd, _STRIDE, self._start + n * _STRIDE)
        data = stored[:SIZE]
        if stored[SIZE:] != crc32(data, self._generation ^ n).to_bytes(4, "little"):
            raise IndexCorrupt(f"block {n} of the index differs from what was written")
        self._seen[n] = data
        return data


def stored_size(data: int) -> int:
    """The size in the file, in bytes, of blocks that hold ``data`` bytes."""
    return -(-data // SIZE) * _STRIDE


class Pages:
    """``count`` pages in the file from ``start`` on.  A hash table at ``heads`` in the blocks finds a page.

    All methods raise IndexCorrupt, OSError.
    """

    __slots__ = ("_blocks", "_fd", "_generation", "_heads", "_seen", "_start", "count")

    def __init__(self, fd: int, blocks: Blocks, heads: int, start: int, generation: int, count: int = 0) -> None:
        self.count = count
        self._fd = fd
        self._blocks = blocks
        self._heads = heads
        self._start = start
        self._generation = generation
        self._seen = dict[int, bytes]()  # each page's description with its checksums

    def rebuild(self, held: Iterable[tuple[int, int, int]]) -> None:
        """Write all pages, with these addresses: version, number, line."""
        self._blocks.fill(self._heads, bytes(HEADS_SIZE))
        pages: dict[tuple[int, int], array[int]] = {}
        for version, number, line in held:
            page = pages.setdefault((version, number // BLOCK), array("I"))
            if not page:
                page.frombytes(bytes(4 * BLOCK))
            page[number % BLOCK] = line | _HELD
        for (version, prefix), page in pages.items():
            self._add(version, prefix, page.tobytes())

    def holder(self, version: int, number: int) -> int:
        """The line of the address's lease; 0 if the address is free."""
        n = self._page(version, number // BLOCK)
        if not n:
            return 0
        within = 4 * (number % _SOME)
        return int.from_bytes(self._part(n, number % BLOCK // _SOME)[within : within + 4], "little") & ~_HELD

    def hold(self, version: int, number: int, line: int) -> None:
        n = self._page(version, number // BLOCK) or self._add(version, number // BLOCK, bytes(4 * BLOCK))
        self._set(n, number % BLOCK, _U32.pack(line | _HELD))

    def free(self, version: int, number: int) -> None:
        if n := self._page(version, number // BLOCK):
            self._set(n, number % BLOCK, _FREE)

    def first_free(self, span: Span) -> Address | None:
        number = span.first
        while number <= span.last:
            n = self._page(span.version, number // BLOCK)
            if not n:
                return span.address(number)
            first, last = number % BLOCK, min(BLOCK, number % BLOCK + span.last - number + 1)
            for at in range(first // _SOME, -(-last // _SOME)):
                begin = max(first - at * _SOME, 0)
                found = self._part(n, at)[4 * begin : 4 * min(_SOME, last - at * _SOME)].find(_FREE)
                if found >= 0:
                    return span.address(number - first + at * _SOME + begin + found // 4)
            number += last - first
        return None

    def count_held(self, span: Span) -> int:
        total = 0
        for n, prefix in self._pages_of(span):
            first, last = max(span.first - prefix * BLOCK, 0), min(span.last - prefix * BLOCK, BLOCK - 1)
            for at in range(first // _SOME, last // _SOME + 1):
                lines = array("I", self._part(n, at))
                total += sum(map(bool, lines[max(first - at * _SOME, 0) : last + 1 - at * _SOME]))
        return total

    def _pages_of(self, span: Span) -> Iterator[tuple[int, int]]:
        """The pages with addresses of the span, each with its first address divided by BLOCK."""
        first, last = span.first // BLOCK, span.last // BLOCK
        if last - first < self.count:
            yield from ((n, prefix) for prefix in range(first, last + 1) if (n := self._page(span.version, prefix)))
            return
        for n in range(1, self.count + 1):
            version, block, _ = _ABOUT.unpack_from(self._about(n))
            if version == span.version and first <= (prefix := int.from_bytes(block)) <= last:
                yield n, prefix

    def held(self) -> Iterator[tuple[int, int, int]]:
        """Every held address as version, number and line, except those in damaged parts."""
        for n in range(1, self.count + 1):
            with suppress(IndexCorrupt):
                version, prefix, _ = _ABOUT.unpack_from(self._about(n))
                for at in range(BLOCK // _SOME):
                    number = int.from_bytes(prefix) * BLOCK + at * _SOME
                    with suppress(IndexCorrupt):
                        for i, line in enumerate(array("I", self._part(n, at))):
                            if line:
                                yield version, number + i, line & ~_HELD

    def _page(self, version: int, prefix: int) -> int:
        """The number of the page for ``prefix * BLOCK`` and the addresses after it; 0 if there is none."""
        n = self._blocks.number(self._heads + 4 * (prefix % _HEADS))
        wanted = prefix.to_bytes(16)
        for _ in range(self.count):
            if not n:
                return 0
            found, block, after = _ABOUT.unpack_from(self._seen.get(n) or self._about(n))
            if block == wanted and found == version:
                return n
            n = after
        if n:
            raise IndexCorrupt("a chain of the index's pages has no end")
        return 0

    def _add(self, version: int, prefix: int, entries: bytes) -> int:
        head = self._heads + 4 * (prefix % _HEADS)
        about, n = _ABOUT.pack(version, prefix.to_bytes(16), self._blocks.number(head)), self.count + 1
        os.ftruncate(self._fd, self._start + n * _PAGE_SIZE)
        if any(entries):
            os.pwrite(self._fd, entries, self._start + n * _PAGE_SIZE - _PAGE_SIZE + _ENTRIES_AT)
        sums = b"".join(self._sum(n, i, entries[i : i + _PART]) for i in range(0, len(entries), _PART))
        self._seen[n] = about = about + crc32(about, self._generation ^ n).to_bytes(4, "little") + sums
        os.pwrite(self._fd, about, self._start + (n - 1) * _PAGE_SIZE)
        self.count = n
        self._blocks.write(head, _U32.pack(n))
        return n

    def _about(self, n: int) -> bytes:
        if not 0 < n <= self.count:
            raise IndexCorrupt(f"the index names page {n} of {self.count}")
        about = os.pread(self._fd, _SUMS_AT + _SUMS, self._start + (n - 1) * _PAGE_SIZE)
        checksum = crc32(about[: _ABOUT.size], self._generation ^ n).to_bytes(4, "little")
        if about[_ABOUT.size : _SUMS_AT] != checksum or len(about) != _SUMS_AT + _SUMS:
            raise IndexCorrupt(f"page {n} of the index differs from what was written")
        self._seen[n] = about
        return about

    def _part(self, n: int, at: int) -> bytes:
        """Part ``at`` of page ``n``: _SOME entries."""
        data = os.pread(self._fd, _PART, self._start + (n - 1) * _PAGE_SIZE + _ENTRIES_AT + _PART * at)
        sum_at = _SUMS_AT + 4 * at
        if len(data) != _PART or self._sum(n, at * _PART, data) != self._seen[n][sum_at : sum_at + 4]:
            raise IndexCorrupt(f"part {at} of page {n} of the index differs from what was written")
        return data

    def _set(self, n: int, i: int, entry: bytes) -> None:
        at, within = i // _SOME, 4 * (i % _SOME)
        before, about = self._part(n, at), self._seen[n]
        sum_at, page = _SUMS_AT + 4 * at, self._start + (n - 1) * _PAGE_SIZE
        sum_ = self._sum(n, at * _PART, before[:within] + entry + before[within + 4 :])
        os.pwrite(self._fd, entry, page + _ENTRIES_AT + 4 * i)
        os.pwrite(self._fd, sum_, page + sum_at)
        self._seen[n] = about[:sum_at] + sum_ + about[sum_at + 4 :]

    def _sum(self, n: int, at: int, data: bytes) -> bytes:
        # The start value is unique for each part, up to 2^18 pages: a page's entries take 2^14 bytes.
        return crc32(data, (self._generation ^ (n << 14) ^ at) & 0xFFFFFFFF).to_bytes(4, "little")
