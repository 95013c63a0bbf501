"""Count the free addresses of each block of this node, for each range set.  Pure: the caller counts the held ones."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from base.protocol.result import Network
from ipam.cluster.node_blocks import HELD, NodeBlocks, OwnedBlock
from ipam.cluster.rules import ownership
from ipam.pool import Pool, Range, RangeSet
from ipam.ranges import Span, common, count, whole
from ipam.stores import Ranges
from ipam.stores.holdings import Contents, Kept

# Counts the addresses of a span that are not free.
CountHeld = Callable[[Span], int]


@dataclass(frozen=True)
class Counted:
    """``used``: the held addresses of each block, by index.  ``free``: for each range set, the free addresses of each
    block."""

    used: dict[int, int]
    free: tuple[dict[int, int], ...]


def counted(mine: NodeBlocks, known: Pool, held: CountHeld) -> Counted:
    """Count used and free addresses; ``known`` is the network's pool."""
    used, free = dict[int, int](), tuple(dict[int, int]() for _ in known.sets)
    for block in mine.blocks:
        addresses = list(spans(mine, block.index))
        used[block.index] = sum(map(held, addresses))
        for of, ranges in zip(free, known.sets, strict=True) if block.state == HELD else ():
            inside = common(addresses, ranges.all_spans)
            of[block.index] = count(inside) - sum(map(held, inside))
    return Counted(used, free)


def spans(mine: NodeBlocks, index: int) -> Iterator[Span]:
    """Yield the addresses of a block, in every subnet that reaches that far."""
    for subnet in map(whole, _subnets(mine)):
        first = subnet.first + index * mine.size
        if first <= subnet.last:
            yield Span(subnet.version, first, min(first + mine.size - 1, subnet.last))


def _subnets(mine: NodeBlocks) -> list[Network]:
    """Return the subnets; of several with one first address, the widest."""
    known = sorted(map(ip_network, mine.subnets), key=lambda subnet: -subnet.prefixlen)
    return list({subnet.network_address: subnet for subnet in known}.values())


def without_leases(mine: NodeBlocks, indexes: Collection[int], held: CountHeld) -> list[OwnedBlock]:
    """Return those blocks with these indexes in which no address is held; none if their addresses are unknown."""
    there = [(block, [*spans(mine, block.index)]) for block in mine.blocks if block.index in indexes]
    return [block for block, addresses in there if addresses and not any(map(held, addresses))]


def needing_blocks(known: Pool) -> Pool:
    """Return the pool without the sets whose addresses are all derived."""
    return Pool(tuple(s for s in known.sets if not all(r.is_derived for r in s.ranges)))


def pool(mine: NodeBlocks, sets: Ranges) -> Pool:
    """Return the network's pool as this node knows it without a configuration.

    ``sets`` are the ranges of the latest ADD.  Ranges that need no block are left out.
    """
    subnets, known = _subnets(mine), list[RangeSet]()
    for number, ranges in enumerate(sets):
        members = [
            (Range(f"ranges[{number}]", subnet, span.address(span.first), span.address(span.last)), (span,))
            for span in ranges
            for subnet in subnets
            if whole(subnet).covers(span)
        ]
        if members:
            known.append(RangeSet(f"ranges[{number}]", *map(tuple, zip(*members, strict=True))))
    return Pool(tuple(known))


def short(mine: NodeBlocks, known: Pool, held: CountHeld) -> tuple[RangeSet, ...]:
    """Return the sets of the pool in which this node has little room left."""
    have = counted(mine, known, held)
    return tuple(known.sets[place] for place in ownership.short(have.free, mine.giving, mine.size))


def room(have: Counted, mine: NodeBlocks) -> int:
    """Return how many more attachments this node has addresses for."""
    return ownership.room(have.free, mine.giving)


def held_in(contents: Contents) -> CountHeld:
    """Return a counter of the addresses that are not free in these contents, which were read without a lock."""
    listed = [one for one in contents.listed if not (isinstance(one.holding, Kept) and one.is_over)]
    numbers = dict[int, list[int]]()
    for address in (ip for one in listed for ip in one.holding.ips):
        numbers.setdefault(address.version, []).append(int(address))
    for of in numbers.values():
        of.sort()

    def count_held(span: Span) -> int:
        of = numbers.get(span.version, [])
        return bisect_right(of, span.last) - bisect_left(of, span.first)

    return count_held
