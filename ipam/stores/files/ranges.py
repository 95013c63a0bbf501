"""The file ``ranges``: a network's ranges at the latest ADD, for people (hpn ipam show)."""

import json
from contextlib import suppress
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from ipam.ranges import Span
from ipam.stores import Ranges
from ipam.stores.files.lines import open_file, reading
from ipam.stores.files.table import Table

RANGES: Final = "ranges"
# Bytes to read at most; more than any configuration has.
_MOST: Final = 1 << 22


def record(table: Table, ranges: Ranges) -> None:
    """Write the ranges if they have changed; held addresses stay held.  The table must be clean."""
    numbers = [[(span.version, span.first, span.last) for span in spans] for spans in ranges]
    digest = blake2b(repr(numbers).encode(), digest_size=8).digest()
    if table.index.ranges == digest:
        return
    path = table.directory / RANGES
    now, before = [[str(span) for span in spans] for spans in ranges], read(table.directory)
    if before and before != now:
        table.log.append(
            f"{table.directory.name}: its ranges changed from {_text(before)} to {_text(now)}; "
            "leases outside them stay until their release"
        )
    # Only people read the file, so it is not synced, and a full disk fails no ADD.
    with suppress(OSError, IoFailure):
        if before != now:
            with open(open_file(f"{path}", table.log), "wb") as f:
                f.truncate(0)
                f.write(json.dumps({"sets": now}).encode() + b"\n")
        table.index.ranges = digest
        table.mark_clean()


def read(directory: Path) -> list[list[str]]:
    """The spans of each range set, as "first-last"; empty if unknown."""
    sets = list[list[str]]()
    try:
        with open(reading(directory / RANGES), "rb") as f:
            sets = json.loads(f.read(_MOST))["sets"]
        right = all([parsed(text) for text in spans] for spans in sets)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = False  # truncated by a crash, or damaged; the next ADD with other ranges rewrites it
    return sets if right else []


def parsed(text: str) -> Span:
    """The span of "first-last", or of one address.  Raises ValueError, TypeError, AttributeError."""
    first, _, last = text.partition("-")
    low, high = ip_address(first), ip_address(last or first)
    if low.version != high.version or int(low) > int(high):
        raise ValueError(f"{text} is not a range")
    return Span.of(low, high)


def _text(sets: list[list[str]]) -> str:
    return "; ".join(", ".join(spans) for spans in sets)
