"""Where things are in ``leases``: a binary file of no worth of its own, made anew whenever it may be wrong.

    0         header     whether and of what it is true; counts; the addresses given last; a checksum
    4096      heads      by the hash of a key: the first of the lines that may be its lease
    + 256 K   pages      by the hash of a block of 4096 addresses: the first of the pages that may be the block's
    + 64 K    records    one per line: the key's digest and the next line of the same hash, or the next free line;
                         and a checksum of the lease, so that no other line is taken for it
    + 32 M    a page for every block that was ever given from: for each address the line of its lease, or 0 (pages.py)

Heads, pages and records have a checksum after every 256 bytes (blocks.py), which are not counted here.
Everything is one or two reads away, however much is held.  The tables never grow: with 60,000 leases a chain is one
long, with ten times as many ten.

It says "true" only for the leases file as it was when it was written (inode, size, time), in one boot, and not while
a change is under way.  So it is never synced, and a crash at any point is found by the next who looks.  What is damaged
is found by whoever reads it (Rotten): then it says "doubtful", which is to say that it was complete.
"""

import os
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from struct import Struct
from typing import Final
from zlib import crc32

from cni.protocol.result import Address
from cni.state import durable
from ipam.ranges import Span
from ipam.stores.files import blocks
from ipam.stores.files.blocks import SIZE, Blocks, Rotten
from ipam.stores.files.codec import DIGEST
from ipam.stores.files.pages import HEADS_SIZE, Pages
from ipam.stores.files.slots import SLOTS

MAGIC: Final = b"HPNIDX\0\3"
HEADS: Final = 1 << 16
HEADER: Final = 4096

# Magic, boot, whether it is true, a checksum of the rest.
_PREFIX: Final = Struct("<8s16sB3xI")
# How many addresses given last; inode, size and time of leases; lines, first free line, leases, pages; which making of
# the file this is; how many leases were ever written; of which ranges the file ``ranges`` is.
_HEADER: Final = Struct("<B7xQQQIIIII4xQ8s")
_LAST: Final = Struct("<B16s")
_LASTS: Final = 24
_TRUE_AT: Final = 24
_CHANGING, _TRUE, _DOUBTFUL = range(3)
_RECORD: Final = Struct(f"<{DIGEST}sII12x")
_U32: Final = Struct("<I")

