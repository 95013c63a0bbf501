"""Whether a network's files are what they should be; read under the lock, and not changed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ipam.ranges import Span
from ipam.stores.files.blocks import IndexCorrupt
from ipam.stores.files.codec import Unreadable, from_line
from ipam.stores.files.index import Index
from ipam.stores.files.lines import QUARANTINE
from ipam.stores.files.table import Table

_Outline = tuple[bytes, list[tuple[int, int]]]


def problems(table: Table) -> Iterator[str]:
    """What is wrong, in words.  Raises OSError."""
    heads, checksums, parts = dict[int, _Outline](), dict[int, int](), set[int]()
    for line, data in table.lines.each(table.lines.count()):
        try:
            body = from_line(data)
            if not line and (body is None or "schema" not in body):
                yield "line 0 does not say that this is a file of leases"
            elif line and body is not None and "of" not in body:
                held = table.read(line)
                heads[line], checksums[line] = held.outline, held.checksum
                parts.update(held.lines[1:])
        except Unreadable as e:
            yield f"line {line}: {e}"
    yield from _twice(heads)
    if table.is_clean:  # if it is not, as after every boot, nobody believes it
        try:
            yield from _index(table.index, heads, checksums, parts)
        except IndexCorrupt as e:
            yield f"index: {e}; the next call rebuilds it"


def _twice(heads: dict[int, _Outline]) -> Iterator[str]:
    given = Counter(address for _, addresses in heads.values() for address in addresses)
    for (version, number), times in given.items():
        if times > 1:
            yield f"{Span(version, number, number)} is in {times} leases"
    for digest, times in Counter(digest for digest, _ in heads.values()).items():
        if times > 1:
            lines = ", ".join(str(line) for line, (its, _) in heads.items() if its == digest)
            yield f"lines {lines} are leases of one attachment"


def _index(index: Index, heads: dict[int, _Outline], checksums: dict[int, int], parts: set[int]) -> Iterator[str]:
    there = set(index.pages.held())
    expected = {(*address, line) for line, (_, addresses) in heads.items() for address in addresses}
    for version, number, line in sorted(expected - there):
        yield f"index: it does not have {Span(version, number, number)} of line {line} as held"
    for version, number, line in sorted(there - expected):
        yield f"index: it has {Span(version, number, number)} as held by line {line}, which does not say so"
    for line, (digest, _) in heads.items():
        if index.find(digest) != line:
            yield f"index: line {line} is not found by its key"
        elif index.checksum(line) != checksums[line]:
            yield f"index: line {line} is not the lease that it has there"
    free = index.free_lines()
    if wrong := set(free) & (heads.keys() | parts):
        yield f"index: lines {sorted(wrong)} are in use and count as free"
    if index.leases != len(heads):
        yield f"index: it counts {index.leases} leases, there are {len(heads)}"


def quarantined(directory: Path) -> Iterator[str]:
    """In words, the files that were set aside for people."""
    for path in sorted((directory / QUARANTINE).glob("*")):
        yield f"{path} holds leases that could not be read; remove it when you have looked"
