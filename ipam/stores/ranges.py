"""The file ``ranges``: what addresses a network had to give when the latest ADD asked, for people (hpn ipam show)."""

import json
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ipam.stores import Ranges
from ipam.stores.table import Table

RANGES: Final = "ranges"


def keep(table: Table, ranges: Ranges) -> None:
    """Write them down if they are others than before; whatever is held stays held.  The table must be true."""
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
    # Nothing depends on it, so it is not synced, and a full disk is no reason to refuse an ADD that has a line.
    with suppress(OSError):
        if before != now:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(fd, json.dumps({"sets": now}).encode() + b"\n")
            finally:
                os.close(fd)
        table.index.ranges = said
        table.trust()


def read(directory: Path) -> list[list[str]]:
    """What each range set had, as "first-last"; empty where it is not known."""
    try:
        sets: list[list[str]] = json.loads((directory / RANGES).read_bytes())["sets"]
    except (OSError, ValueError, TypeError, KeyError):  # cut off by a crash; the next ADD writes it again
        return []
    return sets


def _words(sets: list[list[str]]) -> str:
    return "; ".join(", ".join(spans) for spans in sets)
