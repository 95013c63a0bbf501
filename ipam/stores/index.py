"""Where things are in ``leases``: a binary file of no worth of its own, made anew whenever it may be wrong.

    0         header     whether and of what it is true; counts; the addresses given last
    4096      heads      by the hash of a key: the first of the lines that may be its lease
    + 256 K   pages      by the hash of a block of 4096 addresses: the first of the pages that may be the block's
    + 64 K    records    one per line: the key's digest and the next line of the same hash, or the next free line
    + 16 M    a page for every block that was ever given from: for each address the line of its lease, or 0

Everything is one or two reads away, however much is held.  The tables never grow: with 60,000 leases a chain is one
long, with ten times as many ten.  What is not there yet is a hole, and read as zeros.

It says "true" only for the leases file as it was when it was written (inode, size, time), in one boot, and not while
a change is under way.  So it is never synced, and a crash at any point is found by the next who looks.
"""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from struct import Struct
from typing import Final

from cni import durable
from cni.result import Address
from ipam.ranges import Span
from ipam.stores.lease import DIGEST

MAGIC: Final = b"HPNIDX\0\2"
HEADS: Final = 1 << 16
PAGE_HEADS: Final = 1 << 14
SLOTS: Final = 1 << 20
BLOCK: Final = 1 << 12
HEADER: Final = 4096

# Magic, boot, whether it is true, the addresses given last; inode, size and time of leases; lines, first free line,
# leases, pages; of which ranges the file ``ranges`` is.
_HEADER: Final = Struct("<8s16sBBxxQQQIIII8s")
_LAST: Final = Struct("<B16s")
_LASTS: Final = 24
_TRUE_AT: Final = 24
_RECORD: Final = Struct(f"<{DIGEST}sI")
_PAGE: Final = Struct("<B3x16sI8x")
_U32: Final = Struct("<I")

_PAGES_AT: Final = HEADER + 4 * HEADS
_RECORDS_AT: Final = _PAGES_AT + 4 * PAGE_HEADS
_BLOCKS_AT: Final = _RECORDS_AT + _RECORD.size * SLOTS
_PAGE_SIZE: Final = _PAGE.size + 4 * BLOCK
# Set in the entry of an address that is held: four zero bytes are then found nowhere but where one is free.
_HELD: Final = 1 << 31
_FREE: Final = b"\0\0\0\0"


