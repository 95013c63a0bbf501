"""What differs from the other nodes: cables at another leaf, missing neighbors, unequal ports; pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from base.protocol.spec import Json
from base.table import abridged
from ctl.fabric.wiring.groups import LeafGroup, Wire, in_order, majority

_NAMED: Final = 4  # nodes that one sentence names
# A wire's number, with its unit and the remedy if it differs.
_NUMBERS: Final = {
    "speed": ("a speed of {} Gb/s", "check its cable, its transceivers, and the speed of the port"),
    "max_frame": ("frames of at most {} bytes", "set the MTU of the port"),
    "vlan": ("VLAN {}", "correct the VLAN of the port"),
}


@dataclass(frozen=True)
class Miswired:
    """A finding.

    - ``kind``: "exchanged", "misplaced", "undecided", "missing", "silent", "speed", "max_frame", "vlan" or "firmware".
    - ``node``: empty if it concerns several.
    - ``evidence``: a phrase with the ports.
    """

    kind: str
    node: str
    rails: tuple[str, ...]
    evidence: str
    remedy: str

    @property
    def text(self) -> str:
        return f"{self.evidence}; {self.remedy}"

    def to_json(self) -> Json:
        kind = {"max_frame": "maxFrame"}.get(self.kind, self.kind)
        return {"kind": kind, "node": self.node, "rails": list(self.rails), "text": self.text}


def in_cluster(wires: Sequence[Wire], groups: Iterable[LeafGroup]) -> Iterator[Miswired]:
    """The findings about all nodes, whose groups these are."""
    for group in groups:
        yield from _undecided(group)
        yield from _elsewhere(group)
        for rail, theirs in group.by_rail.items():
            yield from _unequal(theirs, f"of the nodes with rail {rail} at these leaves")
    yield from _missing(wires)


def on_node(wires: Sequence[Wire]) -> Iterator[Miswired]:
    """The findings about one node: its numbered rails compared with each other.  Another NIC may have any port."""
    rails = [one for one in wires if one.rail.isdecimal()]
    heard = [one for one in rails if one.leaf]
    yield from (_without(one) for one in rails if heard and not one.leaf)
    yield from _unequal(heard, "of this node's rails", numbers=("speed", "max_frame"))


def _elsewhere(group: LeafGroup) -> Iterator[Miswired]:
    """The wires at another leaf than most of their rail; two that have each other's are one finding."""
    wrong = defaultdict[str, list[Wire]](list)
    for rail, leaf in group.expected.items():
        for one in group.by_rail[rail]:
            if one.leaf != leaf:
                wrong[one.node].append(one)
    for theirs in wrong.values():
        left = list(in_order(theirs))
        for one, other in combinations(left.copy(), 2):
            if one in left and other in left and _are_exchanged(one, other, group.expected):
                left.remove(one)
                left.remove(other)
                yield _exchanged(one, other)
        for one in left:
            right = group.expected[one.rail]
            count = sum(1 for each in group.by_rail[one.rail] if each.leaf == right)
            evidence = (
                f"{_title(one)} is at {_port(one)}, and {count} of {len(group.by_rail[one.rail])} nodes have this rail "
                f"at {right}"
            )
            yield Miswired("misplaced", one.node, (one.rail,), evidence, "move its cable there")


def _are_exchanged(one: Wire, other: Wire, expected: Mapping[str, str]) -> bool:
    return one.leaf == expected[other.rail] and other.leaf == expected[one.rail]


def _exchanged(one: Wire, other: Wire) -> Miswired:
    evidence = (
        f"{one.node}: rails {one.rail} and {other.rail} are exchanged: {one.pf} is at {_port(one)}, where rail "
        f"{other.rail} belongs, and {other.pf} at {_port(other)}, where rail {one.rail} belongs"
    )
    return Miswired("exchanged", one.node, (one.rail, other.rail), evidence, "exchange their cables")


def _undecided(group: LeafGroup) -> Iterator[Miswired]:
    for rail, wires in group.by_rail.items():
        if rail not in group.expected:
            at = defaultdict[str, list[str]](list)
            for one in in_order(wires):
                at[one.leaf].append(one.node)
            parts = [f"{leaf} ({abridged(nodes, _NAMED)})" for leaf, nodes in sorted(at.items())]
            evidence = f"rail {rail}: no leaf has most of its nodes: {', '.join(parts)}"
            yield Miswired("undecided", "", (rail,), evidence, "compare them with the cabling plan")


def _unequal(wires: Sequence[Wire], of: str, numbers: Iterable[str] = tuple(_NUMBERS)) -> Iterator[Miswired]:
    """The wires with another number than most, of those whose number is known."""
    for name in numbers:
        known = [one for one in wires if getattr(one, name)]
        right = majority(getattr(one, name) for one in known)
        phrase, remedy = _NUMBERS[name]
        for one in in_order(known if right else ()):
            if (its := getattr(one, name)) != right:
                count = sum(1 for each in known if getattr(each, name) == right)
                evidence = (
                    f"{_title(one)} at {_port(one)} has {phrase.format(its)}, and {count} of {len(known)} {of} have "
                    f"{phrase.format(right)}"
                )
                yield Miswired(name, one.node, (one.rail,), evidence, remedy)


def _missing(wires: Iterable[Wire]) -> Iterator[Miswired]:
    """Wires without a neighbor, of rails that have one elsewhere; a node without any is one finding."""
    all_wires = list(in_order(wires))
    heard, of_node = {one.rail for one in all_wires if one.leaf}, Counter(one.node for one in all_wires if one.leaf)
    silent = Counter(one.node for one in all_wires if one.node not in of_node and one.rail in heard)
    for node, count in silent.items():
        remedy = f"set lldp: true in its device file; then see hpn devices on {node}"
        yield Miswired("silent", node, (), f"{node}: no neighbor of its rails ({count}) is known", remedy)
    yield from (_without(one) for one in all_wires if one.node in of_node and not one.leaf and one.rail in heard)


def _without(one: Wire) -> Miswired:
    remedy = f"check its cable and LLDP at the switch; then see hpn devices on {one.node}"
    return Miswired("missing", one.node, (one.rail,), f"{_title(one)} has no neighbor, and others have one", remedy)


def _title(one: Wire) -> str:
    return f"{one.node}: rail {one.rail} ({one.pf})" if one.pf != one.rail else f"{one.node}: rail {one.rail}"


def _port(one: Wire) -> str:
    return f"{one.leaf} {one.port}"
