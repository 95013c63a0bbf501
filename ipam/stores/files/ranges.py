"""The file ``ranges``: what addresses a network had to give when the latest ADD asked, for people (hpn ipam show)."""

import json
import os
from contextlib import suppress
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from ipam.ranges import Span
from ipam.stores import Ranges
from ipam.stores.files.lines import ensure_file, open_file, reading
from ipam.stores.files.table import Table

RANGES: Final = "ranges"
# Bytes; more than any configuration has.
_MOST: Final = 1 << 22


def record(table: Table, ranges: Ranges) -> None:
    """Write the ranges down if they have changed; whatever is held stays held.  The table must be clean."""
    numbers = [[(span.version, span.first, span.last) for span in spans] for spans in ranges]
    said = blake2b(repr(numbers).encode(), digest_size=8).digest()
    if table.index.ranges == said:
        return
    path = table.directory / RANGES
    now, before = [[str(span) for span in spans] for spans in ranges], read(table.directory)
    if before and before != now:
        table.log.append(
            f"{table.directory.name}: its ranges were {_words(before)} and are {_words(now)} now; "
            "leases outside them are kept until they are released"
        )
    # Only people read it.  So it is not synced, and a full disk does not refuse an ADD for it.
    with suppress(OSError, IoFailure):
        if before != now:
            fd = open_file(f"{path}", table.log)
            try:
                fd = ensure_file(fd, f"{path}", table.log)
                os.ftruncate(fd, 0)
                os.write(fd, json.dumps({"sets": now}).encode() + b"\n")
            finally:
                os.close(fd)
        table.index.ranges = said
        table.mark_clean()


def read(directory: Path) -> list[list[str]]:
    """What each range set had, as "first-last"; empty where it is not known."""
    sets = list[list[str]]()
    try:
        fd = reading(directory / RANGES)
        try:
            sets = json.loads(os.read(fd, _MOST))["sets"]
        finally:
            os.close(fd)
        right = all([parsed(text) for text in spans] for spans in sets)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = False  # cut off by a crash, or damaged; the next ADD with other ranges writes it again
    return sets if right else []


def parsed(text: str) -> Span:
    """Raises ValueError, TypeError, AttributeError."""
    first, _, last = text.partition("-")
    low, high = ip_address(first), ip_address(last or first)
    if low.version != high.version or int(low) > int(high):
        raise ValueError(f"{text} is no range")
    return Span.of(low, high)


def _words(sets: list[list[str]]) -> str:
    return "; ".join(", ".join(spans) for spans in sets)
