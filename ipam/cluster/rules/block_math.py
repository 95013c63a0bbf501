"""Cut ranges into blocks, and limit a pool to the blocks of one node.  Pure.

A block is a span of host numbers: addresses minus their subnet's first address.  All computation is on intervals, so a
/64 costs as much as a /24.  Addresses made from a MAC (eui64) need no block.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby, pairwise
from typing import Final

from base.protocol.errors import InvalidConfig
from base.protocol.result import Address
from ipam.pool import Pool, Rail, Range, RangeSet
from ipam.ranges import Span, common, count, joined, subtract, whole

# The "version" of a span of blocks' indexes, or of host numbers.
NUMBERS: Final = 0
# Host numbers of a subnet that form blocks, at most: JSON represents integers exactly up to here.
MOST: Final = 1 << 53
# Host numbers that a network can reserve, at most: a claim for a new name lists all of them.
_ASIDE: Final = 4096


def limited(pool: Pool, size: int, giving: Sequence[int], draining: Sequence[int] = ()) -> Pool:
    """Return the pool as a node may use it.

    New addresses come from the blocks ``giving``; an attachment with an address in a block ``draining`` keeps it.  Both
    hold indexes of blocks of that size.
    """
    blocks = [_numbers(index, size) for index in giving], [_numbers(index, size) for index in draining]
    each = [rail.sets for rail in pool.rails] or [pool.sets]
    return _with(pool, [[_set(s, *blocks) for s in sets] for sets in each])


def divided(pool: Pool, numbers: str) -> tuple[Pool, Pool]:
    """Split the pool into one without these host numbers ("256-511") and one with no other numbers.  Raises
    InvalidConfig."""
    found = re.fullmatch(r"([0-9]{1,15})-([0-9]{1,15})", numbers)
    span = Span(NUMBERS, *map(int, found.groups())) if found else None
    if not span or not 0 <= span.last - span.first < _ASIDE:
        raise InvalidConfig(
            f"ipam.cluster.sticky {numbers!r} is not a span of host numbers; write lowest-highest, as in 256-511, with "
            f"{_ASIDE} numbers at most"
        )
    each = [rail.sets for rail in pool.rails] or [pool.sets]
    within, without_it = ([[_cut(s, span, keep=keep) for s in sets] for sets in each] for keep in (True, False))
    inside, outside = _with(pool, within), _with(pool, without_it)
    if not candidates(inside.sets, 1):
        raise InvalidConfig(
            f"ipam.cluster.sticky {numbers!r}: none of these host numbers has an address to give in every range set; a "
            "host number is an address minus its subnet's first address"
        )
    return outside, inside


def block_of(sets: Sequence[RangeSet], size: int, address: Address) -> int | None:
    """Return the index of the address's block; None if no set can allocate the address, or it needs no block."""
    for s in sets:
        for r, spans in zip(s.ranges, s.usable, strict=True):
            if not r.is_derived and any(address in span for span in spans):
                return (int(address) - _base(r)) // size
    return None


def candidates(sets: Sequence[RangeSet], size: int) -> tuple[Span, ...]:
    """Return the indexes of the blocks with an address for each of the sets: ascending, disjoint spans."""
    each = [_blocks(s, size) for s in sets if any(not r.is_derived for r in s.ranges)]
    return reduce(common, each) if each else ()


def refuse(sets: Sequence[RangeSet], size: int) -> None:
    """Raise InvalidConfig if nodes cannot share the sets by blocks of that size."""
    for s in sets:
        if any(not r.is_derived for r in s.ranges) and (has := count(s.spans)) < size:
            raise InvalidConfig(
                f"ipam.cluster.blockSize {size}: {s.key} has {has} addresses, less than one block, and every node "
                "needs its own; give it more addresses, or choose a blockSize that leaves each node a block"
            )
    ordered = sorted((r for s in sets for r in s.ranges if not r.is_derived), key=lambda r: whole(r.subnet))
    # In this order, if any two overlap and begin at different addresses, then so do two neighbours.
    for low, high in pairwise(ordered):
        if low.subnet.overlaps(high.subnet) and _base(low) != _base(high):
            raise InvalidConfig(
                f"ipam.cluster: {high.key}.subnet {high.subnet} and {low.key}.subnet {low.subnet} overlap, so an "
                "address would have two host numbers; write one subnet for both, and bound each range by rangeStart "
                "and rangeEnd"
            )


