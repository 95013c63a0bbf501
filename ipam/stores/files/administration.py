"""The operator's commands on a network's files: list, verify, and adopt the leases of another IPAM.

Listing takes no lock.  Verifying takes it and changes nothing.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from base.protocol.errors import InvalidConfig
from base.protocol.result import Address
from base.protocol.spec import Json
from ipam.ranges import Span
from ipam.stores import Gone
from ipam.stores.files.codec import Unreadable, decode, digest_of, from_line, joined, link
from ipam.stores.files.index import HEADER, Index
from ipam.stores.files.lines import QUARANTINE, SCHEMA, read_lines
from ipam.stores.files.pages import IndexCorrupt
from ipam.stores.files.ranges import parsed
from ipam.stores.files.ranges import read as read_ranges
from ipam.stores.files.releases import Rule
from ipam.stores.files.table import INDEX, LEASES, Table, TableBook
from ipam.stores.holdings import Contents, Holding, Lease, Listed

_SHOWN = 3
_Outline = tuple[bytes, list[tuple[int, int]]]


def networks(data_dir: Path) -> list[str]:
    """The networks with leases in a data directory, also those whose file was removed.  Raises OSError."""
    known = {path.parent.name for path in data_dir.glob(f"*/{INDEX}") if path.stat().st_size > HEADER}
    found = sorted(known | {path.parent.name for path in data_dir.glob(f"*/{LEASES}")})
    if not found and data_dir.exists():
        os.listdir(data_dir)  # raises where glob ignores a missing permission
    return found


def contents(directory: Path, gone: Gone) -> Contents:
    """All that a network holds.  Raises OSError if the quarantine cannot be read."""
    recorded = read_ranges(directory)
    sets, parents = tuple(tuple(map(parsed, one.spans)) for one in recorded), tuple(one.parent for one in recorded)
    about = Contents(directory.name, str(directory), sets=sets, parents=parents, quarantined=_quarantined(directory))
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
    """Describe the first intact line that only another version understands; empty if there is none.  A file without
    leases counts as damage."""
    path = f"{directory}/{LEASES}"
    with suppress(OSError):
        bodies, _ = _bodies(path, first=0)
        schema = bodies.pop(0, {}).get("schema", SCHEMA)
        if schema != SCHEMA:
            return f"{path} has schema {schema!r}, and this version reads {SCHEMA}"
        for line, body in bodies.items():
            if "of" not in body:
                with suppress(Unreadable):
                    whole = _whole(line, body, bodies)
                    try:
                        decode(whole)
                    except Unreadable as e:
                        return f"{path}: line {line} was written by another version ({e})"
    return ""


def _quarantined(directory: Path) -> tuple[str, ...]:
    folder = directory / QUARANTINE
    return tuple(sorted(os.listdir(folder))) if folder.is_dir() else ()


def _bodies(path: str, first: int = 1) -> tuple[dict[int, Json], list[int]]:
    """The bodies of the lines from ``first`` on, and the unreadable lines.  Raises OSError."""
    bodies, unreadable = dict[int, Json](), list[int]()
    for line, data in read_lines(path):
        try:
            body = from_line(data) if line >= first else None
            if body is not None:
                bodies[line] = body
        except Unreadable:
            unreadable.append(line)
    return bodies, unreadable


def _whole(line: int, head: Json, bodies: dict[int, Json]) -> Json:
    parts, at = [head], link(head, "next", 0)
    while at:
        if bodies.get(at, {}).get("of") != line or len(parts) > len(bodies):
            raise Unreadable(f"line {at} is not part of {line}")
        parts.append(bodies[at])
        at = link(parts[-1], "next", 0)
    return joined(parts)


def problems(table: Table) -> Iterator[str]:
    """Describe each inconsistency; the caller holds the lock.  Raises OSError."""
    heads, checksums, parts = dict[int, _Outline](), dict[int, int](), set[int]()
    for line, data in table.lines.each(table.lines.count()):
        try:
            body = from_line(data)
            if not line and (body is None or "schema" not in body):
                yield "line 0 does not identify a file of leases"
            elif line and body is not None and "of" not in body:
                held = table.read(line)
                heads[line], checksums[line] = held.outline, held.checksum
                parts.update(held.lines[1:])
        except Unreadable as e:
            yield f"line {line}: {e}"
    yield from _twice(heads)
    if table.is_clean:  # if not, as after every boot, the next call rebuilds it anyway
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
        yield f"index: {Span(version, number, number)} of line {line} is missing"
    for version, number, line in sorted(there - expected):
        yield f"index: it has {Span(version, number, number)} for line {line}, which does not hold it"
    for line, (digest, _) in heads.items():
        if index.find(digest) != line:
            yield f"index: line {line} is not found by its key"
        elif index.checksum(line) != checksums[line]:
            yield f"index: line {line} differs from the lease that it has there"
    free = index.free_lines()
    if wrong := set(free) & (heads.keys() | parts):
        yield f"index: lines {sorted(wrong)} are in use and count as free"
    if index.leases != len(heads):
        yield f"index: it counts {index.leases} leases, there are {len(heads)}"


def quarantined(directory: Path) -> Iterator[str]:
    """Describe the files in quarantine."""
    for path in sorted((directory / QUARANTINE).glob("*")):
        yield f"{path} holds unreadable leases; check it, then remove it"


def adopt(table: Table, leases: Sequence[Lease], *, dry_run: bool) -> list[str]:
    """Hold the leases; return a description of each collision, and then nothing has changed.  Raises OSError."""
    here = {lease.owner.key: table.find(digest_of(lease)) for lease in leases}
    collisions = list(given_twice(leases))
    for lease in leases:
        held = here[lease.owner.key]
        if held and set(held.holding.ips) != set(lease.ips):
            has = ", ".join(map(str, held.holding.ips))
            collisions.append(f"{lease.owner.key} holds {has} here and {', '.join(map(str, lease.ips))} there")
        book = TableBook(table, held.holding.ips if held else ())
        holders = ((ip, book.holder(ip)) for ip in lease.ips if ip not in book.mine)
        collisions += [f"{ip} is held by {holder} here, by {lease.owner.key} there" for ip, holder in holders if holder]
    if not collisions and not dry_run:
        for lease in leases:
            held = here[lease.owner.key]
            if held is None:
                table.put(None, lease)
            elif lease.owner.sandbox and isinstance(held.holding, Lease) and not held.holding.owner.sandbox:
                # An import before found no process of the container.
                table.put(held, replace(held.holding, owner=replace(held.holding.owner, sandbox=lease.owner.sandbox)))
    return collisions


def given_twice(leases: Sequence[Lease]) -> Iterator[str]:
    """Describe each address that several of the leases have."""
    owners = dict[Address, list[str]]()
    for lease in leases:
        for ip in lease.ips:
            owners.setdefault(ip, []).append(str(lease.owner.key))
    return (f"{ip} belongs to {' and '.join(keys)} there" for ip, keys in owners.items() if len(keys) > 1)


def refuse_host_locals(directory: Path, names: Sequence[str]) -> None:
    """Raise InvalidConfig if a file's name is an address: the directory is host-local's dataDir too, and one of its
    pods may use the address.

    host-local's other files, its lock and ``last_reserved_ip.0``, prove no living pod.
    """
    addresses = sorted(filter(_is_address, names))
    if not addresses:
        return
    shown = ", ".join([*addresses[:_SHOWN], "..."] if len(addresses) > _SHOWN else addresses)
    raise InvalidConfig(
        f"{directory} has files of host-local for {len(addresses)} addresses ({shown}), so hpn allocates none there; "
        "import them: "
        f"hpn ipam import --from host-local {directory} --data-dir {directory.parent}"
    )


def _is_address(name: str) -> bool:
    """Whether host-local uses this file name for an address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
