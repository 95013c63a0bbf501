"""Rebuild the index of a network from its leases, and move unreadable lines to quarantine.

This is necessary after a crash during a change, after every boot, and after another program wrote to the files.  The
leases are authoritative, but a complete index of this boot holds their last state.  If a line differs from it, the
addresses in the index stay held until their key is deleted.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from base.protocol.errors import RecordUnreadable
from base.protocol.spec import Json
from base.state import durable
from ipam.ranges import Span
from ipam.stores.files import codec
from ipam.stores.files.codec import BLANK, LINE, Unreadable
from ipam.stores.files.index import Index
from ipam.stores.files.lines import HEAD, MOST_LINES, SCHEMA, Lines, open_file, place
from ipam.stores.files.pages import IndexCorrupt
from ipam.stores.files.table import LEASES, Table
from ipam.stores.holdings import Lost

_Addresses = list[tuple[int, int]]


@dataclass(frozen=True)
class _Claim:
    """The index's data about a line: the key's digest, the addresses, and the checksum of the lease."""

    digest: bytes
    addresses: _Addresses
    checksum: int

    def lost(self, ips: _Addresses, kept: str) -> Lost:
        return Lost(self.digest, tuple(Span(v, n, n).address(n) for v, n in ips), durable.boot_id(), kept)


@dataclass
class _Found:
    """The contents of the lines, by the first line of each lease."""

    leases: dict[int, tuple[bytes, _Addresses]] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)
    age: dict[int, int] = field(default_factory=dict)  # the lease's number among all that were ever written
    old: set[int] = field(default_factory=set)  # of an older boot
    rest: set[int] = field(default_factory=set)  # continuations
    damaged: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)  # of an older boot, and its key or addresses now belong to another
    parts: dict[int, Json] = field(default_factory=dict)  # all continuations, by line
    long: dict[int, Json] = field(default_factory=dict)  # first lines with continuations
    held: dict[int, _Claim] = field(default_factory=dict)  # to hold, though no line does


def repair(table: Table) -> None:
    """Make the table clean.  Raises OSError, IoFailure; RecordUnreadable after moving the whole file to quarantine."""
    # A killed process may not have synced its writes.  They must be durable, because the decisions here use them.
    table.lines.sync()
    known = _known(table.index) if table.index.of_this_boot else {}
    complete = table.index.is_complete
    with suppress(OSError):  # no room for a header: then this index counts for nothing anyway
        # If this process is killed half way, the next one starts from the same state.
        (table.index.mark_suspect if complete else table.index.mark_dirty)()
    _cut(table)
    why = _foreign(table.lines)
    if why:
        _start_again(table, known, why)
    found = _read(table.lines, known)
    _resolve(table, found, known if complete else {})
    _hold(found, known, complete=complete and max(found.age.values(), default=0) <= table.index.written)
    _keep(table, found)
    _rebuild(table, found)


def _known(index: Index) -> dict[int, _Claim]:
    """The data of every lease in an index that may be wrong."""
    addresses, known = dict[int, _Addresses](), dict[int, _Claim]()
    for version, number, line in index.pages.held():
        addresses.setdefault(line, []).append((version, number))
    for line, held in addresses.items():
        with suppress(IndexCorrupt):
            if index.is_head(line):
                known[line] = _Claim(index.digest(line), held, index.checksum(line))
    return known


def _cut(table: Table) -> None:
    """Truncate the file after the last possible line: the rest is not ours, and may take very long to read."""
    if (size := os.fstat(table.lines.fd).st_size) > MOST_LINES * LINE:
        os.ftruncate(table.lines.fd, MOST_LINES * LINE)
        table.log.append(f"{table.lines.path} had {size} bytes, truncated to the largest size, {MOST_LINES * LINE}")


def _foreign(file: Lines) -> str:
    """Why the file must not be read; empty for a file of leases, even a damaged one."""
    try:
        head = codec.from_line(file.read(0))
    except Unreadable:
        head = {}
    if head is not None and "schema" in head:
        schema = head["schema"]
        return "" if schema == SCHEMA else f"has schema {schema!r}, this version reads {SCHEMA}: a newer one wrote it"
    is_foreign = False
    for line, data in file.each(file.count()):
        try:
            if codec.from_line(data) is not None:
                return ""
        except Unreadable:
            is_foreign |= line > 0 or not HEAD.startswith(data)
    return "is not a file of leases" if is_foreign else ""


def _start_again(table: Table, known: dict[int, _Claim], why: str) -> None:
    path = table.lines.path
    kept = place(table.quarantine, LEASES)
    (table.directory / LEASES).rename(kept)
    durable.sync_directory(table.quarantine)
    table.lines.close()
    table.lines = Lines(path, open_file(path))
    _keep(table, _Found())
    _rebuild(table, _Found())
    for one in known.values():
        table.put(None, one.lost(one.addresses, f"{table.quarantine.name}/{kept.name}"))
    held = f", its {len(known)} leases stay held" if known else ""
    table.log.append(f"{path} {why}; moved to {kept}{held}")
    raise RecordUnreadable(f"{path} {why}; moved to {kept}{held}; check that, then repeat the call")


def _read(file: Lines, known: dict[int, _Claim]) -> _Found:
    found, boot, zeros = _Found(), durable.boot_id(), bytes(LINE)
    for line, data in file.each(max([file.count() - 1, *known]) + 1):
        if data == BLANK or not line:
            continue
        try:
            body = None if data == zeros else codec.from_line(data)
            if body is None:
                # The line is truncated or zeros.  A release leaves neither.
                if line in known:
                    found.damaged.add(line)
            elif "of" in body:
                codec.link(body, "of", 0), codec.link(body, "next", 0)
                found.parts[line] = body
            else:
                if "next" in body:
                    codec.outline(body), codec.link(body, "next", 0)
                    found.long[line] = body
                else:
                    found.leases[line] = codec.outline(body)
                    found.checksums[line] = crc32(data)
                found.age[line] = codec.link(body, "n", 0)
                if body.get("boot", boot) != boot:
                    found.old.add(line)
        except Unreadable:
            found.damaged.add(line)
    return found


def _resolve(table: Table, found: _Found, known: dict[int, _Claim]) -> None:
    """Join leases of several lines, and decide between leases that claim the same key or address."""
    continued = dict[int, list[int]]()
    for line, head in found.long.items():
        bodies, at, lines = [head], head["next"], list[int]()
        while at in found.parts and found.parts[at]["of"] == line and at not in lines:
            lines.append(at)
            bodies.append(found.parts[at])
            at = bodies[-1].get("next", 0)
        if at:
            found.damaged.add(line)
        else:
            found.leases[line] = codec.outline(codec.joined(bodies))
            found.checksums[line] = crc32(b"".join(map(table.lines.read, (line, *lines))))
            found.age[line] = max(body.get("n", 0) for body in bodies)
            continued[line] = lines
    claimed = {claim.digest: (claim.checksum, line) for line, claim in known.items()}

    def order(line: int) -> tuple[bool, bool, bool, int, int]:
        """The newest lease first: one that a complete index has, and the original before a copy."""
        checksum, at = claimed.get(found.leases[line][0], (None, 0))
        return line in found.old, checksum != found.checksums[line], at != line, -found.age[line], line

    # If the power fails while an address moves from one lease to another, the disk may have both; both pods are gone.
    # Within one boot only a copied or restored line causes this, and even then no address may have two owners.
    keys, addresses_ = set[bytes](), set[tuple[int, int]]()
    for line in sorted(found.leases, key=order):
        digest, held = found.leases[line]
        if digest in keys or not addresses_.isdisjoint(held):
            (found.dead if line in found.old else found.damaged).add(line)
            del found.leases[line]
        else:
            keys.add(digest)
            addresses_.update(held)
    found.rest.update(part for line, parts in continued.items() if line not in found.dead for part in parts)


def _hold(found: _Found, known: dict[int, _Claim], *, complete: bool) -> None:
    """Hold the index's leases that no line has: those of damaged lines.

    ``complete``: the index was complete, and no lease is newer.  Then also hold those of every line that differs.
    """
    stands = {digest: found.checksums[line] for line, (digest, _) in found.leases.items()}
    for line, claim in known.items():
        if (complete and stands.get(claim.digest) != claim.checksum) or (
            not complete and line in found.damaged and claim.digest not in stands
        ):
            found.held[line] = claim
    if not complete:
        return
    keys = {claim.digest for claim in found.held.values()}
    addresses = {address for claim in found.held.values() for address in claim.addresses}
    for line, (digest, has) in list(found.leases.items()):
        if digest in keys or not addresses.isdisjoint(has):  # an old copy of a line
            found.damaged.add(line)
            del found.leases[line]


def _keep(table: Table, found: _Found) -> None:
    """Copy unreadable lines to quarantine, then replace them by the index's data, or by blanks."""
    file, damaged = table.lines, sorted(found.damaged)
    size = os.fstat(file.fd).st_size
    lines = [file.read(line) for line in damaged]
    kept = file.copy(lines, table.quarantine) if any(lines) else None
    stay = _put_held(table, found, f"{table.quarantine.name}/{kept.name}" if kept else "nowhere")
    for line in (found.damaged | found.dead) - found.leases.keys() - found.rest:
        file.write(line, BLANK)
    # Only now, because until here a truncated line must stay recognizable.
    for line in {*range(size // LINE, file.count())} - found.damaged - found.leases.keys() - found.rest:
        file.write(line, BLANK)
    file.write(0, HEAD)
    file.sync()
    durable.sync_directory(table.directory)
    if damaged or found.held:
        names = ", ".join(map(str, sorted({*damaged, *found.held})[:10]))
        table.log.append(
            f"{len({*damaged, *found.held})} lines of {file.path} could not be read, or differed from what was written "
            f"({names}); {f'copied to {kept}' if kept else 'not copied, because they were truncated'}; "
            f"{stay} addresses stay held until their attachments are deleted"
        )


def _put_held(table: Table, found: _Found, kept: str) -> int:
    """Write lines for the leases that only the index has; return the number of addresses."""
    given = {address for _, held in found.leases.values() for address in held}
    used, stay = {*found.leases, *found.rest, *found.held}, 0
    free = (line for line in range(1, MOST_LINES) if line not in used)
    for line, claim in sorted(found.held.items()):
        ips = [address for address in claim.addresses if address not in given]
        at = next(free) if line in found.leases or line in found.rest else line
        parts = [body] if codec.to_line_if_it_fits(body := codec.encode(claim.lost(ips, kept))) else codec.split(body)
        more = [next(free) for _ in parts[1:]]
        lines = [at, *more]
        for number, data in reversed([*zip(lines, codec.to_lines(parts, lines), strict=True)]):
            table.lines.write(number, data)
        found.leases[at] = claim.digest, ips
        found.checksums[at] = crc32(b"".join(map(table.lines.read, lines)))
        found.rest.update(more)
        stay += len(ips)
    return stay


def _rebuild(table: Table, found: _Found) -> None:
    def held() -> Iterator[tuple[int, bytes, int, _Addresses]]:
        for line, (digest, addresses) in found.leases.items():
            yield line, digest, found.checksums[line], addresses
        for line in found.rest:
            yield line, b"", 0, []

    file, index = table.lines, table.index
    for line in found.parts.keys() - found.rest - found.leases.keys():
        file.write(line, BLANK)
    index.written = max([index.written, *found.age.values()])
    try:
        index.rebuild(file.count(), held())
        table.mark_clean()
    except OSError:
        # The disk is full.  With an index in memory, this call can still free leases.
        index.close()
        table.index = Index()
        table.index.written, table.index.last = index.written, index.last
        table.index.rebuild(file.count(), held())
        table.mark_clean()
