"""Which nodes have the same leaves, and which leaf each rail has there; pure.

A group is a pod of the fabric: its nodes have their rails at the same leaves.  A node with one wrong cable is in the
group that has at least half of the node's leaves.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from base.kernel.sysfs import natural

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wire:
    """A PF of a node, and the switch port at the other end of its cable.

    - ``rail``: the rail's number, or else the PF's name, which is that of the rail on the other nodes too.
    - ``leaf``, ``port``: empty if no neighbor is known.
    - ``vlan``, ``max_frame`` (bytes), ``speed`` (Gb/s): 0 if unknown.
    """

    node: str
    rail: str
    pf: str
    leaf: str = ""
    port: str = ""
    vlan: int = 0
    max_frame: int = 0
    speed: int = 0


@dataclass(frozen=True)
class LeafGroup:
    """The nodes with the same leaves: all of their wires with a neighbor."""

    leaves: frozenset[str]
    wires: tuple[Wire, ...]

    @cached_property
    def nodes(self) -> Sequence[str]:
        return sorted({one.node for one in self.wires}, key=natural)

    @cached_property
    def by_rail(self) -> Mapping[str, Sequence[Wire]]:
        """The wires of each rail, in the order of the rails."""
        found = defaultdict[str, list[Wire]](list)
        for one in self.wires:
            found[one.rail].append(one)
        return {rail: found[rail] for rail in sorted(found, key=natural)}

    @cached_property
    def expected(self) -> Mapping[str, str]:
        """The leaf at which more than half of a rail's nodes are; no entry without one."""
        found = {rail: majority(one.leaf for one in wires) for rail, wires in self.by_rail.items()}
        return {rail: leaf for rail, leaf in found.items() if leaf}


def majority(values: Iterable[T]) -> T | None:
    """The value that more than half have; None if there is none."""
    counts = Counter(values)
    return next((value for value, count in counts.most_common(1) if 2 * count > counts.total()), None)


def grouped(wires: Iterable[Wire]) -> list[LeafGroup]:
    """The groups, the largest first.  A node without any neighbor is in none."""
    of_node = defaultdict[str, list[Wire]](list)
    for one in wires:
        if one.leaf:
            of_node[one.node].append(one)
    nodes = defaultdict[frozenset[str], list[str]](list)
    for node, theirs in of_node.items():
        nodes[frozenset(one.leaf for one in theirs)].append(node)
    members = defaultdict[frozenset[str], list[Wire]](list)
    # The most common sets come first, because a wrong cable is rarer than a right one.
    for leaves in sorted(nodes, key=lambda one: (-len(nodes[one]), -len(one), sorted(one))):
        members[_home(leaves, members)] += (one for node in nodes[leaves] for one in of_node[node])
    made = [LeafGroup(leaves, tuple(theirs)) for leaves, theirs in members.items()]
    return sorted(made, key=lambda one: (-len(one.nodes), sorted(one.leaves)))


def _home(leaves: frozenset[str], groups: Iterable[frozenset[str]]) -> frozenset[str]:
    """The first of the groups that have the most of these leaves, if that is half of them; else the leaves, as a new
    group."""
    best = max(groups, key=lambda one: len(one & leaves), default=leaves)
    return best if 2 * len(best & leaves) >= len(leaves) else leaves


def in_order(wires: Iterable[Wire]) -> Iterator[Wire]:
    """By node and rail."""
    yield from sorted(wires, key=lambda one: (natural(one.node), natural(one.rail)))