# Places in the blocks.
_PAGES_AT: Final = 4 * HEADS
_RECORDS_AT: Final = _PAGES_AT + HEADS_SIZE
# In the file.
_END: Final = HEADER + -(-blocks.size(_RECORDS_AT + _RECORD.size * SLOTS) // 4096) * 4096


class Index:
    """The open file; the caller has the lock, and closes.  What reads or writes raises Rotten, OSError."""

    def __init__(self, fd: int = -1) -> None:
        """Without a file it is one in memory, that nobody will find."""
        self.fd = fd if fd >= 0 else os.memfd_create("index")
        try:
            data = os.pread(self.fd, _PREFIX.size + _HEADER.size + _LASTS * _LAST.size, 0)
        except OSError:  # of no file
            data = b""
        magic, boot, self._mark, said = _PREFIX.unpack(data[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
        body = data[_PREFIX.size :].ljust(_HEADER.size, b"\0")
        body = body[: _HEADER.size + _LAST.size * body[0]]
        self.readable = magic == MAGIC and crc32(body) == said
        if not self.readable:
            body = bytes(_HEADER.size)
        _, *numbers, ranges = _HEADER.unpack_from(body)
        self.ranges: bytes = ranges
        self._of = tuple[int, ...](numbers[:3])
        self.slots, self.free, self.leases, pages, self._making, self.written = map(int, numbers[3:])
        self.of_this_boot = self.readable and boot == _boot()
        self._last = body[_HEADER.size :]
        self._blocks = Blocks(self.fd, HEADER, self._making)
        self.pages = Pages(self.fd, self._blocks, _PAGES_AT, _END, self._making, pages)

    def close(self) -> None:
        os.close(self.fd)

    @property
    def is_complete(self) -> bool:
        """Whether it was true of some leases of this boot, whatever became of these since."""
        return self.of_this_boot and self._mark in (_TRUE, _DOUBTFUL)

    def is_true(self, leases: os.stat_result) -> bool:
        return self.of_this_boot and self._mark == _TRUE and self._of == _identity(leases)

    def distrust(self) -> None:
        """Before a change."""
        self._set_mark(_CHANGING)

    def doubt(self) -> None:
        """After it was seen to be wrong, or the leases."""
        if self._mark == _TRUE:
            self._set_mark(_DOUBTFUL)

    def _set_mark(self, mark: int) -> None:
        self._mark = mark
        os.pwrite(self.fd, bytes([mark]), _TRUE_AT)

    def trust(self, leases: os.stat_result) -> None:
        """After it."""
        counts = (self.slots, self.free, self.leases, self.pages.count, self._making, self.written)
        lasts = len(self._last) // _LAST.size
        body = _HEADER.pack(lasts, *_identity(leases), *counts, self.ranges) + self._last
        os.pwrite(self.fd, _PREFIX.pack(MAGIC, _boot(), _TRUE, crc32(body)) + body, 0)
        self._mark = _TRUE

    @property
    def last(self) -> tuple[Address, ...]:
        """The addresses given last: where to go on.  They outlive the boot, as far as they were written."""
        whole = len(self._last) // _LAST.size * _LAST.size
        numbers = [(version, int.from_bytes(n)) for version, n in _LAST.iter_unpack(self._last[:whole])]
        return tuple(Span(v, n, n).address(n) for v, n in numbers if v == 6 or (v == 4 and n < 1 << 32))

    @last.setter
    def last(self, addresses: Sequence[Address]) -> None:
        self._last = b"".join(_LAST.pack(a.version, int(a).to_bytes(16)) for a in addresses[:_LASTS])

    def make_anew(self, slots: int, held: Iterable[tuple[int, bytes, int, Iterable[tuple[int, int]]]]) -> None:
        """For so many lines, of which these are held: line, digest of the key, the lease's checksum, its addresses as
        version and number.

        In memory and then in one go: 60,000 leases take a third of a second, nearly all of it for reading them.
        """
        heads = array("I", bytes(4 * HEADS))
        entries = list[tuple[int, int, int]]()
        records = bytearray(-(-_RECORD.size * slots // SIZE) * SIZE)
        self.slots, self.leases = slots, 0
        taken = bytearray(slots)
        for slot, digest, seal, addresses in held:
            taken[slot] = 1
            if not digest:
                continue
            self.leases += 1
            hashed = int.from_bytes(digest[:4]) % HEADS
            _RECORD.pack_into(records, slot * _RECORD.size, digest, heads[hashed], seal)
            heads[hashed] = slot
            entries += [(version, number, slot) for version, number in addresses]
        self.free = 0
        for slot in range(slots - 1, 0, -1):
            if not taken[slot]:
                _U32.pack_into(records, slot * _RECORD.size + DIGEST, self.free)
                self.free = slot
        os.ftruncate(self.fd, 0)  # without a header it is not true
        self._mark, self._making = _CHANGING, int.from_bytes(os.urandom(4))
        self._blocks = Blocks(self.fd, HEADER, self._making)
        os.ftruncate(self.fd, _END)
        self._blocks.fill(0, heads.tobytes())
        self._blocks.fill(_RECORDS_AT, bytes(records))
        self.pages = Pages(self.fd, self._blocks, _PAGES_AT, _END, self._making)
        self.pages.make_anew(entries)

    # Keys

    def find(self, digest: bytes) -> int:
        """The line of the key's lease, 0 if it has none."""
        slot, left = self._head(digest), self.slots
        while slot:
            found, after, _ = self._record(slot)
            if found == digest:
                return slot
            slot, left = after, left - 1
            if left < 0:
                raise Rotten("a chain of the index has no end")
        return 0

    def digest(self, slot: int) -> bytes:
        """Of the key whose lease the line is; zeros if it is none."""
        return self._record(slot)[0]

    def is_head(self, slot: int) -> bool:
        """Whether a lease begins at the line."""
        return any(self.digest(slot))

    def seal(self, slot: int) -> int:
        """The checksum of the lease that begins at the line."""
        return self._record(slot)[2]

    def add(self, digest: bytes, slot: int, seal: int) -> None:
        self._set_record(slot, digest, self._head(digest), seal)
        self._set_head(digest, slot)
        self.leases += 1

    def rename(self, old: bytes, new: bytes, slot: int, seal: int) -> None:
        """The line is another key's now."""
        self._unlink(old, slot)
        self._set_record(slot, new, self._head(new), seal)
        self._set_head(new, slot)

    def reseal(self, slot: int, seal: int) -> None:
        """The same key's lease says something else now."""
        digest, after, _ = self._record(slot)
        self._set_record(slot, digest, after, seal)

    def remove(self, digest: bytes, slot: int) -> None:
        """The line is free then."""
        self._unlink(digest, slot)
        self.leases -= 1
        self.push(slot)

    def _unlink(self, digest: bytes, slot: int) -> None:
        after = self._record(slot)[1]
        at, left = self._head(digest), self.slots
        if at == slot:
            self._set_head(digest, after)
            return
        while at and left:
            found, following, seal = self._record(at)
            if following == slot:
                self._set_record(at, found, after, seal)
                return
            at, left = following, left - 1
        raise Rotten(f"line {slot} is not found by its key")

    # Free lines

    def push(self, slot: int) -> None:
        self._set_record(slot, bytes(DIGEST), self.free, 0)
        self.free = slot

    def push_all(self, first: int, slots: int) -> None:
        """The lines from the first up to ``slots``, which are new."""
        chain = [_RECORD.pack(bytes(DIGEST), slot + 1, 0) for slot in range(first, slots - 1)]
        chain.append(_RECORD.pack(bytes(DIGEST), self.free, 0))
        # The block that the last lines before these are in is there.
        begun = -first % (SIZE // _RECORD.size)
        for slot, record in zip(range(first, first + begun), chain, strict=False):
            self._blocks.write(_record_at(slot), record)
        rest = b"".join(chain[begun:])
        self._blocks.fill(_record_at(first + begun), rest.ljust(-(-len(rest) // SIZE) * SIZE, b"\0"))
        self.free, self.slots = first, slots

    def pop(self) -> int:
        """A free line; there must be one."""
        slot = self.free
        digest, self.free, _ = self._record(slot)
        if any(digest):
            raise Rotten(f"line {slot} is in use and counts as free")
        return slot

    def free_lines(self) -> list[int]:
        """All of them, in the order they will be taken."""
        lines, slot = list[int](), self.free
        while slot and len(lines) < self.slots:
            lines.append(slot)
            slot = self._record(slot)[1]
        return lines

    def _head(self, digest: bytes) -> int:
        return self._blocks.number(4 * (int.from_bytes(digest[:4]) % HEADS))

    def _set_head(self, digest: bytes, slot: int) -> None:
        self._blocks.write(4 * (int.from_bytes(digest[:4]) % HEADS), _U32.pack(slot))

    def _record(self, slot: int) -> tuple[bytes, int, int]:
        if not 0 < slot < self.slots:
            raise Rotten(f"the index names line {slot} of {self.slots}")
        digest, after, seal = _RECORD.unpack(self._blocks.read(_record_at(slot), _RECORD.size))
        return digest, after, seal

    def _set_record(self, slot: int, digest: bytes, after: int, seal: int) -> None:
        self._blocks.write(_record_at(slot), _RECORD.pack(digest, after, seal))


def _record_at(slot: int) -> int:
    return _RECORDS_AT + _RECORD.size * slot


def _identity(file: os.stat_result) -> tuple[int, ...]:
    return file.st_ino, file.st_size, file.st_mtime_ns


@cache
def _boot() -> bytes:
    return bytes.fromhex(durable.boot_id().replace("-", ""))