class Index:
    """The open file; the caller has the lock, and closes."""

    def __init__(self, path: str) -> None:
        """``path`` is empty for one in memory, that nobody will find."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o600) if path else os.memfd_create("index")
        header = os.pread(self.fd, _HEADER.size + _LASTS * _LAST.size, 0)
        fixed = header[: _HEADER.size].ljust(_HEADER.size, b"\0")
        magic, boot, true, lasts, *numbers, ranges = _HEADER.unpack(fixed)
        self.ranges: bytes = ranges
        self._of = tuple[int, ...](numbers[:3])
        self.slots, self.free, self.leases, self.pages = map(int, numbers[3:])
        self.readable = magic == MAGIC
        self.of_this_boot = self.readable and boot == _boot()
        self._true = self.of_this_boot and true == 1
        self._last = header[_HEADER.size :][: lasts * _LAST.size] if self.readable else b""

    def close(self) -> None:
        os.close(self.fd)

    def is_of(self, leases: os.stat_result) -> bool:
        """Whether it was written for that very file, whatever that holds now."""
        return self.of_this_boot and self._of[:1] == _identity(leases)[:1]

    def is_true(self, leases: os.stat_result) -> bool:
        return self._true and self._of == _identity(leases)

    def distrust(self) -> None:
        """Before a change."""
        os.pwrite(self.fd, b"\0", _TRUE_AT)

    def trust(self, leases: os.stat_result) -> None:
        """After it."""
        counts = (self.slots, self.free, self.leases, self.pages)
        lasts = len(self._last) // _LAST.size
        os.pwrite(
            self.fd, _HEADER.pack(MAGIC, _boot(), 1, lasts, *_identity(leases), *counts, self.ranges) + self._last, 0
        )

    @property
    def last(self) -> tuple[Address, ...]:
        """The addresses given last: where to go on.  They outlive the boot, as far as they were written."""
        whole = len(self._last) // _LAST.size * _LAST.size
        numbers = [(version, int.from_bytes(n)) for version, n in _LAST.iter_unpack(self._last[:whole])]
        return tuple(Span(v, n, n).address(n) for v, n in numbers if v == 6 or (v == 4 and n < 1 << 32))

    @last.setter
    def last(self, addresses: Sequence[Address]) -> None:
        self._last = b"".join(_LAST.pack(a.version, int(a).to_bytes(16)) for a in addresses[:_LASTS])

    def make_anew(self, slots: int, held: Iterable[tuple[int, bytes, Iterable[tuple[int, int]]]]) -> None:
        """For so many lines, of which these are held: line, digest of the key, addresses as version and number.

        In memory and then in one go: 60,000 leases take a third of a second, nearly all of it for reading them.
        """
        heads = array("I", bytes(4 * HEADS))
        blocks: dict[tuple[int, int], array[int]] = {}
        records = array("I", bytes(_RECORD.size * slots))
        words = _RECORD.size // 4
        self.slots, self.leases = slots, 0
        taken = bytearray(slots)
        for slot, digest, addresses in held:
            taken[slot] = 1
            if not digest:
                continue
            self.leases += 1
            hashed = int.from_bytes(digest[:4]) % HEADS
            records[slot * words : (slot + 1) * words] = array("I", _RECORD.pack(digest, heads[hashed]))
            heads[hashed] = slot
            for version, number in addresses:
                block = blocks.setdefault((version, number // BLOCK), array("I"))
                if not block:
                    block.frombytes(bytes(4 * BLOCK))
                block[number % BLOCK] = slot | _HELD
        self.free = 0
        for slot in range(slots - 1, 0, -1):
            if not taken[slot]:
                records[slot * words + words - 1] = self.free
                self.free = slot
        os.ftruncate(self.fd, 0)  # without a header it is not true
        self.pages = 0
        for (version, prefix), block in blocks.items():
            self._fill(block.tobytes(), self._new_page(version, prefix))
        self._fill(heads.tobytes(), HEADER)
        self._fill(records.tobytes(), _RECORDS_AT)

    def _fill(self, data: bytes, at: int) -> None:
        for i in range(0, len(data), 4096):
            part = data[i : i + 4096]
            if any(part):
                os.pwrite(self.fd, part, at + i)

    # Keys

    def find(self, digest: bytes) -> int:
        """The line of the key's lease, 0 if it has none."""
        slot = self._head(digest)
        while slot:
            found, after = self._record(slot)
            if found == digest:
                return slot
            slot = after
        return 0

    def digest(self, slot: int) -> bytes:
        """Of the key whose lease the line is; zeros if it is none."""
        return self._record(slot)[0]

    def is_head(self, slot: int) -> bool:
        """Whether a lease begins at the line."""
        return any(self.digest(slot))

    def add(self, digest: bytes, slot: int) -> None:
        self._set_record(slot, digest, self._head(digest))
        self._set_head(digest, slot)
        self.leases += 1

    def rename(self, old: bytes, new: bytes, slot: int) -> None:
        """The line is another key's now."""
        self._unlink(old, slot)
        self._set_record(slot, new, self._head(new))
        self._set_head(new, slot)

    def remove(self, digest: bytes, slot: int) -> None:
        """The line is free then."""
        self._unlink(digest, slot)
        self.leases -= 1
        self.push(slot)

    def _unlink(self, digest: bytes, slot: int) -> None:
        _, after = self._record(slot)
        before = self._head(digest)
        if before == slot:
            self._set_head(digest, after)
        else:
            while (link := self._record(before))[1] != slot:
                before = link[1]
            self._set_record(before, link[0], after)

    # Free lines

    def push(self, slot: int) -> None:
        self._set_record(slot, bytes(DIGEST), self.free)
        self.free = slot

    def push_all(self, first: int, slots: int) -> None:
        """The lines from the first up to ``slots``, which are new."""
        chain = [_RECORD.pack(bytes(DIGEST), slot + 1) for slot in range(first, slots - 1)]
        chain.append(_RECORD.pack(bytes(DIGEST), self.free))
        os.pwrite(self.fd, b"".join(chain), _record_at(first))
        self.free, self.slots = first, slots

    def pop(self) -> int:
        """A free line; there must be one."""
        slot = self.free
        _, self.free = self._record(slot)
        return slot

    def free_lines(self) -> list[int]:
        """All of them, in the order they will be taken."""
        lines, slot = list[int](), self.free
        while slot and len(lines) < self.slots:
            lines.append(slot)
            slot = self._record(slot)[1]
        return lines

    # Addresses

    def holder(self, version: int, number: int) -> int:
        """The line of the lease that has the address, 0 if it is free."""
        at = self._page(version, number // BLOCK)
        return self._u32(at + 4 * (number % BLOCK)) & ~_HELD if at else 0

    def give(self, version: int, number: int, slot: int) -> None:
        at = self._page(version, number // BLOCK) or self._new_page(version, number // BLOCK)
        os.pwrite(self.fd, _U32.pack(slot | _HELD), at + 4 * (number % BLOCK))

    def take(self, version: int, number: int) -> None:
        if at := self._page(version, number // BLOCK):
            os.pwrite(self.fd, _FREE, at + 4 * (number % BLOCK))

    def first_free(self, span: Span) -> Address | None:
        """The span's lowest address that nobody holds."""
        number = span.first
        while number <= span.last:
            at = self._page(span.version, number // BLOCK)
            if not at:
                return span.address(number)
            rest = min(BLOCK - number % BLOCK, span.last - number + 1)
            # Most often it is the very next one.
            for count in (min(rest, 16), rest):
                entries = os.pread(self.fd, 4 * count, at + 4 * (number % BLOCK))
                if (found := entries.find(_FREE)) >= 0:
                    return span.address(number + found // 4)
            number += rest
        return None

    def held(self) -> Iterator[tuple[int, int, int]]:
        """Every address that is held, as version, number and line."""
        for n in range(self.pages):
            page = os.pread(self.fd, _PAGE_SIZE, _BLOCKS_AT + n * _PAGE_SIZE)
            if len(page) == _PAGE_SIZE:
                version, prefix, _ = _PAGE.unpack_from(page)
                first = int.from_bytes(prefix) * BLOCK
                for i, slot in enumerate(array("I", page[_PAGE.size :])):
                    if slot:
                        yield version, first + i, slot & ~_HELD

    def _page(self, version: int, prefix: int) -> int:
        """Where the block's entries are, 0 if it has no page."""
        n = self._u32(_PAGES_AT + 4 * (prefix % PAGE_HEADS))
        wanted = prefix.to_bytes(16)
        while n:
            at = _BLOCKS_AT + (n - 1) * _PAGE_SIZE
            found, block, after = _PAGE.unpack(os.pread(self.fd, _PAGE.size, at))
            if block == wanted and found == version:
                return at + _PAGE.size
            n = after
        return 0

    def _new_page(self, version: int, prefix: int) -> int:
        head = _PAGES_AT + 4 * (prefix % PAGE_HEADS)
        at = _BLOCKS_AT + self.pages * _PAGE_SIZE
        os.ftruncate(self.fd, at + _PAGE_SIZE)
        os.pwrite(self.fd, _PAGE.pack(version, prefix.to_bytes(16), self._u32(head)), at)
        self.pages += 1
        os.pwrite(self.fd, _U32.pack(self.pages), head)
        return at + _PAGE.size

    def _head(self, digest: bytes) -> int:
        return self._u32(HEADER + 4 * (int.from_bytes(digest[:4]) % HEADS))

    def _set_head(self, digest: bytes, slot: int) -> None:
        os.pwrite(self.fd, _U32.pack(slot), HEADER + 4 * (int.from_bytes(digest[:4]) % HEADS))

    def _record(self, slot: int) -> tuple[bytes, int]:
        record = os.pread(self.fd, _RECORD.size, _record_at(slot)).ljust(_RECORD.size, b"\0")
        digest, after = _RECORD.unpack(record)
        return digest, after

    def _set_record(self, slot: int, digest: bytes, after: int) -> None:
        os.pwrite(self.fd, _RECORD.pack(digest, after), _record_at(slot))

    def _u32(self, at: int) -> int:
        return int.from_bytes(os.pread(self.fd, 4, at), "little")


def _record_at(slot: int) -> int:
    return _RECORDS_AT + _RECORD.size * slot


def _identity(file: os.stat_result) -> tuple[int, ...]:
    return file.st_ino, file.st_size, file.st_mtime_ns


@cache
def _boot() -> bytes:
    return bytes.fromhex(durable.boot_id().replace("-", ""))
