"""A part of a file in blocks of 256 bytes, each followed by its checksum.

A checksum also covers which block it is of, and the generation of the file.  So whoever
reads a block finds a flipped bit, a block that was moved and a page of zeros, and has to read no more than the block.
"""

import os
from typing import Final
from zlib import crc32

SIZE: Final = 256
_STRIDE: Final = SIZE + 4


class IndexCorrupt(Exception):
    """Something was not read as it was written; the words say what."""


class Blocks:
    """The blocks of an open file from ``start`` on.  The caller has the file's lock, so what was read is remembered."""

    __slots__ = ("_fd", "_generation", "_seen", "_start")

    def __init__(self, fd: int, start: int, generation: int) -> None:
        self._fd = fd
        self._start = start
        self._generation = generation
        self._seen = dict[int, bytes]()

    def read(self, at: int, size: int) -> bytes:
        """So many bytes, all of one block.  Raises IndexCorrupt, OSError."""
        n, within = divmod(at, SIZE)
        return (self._seen.get(n) or self._read(n))[within : within + size]

    def number(self, at: int) -> int:
        """The four bytes there.  Raises IndexCorrupt, OSError."""
        n, within = divmod(at, SIZE)
        return int.from_bytes((self._seen.get(n) or self._read(n))[within : within + 4], "little")

    def write(self, at: int, part: bytes) -> None:
        """Write a part, all of one block.  Raises IndexCorrupt, OSError."""
        n, within = divmod(at, SIZE)
        before = self._seen.get(n) or self._read(n)
        self._seen[n] = data = before[:within] + part + before[within + len(part) :]
        os.pwrite(self._fd, data + crc32(data, self._generation ^ n).to_bytes(4, "little"), self._start + n * _STRIDE)

    def fill(self, at: int, data: bytes) -> None:
        """Write whole blocks, whatever was there.  Raises OSError."""
        first, made = at // SIZE, self._generation
        parts = list[bytes]()
        for i in range(0, len(data), SIZE):
            part = data[i : i + SIZE]
            parts += (part, crc32(part, made ^ (at + i) // SIZE).to_bytes(4, "little"))
        os.pwrite(self._fd, b"".join(parts), self._start + first * _STRIDE)
        self._seen.clear()

    def _read(self, n: int) -> bytes:
        stored = os.pread(self._fd, _STRIDE, self._start + n * _STRIDE)
        data = stored[:SIZE]
        if stored[SIZE:] != crc32(data, self._generation ^ n).to_bytes(4, "little"):  # guard: checksum
            raise IndexCorrupt(f"block {n} of the index is not as it was written")
        self._seen[n] = data
        return data


def size(data: int) -> int:
    """How many bytes of a file the blocks take that hold so many of data."""
    return -(-data // SIZE) * _STRIDE