def subnets(sets: Sequence[RangeSet]) -> tuple[str, ...]:
    """Return the subnets whose host numbers count, each once."""
    return tuple(dict.fromkeys(subnet for s in sets for subnet in s.subnets))


def nth(spans: Sequence[Span], number: int) -> int:
    """Return the index at that position among those in the spans, from 0; positions past the end wrap around."""
    left = number % count(spans)
    for span in spans:
        if left <= span.last - span.first:
            return span.first + left
        left -= span.last - span.first + 1
    raise AssertionError("the spans hold fewer indexes than counted")


def has(spans: Iterable[Span], index: int) -> bool:
    return any(span.first <= index <= span.last for span in spans)


def without(spans: Iterable[Span], indexes: Iterable[int]) -> tuple[Span, ...]:
    # A span per run, because a list of all blocks has thousands of indexes and few runs.
    runs = groupby(enumerate(sorted({*indexes})), lambda one: one[1] - one[0])
    each = [[index for _, index in run] for _, run in runs]
    holes = [Span(NUMBERS, run[0], run[-1]) for run in each]
    return tuple(part for span in spans for part in subtract(span, holes))


def _with(pool: Pool, each: Sequence[Sequence[RangeSet]]) -> Pool:
    """Return the pool with these sets: one list for each rail, or one for a pool without rails."""
    rails = tuple(Rail(r.key, r.by, r.value, tuple(sets)) for r, sets in zip(pool.rails, each, strict=False))
    return replace(pool, rails=rails, sets=tuple(s for sets in each for s in sets))


def _cut(s: RangeSet, numbers: Span, *, keep: bool) -> RangeSet:
    """Return the set with these numbers only, or without them; an eui64 range has no numbers and stays."""

    def cut(r: Range, usable: Sequence[Span]) -> tuple[Span, ...]:
        inside = _addresses(r, [numbers])
        if r.is_derived:
            return tuple(usable)
        return common(usable, inside) if keep else tuple(part for span in usable for part in subtract(span, inside))

    return RangeSet(s.key, s.ranges, tuple(map(cut, s.ranges, s.usable)))


def _set(s: RangeSet, giving: Sequence[Span], draining: Sequence[Span]) -> RangeSet:
    pairs = [_range(r, spans, giving, draining) for r, spans in zip(s.ranges, s.usable, strict=True)]
    # dataclasses.replace would take as long as the rest of this function.
    return RangeSet(s.key, tuple(r for r, _ in pairs), tuple(spans for _, spans in pairs))


def _range(
    r: Range, usable: Sequence[Span], giving: Sequence[Span], draining: Sequence[Span]
) -> tuple[Range, tuple[Span, ...]]:
    """Return the range, and the addresses that it can allocate."""
    if r.is_derived:
        return r, tuple(usable)
    kept = _addresses(r, draining) if draining else ()
    left = common(usable, (*_addresses(r, giving), *kept))
    # As reserved, so only a request gets them: an attachment with an address there keeps it.
    return replace(r, reserved=(*r.reserved, *kept)) if kept else r, left


def _addresses(r: Range, numbers: Sequence[Span]) -> tuple[Span, ...]:
    """Return the addresses with these host numbers; some may lie beyond the range's subnet."""
    version, base = r.subnet.version, _base(r)
    return tuple(Span(version, base + n.first, base + n.last) for n in numbers)


def _numbers(index: int, size: int) -> Span:
    return Span(NUMBERS, index * size, (index + 1) * size - 1)


def _blocks(s: RangeSet, size: int) -> tuple[Span, ...]:
    """Return the indexes of the blocks with an address of the set that needs no request by the pod."""
    found = list[Span]()
    for r, spans in zip(s.ranges, s.usable, strict=True):
        if r.is_derived:
            continue
        free = [part for span in spans for part in subtract(span, r.reserved)]
        most = _base(r) + MOST - 1
        found += [
            Span(NUMBERS, (part.first - _base(r)) // size, (min(part.last, most) - _base(r)) // size)
            for part in free
            if part.first <= most
        ]
    return joined(found)


def _base(r: Range) -> int:
    return int(r.subnet.network_address)
