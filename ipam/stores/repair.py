"""Make the index of a network anew from its leases, and set aside what of them cannot be read.

Needed after a crash in the middle of a change, after every boot, and after any hand but ours was at the file.  Of a
lease that cannot be read, an index of this boot may still say whose it is and which addresses it has; these stay held.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cni import durable
from cni.errors import RecordUnreadable
from cni.result import Address
from cni.spec import Json
from ipam.ranges import Span
from ipam.stores.index import Index
from ipam.stores.lease import BLANK, LINE, Lost, Unreadable, holdings, joined, sealed, unseal
from ipam.stores.slots import HEAD, SCHEMA, Slots
from ipam.stores.table import LEASES, QUARANTINE, Table


@dataclass
class _Found:
    """What the lines say, by the line each lease begins at."""

    leases: dict[int, tuple[bytes, list[tuple[int, int]]]] = field(default_factory=dict)
    old: set[int] = field(default_factory=set)  # of an older boot
    rest: set[int] = field(default_factory=set)  # continuations
    damaged: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)  # old, and of what another has
    parts: dict[int, Json] = field(default_factory=dict)  # continuations that no lease has claimed yet
    long: dict[int, Json] = field(default_factory=dict)  # leases that have some


def repair(table: Table) -> None:
    """Leave the table true.  Raises OSError, IoFailure; RecordUnreadable where the whole file had to be set aside."""
    # What a process that was killed wrote, and did not sync, is to be as lasting as all that is decided on it here.
    table.slots.sync()
    stat = os.fstat(table.slots.fd)
    lost = _known(table) if table.index.is_of(stat) else {}
    with suppress(OSError):  # no room for a header: then there is none to be trusted
        table.index.distrust()
    why = _foreign(table.slots)
    if why:
        _start_again(table, lost, why)
    found = _look(table.slots, lost)
    _resolve(found)
    _keep(table, found, lost)
    _rebuild(table, found)


def _known(table: Table) -> dict[int, Lost]:
    """What an index that may be wrong says of every lease."""
    ips = dict[int, list[Address]]()
    for version, number, slot in table.index.held():
        ips.setdefault(slot, []).append(Span(version, number, number).address(number))
    boot = durable.boot_id()
    return {
        slot: Lost(table.index.digest(slot), tuple(addresses), boot, "")
        for slot, addresses in ips.items()
        if table.index.is_head(slot)
    }


def _foreign(slots: Slots) -> str:
    """Why nothing in the file is to be read; empty if it is ours, or was before it was damaged."""
    try:
        head = unseal(slots.read(0))
    except Unreadable:
        head = {}
    if head is not None and "schema" in head:
        schema = head["schema"]
        return "" if schema == SCHEMA else f"has schema {schema!r}, this version reads {SCHEMA}: a newer one wrote it"
    stranger = False
    for slot, line in slots.lines(slots.size()):
        try:
            if unseal(line) is not None:
                return ""
        except Unreadable:
            stranger |= slot > 0 or not HEAD.startswith(line)
    return "is not a file of leases" if stranger else ""


def _start_again(table: Table, lost: dict[int, Lost], why: str) -> None:
    durable.directory(table.quarantine)
    path = table.slots.path
    kept = next(t for n in range(1_000_000) if not (t := table.quarantine / f"{LEASES}.{n}").exists())
    (table.directory / LEASES).rename(kept)
    durable.sync_directory(table.quarantine)
    table.slots.close()
    table.slots = Slots(path)
    _keep(table, _Found(), {})
    _rebuild(table, _Found())
    for one in lost.values():
        table.put(None, Lost(one.digest, one.ips, one.boot, f"{QUARANTINE}/{kept.name}"))
    held = f", {len(lost)} leases that it had stay held" if lost else ""
    table.log.append(f"{path} {why}; moved to {kept}{held}")
    raise RecordUnreadable(f"{path} {why}; moved to {kept}{held}; look at that, then repeat the call")


def _look(slots: Slots, lost: dict[int, Lost]) -> _Found:
    found, boot = _Found(), durable.boot_id()
    for slot, line in slots.lines(max([slots.size() - 1, *lost]) + 1):
        if line == BLANK or not slot:
            continue
        try:
            body = unseal(line)
            if body is None:
                # Cut off, or zeros.  Nobody makes a line that by releasing a lease.
                if slot in lost:
                    found.damaged.add(slot)
            elif "of" in body:
                found.parts[slot] = body
            else:
                if "next" in body:
                    holdings(body)
                    found.long[slot] = body
                else:
                    found.leases[slot] = holdings(body)
                if body.get("boot", boot) != boot:
                    found.old.add(slot)
        except Unreadable:
            found.damaged.add(slot)
    return found


def _resolve(found: _Found) -> None:
    """Put together what has several lines, and settle what two claim."""
    continued = dict[int, list[int]]()
    for slot, head in found.long.items():
        bodies, at, lines = [head], head["next"], list[int]()
        while at in found.parts and found.parts[at]["of"] == slot and at not in lines:
            lines.append(at)
            bodies.append(found.parts[at])
            at = bodies[-1].get("next", 0)
        if at:
            found.damaged.add(slot)
        else:
            found.leases[slot] = holdings(joined(bodies))
            continued[slot] = lines
    # Where the power went while one was released and another given what it had, the disk may have both: the pods of
    # either are gone.  In one boot by nothing that happens here; but who copies a line must not have one address given
    # twice.
    keys, addresses_ = set[bytes](), set[tuple[int, int]]()
    for slot in sorted(found.leases, key=found.old.__contains__):
        digest, held = found.leases[slot]
        if digest in keys or not addresses_.isdisjoint(held):
            (found.dead if slot in found.old else found.damaged).add(slot)
            del found.leases[slot]
        else:
            keys.add(digest)
            addresses_.update(held)
    found.rest.update(line for slot, lines in continued.items() if slot not in found.dead for line in lines)


def _keep(table: Table, found: _Found, lost: dict[int, Lost]) -> None:
    """Copy what cannot be read, then put in its place what the index knew, or nothing."""
    slots, damaged = table.slots, sorted(found.damaged)
    whole = os.fstat(slots.fd).st_size // LINE
    lines = [slots.read(slot) for slot in damaged]
    kept = slots.copy(lines, table.quarantine) if any(lines) else None
    given = {address for _, held in found.leases.values() for address in held}
    keys = {digest for digest, _ in found.leases.values()}
    stay = 0
    for slot in damaged:
        line, one = BLANK, lost.get(slot)
        if one and one.digest not in keys:
            ips = tuple(a for a in one.ips if (a.version, int(a)) not in given)
            body = Lost(one.digest, ips, one.boot, f"{QUARANTINE}/{kept.name}" if kept else "nowhere").body()
            if said := sealed(body):
                line, stay = said, stay + len(ips)
                found.leases[slot] = holdings(body)
        slots.write(slot, line)
    for slot in found.dead:
        slots.write(slot, BLANK)
    # After these, so that until then every line that was cut off is known as such.
    for slot in {*range(whole, slots.size())} - found.damaged:
        slots.write(slot, BLANK)
    slots.write_head()
    slots.sync()
    durable.sync_directory(table.directory)
    if damaged:
        names = ", ".join(map(str, damaged[:10]))
        table.log.append(
            f"{len(damaged)} lines of {slots.path} could not be read ({names}); kept in "
            f"{kept or 'nothing, for they were cut off'}; {stay} addresses stay held until what has them is deleted"
        )


def _rebuild(table: Table, found: _Found) -> None:
    def held() -> Iterator[tuple[int, bytes, list[tuple[int, int]]]]:
        for slot, (digest, addresses) in found.leases.items():
            yield slot, digest, addresses
        for slot in found.rest:
            yield slot, b"", []

    slots = table.slots
    for slot in found.parts.keys() - found.rest:
        slots.write(slot, BLANK)
    try:
        table.index.make_anew(slots.size(), held())
        table.trust()
    except OSError:
        # No room; but leases are freed in place, by whatever index: this call's own, then.
        table.index.close()
        table.index = Index("")
        table.index.make_anew(slots.size(), held())
        table.trust()
