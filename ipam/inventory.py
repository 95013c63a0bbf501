"""What the networks of this node hold, for people: a look that takes no lock and changes nothing."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cni.protocol.errors import IoFailure
from cni.protocol.result import Address
from cni.protocol.spec import Json
from ipam.ranges import Span, count
from ipam.stores import Gone, Sandbox
from ipam.stores.files.lease import Entry, Kept, Lease, Lost, Unreadable, entry, joined, link, unseal
from ipam.stores.files.ranges import parsed
from ipam.stores.files.ranges import read as read_ranges
from ipam.stores.files.slots import QUARANTINE, Slots, reading
from ipam.stores.files.stale import Rule
from ipam.stores.files.table import LEASES

# What is not free: a pod's; a dead one's; kept back after its release, from all or all but one; another host's on the
# link; perhaps still used by the pod that had it; nobody knows whose.
STATES: Final = ("held", "dead", "cooling", "sticky", "conflict", "doubtful", "unreadable")


@dataclass
class Network:
    """One network: who holds what, by line; ``dead`` are those lines whose holders provably live no more."""

    directory: Path
    entries: dict[int, Entry] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()
    unreadable: list[int] = field(default_factory=list)
    sets: list[tuple[Span, ...]] = field(default_factory=list)
    problem: str = ""  # why the leases could not be looked at

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def quarantined(self) -> list[str]:
        folder = self.directory / QUARANTINE
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    @property
    def leases(self) -> Iterator[tuple[int, Lease]]:
        return ((slot, one) for slot, one in self.entries.items() if isinstance(one, Lease))

    def state(self, slot: int) -> str:
        """In a word."""
        match self.entries[slot]:
            case Lost():
                return "unreadable"
            case Kept() if slot in self.dead:
                return "free"
            case Kept(sticky=sticky, mac=mac, boot=boot):
                return "sticky" if sticky else "conflict" if mac else "doubtful" if boot else "cooling"
            case Lease():
                return "dead" if slot in self.dead else "held"

    def pools(self) -> list[Json]:
        """Of each range set the addresses by state, and at last what is held outside of all; sizes may be huge."""
        rest = {address: self.state(slot) for slot, one in self.entries.items() for address in one.ips}
        pools = list[Json]()
        for spans in self.sets:
            inside = {address: state for address, state in rest.items() if any(address in span for span in spans)}
            rest = {address: state for address, state in rest.items() if address not in inside}
            size, free = count(spans), sum(state == "free" for state in inside.values())
            about: Json = {"ranges": [str(span) for span in spans], "size": size, **_counted(inside)}
            pools.append(about | {"free": size - len(inside) + free})
        rest = {address: state for address, state in rest.items() if state != "free"}
        if rest or not self.sets:
            pools.append({"ranges": [], "size": None, **_counted(rest), "free": None})
        return pools


def networks(data_dir: Path, gone: Gone, names: Sequence[str] = ()) -> list[Network]:
    """Those of that name, else all.  Raises IoFailure."""
    try:
        found = sorted(path.parent for path in data_dir.glob(f"*/{LEASES}"))
        if not found and data_dir.exists():
            os.listdir(data_dir)  # glob is silent about what it may not see
        missing = set(names) - {directory.name for directory in found}
        if missing:
            raise IoFailure(f"no network {', '.join(sorted(missing))} in {data_dir}; see: hpn ipam show")
        return [_network(directory, gone) for directory in found if not names or directory.name in names]
    except OSError as e:
        raise IoFailure(f"reading {e.filename or data_dir}: {e.strerror}; it is for root") from e


def _network(directory: Path, gone: Gone) -> Network:
    network = Network(directory, sets=[tuple(map(parsed, spans)) for spans in read_ranges(directory)])
    bodies = dict[int, Json]()
    path = f"{directory}/{LEASES}"
    try:
        slots = Slots(path, reading(path))
    except OSError as e:
        network.problem = f"{path}: {e.strerror}"
        return network
    try:
        for slot, line in slots.lines(slots.size()):
            try:
                body = unseal(line) if slot else None
                if body is not None:
                    bodies[slot] = body
            except Unreadable:
                network.unreadable.append(slot)
    finally:
        slots.close()
    for slot, body in bodies.items():
        if "of" not in body:
            try:
                network.entries[slot] = entry(_whole(slot, body, bodies))
            except Unreadable:
                network.unreadable.append(slot)
    boxes = {one.owner.sandbox for _, one in network.leases if one.owner.sandbox}
    rule = Rule(None, frozenset[Sandbox](gone(boxes)))
    network.dead = frozenset(slot for slot in network.entries if rule.applies(bodies[slot]))
    return network


def _whole(slot: int, head: Json, bodies: dict[int, Json]) -> Json:
    parts, at = [head], link(head, "next", 0)
    while at:
        if bodies.get(at, {}).get("of") != slot or len(parts) > len(bodies):
            raise Unreadable(f"line {at} is no part of {slot}")
        parts.append(bodies[at])
        at = link(parts[-1], "next", 0)
    return joined(parts)


def _counted(states: dict[Address, str]) -> Json:
    counts = Counter(states.values())
    return {state: counts[state] for state in STATES}
