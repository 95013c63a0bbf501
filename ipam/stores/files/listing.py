"""What the files of a network say, read for people: without a lock and without changing anything."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from base.protocol.spec import Json
from ipam.stores import Gone
from ipam.stores.contents import Contents, Listed
from ipam.stores.files.codec import Unreadable, decode, from_line, joined, link
from ipam.stores.files.lines import QUARANTINE, SCHEMA, Lines, reading
from ipam.stores.files.ranges import parsed
from ipam.stores.files.ranges import read as read_ranges
from ipam.stores.files.stale import Rule
from ipam.stores.files.table import LEASES
from ipam.stores.holdings import Holding, Lease


def networks(data_dir: Path) -> list[str]:
    """The networks that have leases there.  Raises OSError."""
    found = sorted(path.parent.name for path in data_dir.glob(f"*/{LEASES}"))
    if not found and data_dir.exists():
        os.listdir(data_dir)  # glob does not say where it may not look
    return found


def contents(directory: Path, gone: Gone) -> Contents:
    """All that a network holds.  Raises OSError where the quarantine or the ranges cannot be read."""
    sets = tuple(tuple(map(parsed, spans)) for spans in read_ranges(directory))
    about = Contents(directory.name, str(directory), sets=sets, quarantined=_quarantined(directory))
    try:
        bodies, unreadable = _bodies(f"{directory}/{LEASES}")
    except OSError as e:
        return replace(about, problem=f"{directory}/{LEASES}: {e.strerror}")
    found = dict[int, Holding]()
    for line, body in bodies.items():
        if "of" not in body:
            try:
                found[line] = decode(_whole(line, body, bodies))
            except Unreadable:
                unreadable.append(line)
    boxes = {one.owner.sandbox for one in found.values() if isinstance(one, Lease) and one.owner.sandbox}
    rule = Rule(None, frozenset(gone(boxes)))
    listed = tuple(Listed(line, one, rule.applies(bodies[line])) for line, one in found.items())
    return replace(about, listed=listed, unreadable=tuple(unreadable))


def unknown(directory: Path) -> str:
    """In words, which line of the leases is whole and not of this version; empty if there is none.  A file that is no
    file of leases is damage."""
    path = f"{directory}/{LEASES}"
    with suppress(OSError):
        bodies, _ = _bodies(path, first=0)
        schema = bodies.pop(0, {}).get("schema", SCHEMA)
        if schema != SCHEMA:  # guard: schema
            return f"{path} has schema {schema!r}, and this version reads {SCHEMA}"
        for line, body in bodies.items():
            if "of" not in body:
                with suppress(Unreadable):
                    whole = _whole(line, body, bodies)
                    try:
                        decode(whole)
                    except Unreadable as e:
                        return f"{path}: line {line} is of another version ({e})"
    return ""


def _quarantined(directory: Path) -> tuple[str, ...]:
    folder = directory / QUARANTINE
    return tuple(sorted(os.listdir(folder))) if folder.is_dir() else ()


def _bodies(path: str, first: int = 1) -> tuple[dict[int, Json], list[int]]:
    """What each line says from the ``first`` on, and the lines that cannot be read.  Raises OSError."""
    bodies, unreadable = dict[int, Json](), list[int]()
    file = Lines(path, reading(path))
    try:
        for line, data in file.each(file.count()):
            try:
                body = from_line(data) if line >= first else None
                if body is not None:
                    bodies[line] = body
            except Unreadable:
                unreadable.append(line)
    finally:
        file.close()
    return bodies, unreadable


def _whole(line: int, head: Json, bodies: dict[int, Json]) -> Json:
    parts, at = [head], link(head, "next", 0)
    while at:
        if bodies.get(at, {}).get("of") != line or len(parts) > len(bodies):
            raise Unreadable(f"line {at} is no part of {line}")
        parts.append(bodies[at])
        at = link(parts[-1], "next", 0)
    return joined(parts)
