"""How many addresses each block of a node has free, of each range set.  Pure: the caller counts what is held."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from base.protocol.result import Network
from ipam.cluster.rules import ownership
from ipam.cluster.state.node_blocks import HELD, NodeBlocks
from ipam.pool import Pool, Range, RangeSet
from ipam.ranges import Span, common, count, whole
from ipam.stores import Ranges
from ipam.stores.holdings import Contents, Kept

# How many addresses of a span are not free.
CountHeld = Callable[[Span], int]


@dataclass(frozen=True)
class Counted:
    """By its index, how many addresses of each block are used; and of each range set, how many each has free."""

    used: dict[int, int]
    free: tuple[dict[int, int], ...]


def counted(mine: NodeBlocks, known: Pool, held: CountHeld) -> Counted:
    """``known`` is the network's pool."""
    used, free = dict[int, int](), tuple(dict[int, int]() for _ in known.sets)
    for block in mine.blocks:
        addresses = list(spans(mine, block.index))
        used[block.index] = sum(map(held, addresses))
        for of, ranges in zip(free, known.sets, strict=True) if block.state == HELD else ():
            inside = common(addresses, ranges.all_spans)
            of[block.index] = count(inside) - sum(map(held, inside))
    return Counted(used, free)


def spans(mine: NodeBlocks, index: int) -> Iterator[Span]:
    """The addresses that a block has, of every subnet that has any."""
    for subnet in map(whole, _subnets(mine)):
        first = subnet.first + index * mine.size
        if first <= subnet.last:
            yield Span(subnet.version, first, min(first + mine.size - 1, subnet.last))


def _subnets(mine: NodeBlocks) -> list[Network]:
    """Of those that begin at one address, which count as one, the widest."""
    known = sorted(map(ip_network, mine.subnets), key=lambda subnet: -subnet.prefixlen)
    return list({subnet.network_address: subnet for subnet in known}.values())


def needing_blocks(known: Pool) -> Pool:
    """The pool without sets whose addresses are made of MACs."""
    return Pool(tuple(s for s in known.sets if not all(r.eui64 for r in s.ranges)))


def pool(mine: NodeBlocks, sets: Ranges) -> Pool:
    """The pool of a network as far as this node knows it without a configuration: ``sets`` are its ranges as the latest
    ADD had them, and those that need no block are left out."""
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
    """The sets of the pool of which this node has little left."""
    have = counted(mine, known, held)
    return tuple(known.sets[place] for place in ownership.short(have.free, mine.giving, mine.size))


def room(have: Counted, mine: NodeBlocks) -> int:
    """How many attachments more this node has addresses for."""
    return ownership.room(have.free, mine.giving)


def held_in(contents: Contents) -> CountHeld:
    """What is not free, as it was read without a lock."""
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
