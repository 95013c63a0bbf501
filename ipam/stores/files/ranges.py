"""The file ``ranges``: a network's ranges at the latest ADD, for people (hpn ipam show).

Where the ranges are those of a parent, each parent's latest ones.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from base.protocol.errors import IoFailure
from base.protocol.spec import Json
from ipam.ranges import Span
from ipam.stores import Ranges
from ipam.stores.files.lines import open_file, reading
from ipam.stores.files.table import Table

RANGES: Final = "ranges"
# Bytes to read at most; more than any configuration has.
_MOST: Final = 1 << 22


class Recorded(NamedTuple):
    """The spans of a range set, as "first-last", and its parent's name; empty without one."""

    spans: list[str]
    parent: str


def record(table: Table, ranges: Ranges, parents: Sequence[str]) -> None:
    """Write the ranges if they have changed; held addresses stay held.  The table must be clean.

    ``parents``: the parent of each, or none at all.
    """
    numbers = [[(span.version, span.first, span.last) for span in spans] for spans in ranges]
    digest = blake2b(repr((numbers, *parents) if any(parents) else numbers).encode(), digest_size=8).digest()
    if table.index.ranges == digest:
        return
    path, all_before = table.directory / RANGES, read(table.directory)
    others = [one for one in all_before if any(parents) and one.parent not in ("", *parents)]
    now = [
        Recorded([str(span) for span in spans], parent)
        for spans, parent in zip(ranges, parents or [""] * len(ranges), strict=True)
    ]
    before = [one for one in all_before if one not in others]
    if before and before != now:
        table.log.append(
            f"{table.directory.name}: its ranges changed from {_text(before)} to {_text(now)}; "
            "leases outside them stay until their release"
        )
    # Only people read the file, so it is not synced, and a full disk fails no ADD.
    with suppress(OSError, IoFailure):
        if before != now:
            document: Json = {"sets": [one.spans for one in (*others, *now)]}
            if any(parents):
                document["parents"] = [one.parent for one in (*others, *now)]
            with open(open_file(f"{path}", table.log), "wb") as f:
                f.truncate(0)
                f.write(json.dumps(document).encode() + b"\n")
        table.index.ranges = digest
        table.mark_clean()


def read(directory: Path) -> list[Recorded]:
    """The range sets; empty if unknown."""
    sets = list[Recorded]()
    try:
        with open(reading(directory / RANGES), "rb") as f:
            document = json.loads(f.read(_MOST))
        spans = document["sets"]
        parents = document.get("parents") or [""] * len(spans)
        sets = [Recorded(one, f"{parent}") for one, parent in zip(spans, parents, strict=True)]
        right = all([parsed(text) for text in one.spans] for one in sets)
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


def _text(sets: list[Recorded]) -> str:
    return "; ".join(", ".join(one.spans) for one in sets)
