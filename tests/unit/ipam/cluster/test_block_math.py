"""Pools limited to blocks, compared with a count of single addresses."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.protocol.errors import InvalidConfig
from base.protocol.result import Address
from ipam.cluster.rules import block_math
from ipam.pool import Pool, Range, RangeSet, rails_of, range_sets
from ipam.ranges import Span

SIZE = 16


def a_range(subnet: str, start: str | None = None, end: str | None = None, reserved: str = "", **more: object) -> Range:
    first, last = (ip_address(text) if text else None for text in (start, end))
    spans = tuple(span(text) for text in reserved.split())
    gateway = ip_address(str(more.pop("gateway"))) if "gateway" in more else None
    return Range("r", ip_network(subnet), first, last, gateway, reserved=spans, **more)  # type: ignore[arg-type]


def span(text: str) -> Span:
    first, _, last = text.partition("-")
    return Span.of(ip_address(first), ip_address(last or first))


def pool(*sets: Sequence[Range] | Range) -> Pool:
    written = [(f"s{i}", [s] if isinstance(s, Range) else list(s)) for i, s in enumerate(sets)]
    return Pool(range_sets(written))


def given_from(s: RangeSet) -> str:
    return " ".join(map(str, s.spans))


def words(spans: Sequence[Span]) -> str:
    return " ".join(f"{s.first}-{s.last}" for s in spans)


def test_one_block_in_both_families() -> None:
    both = pool(a_range("10.0.0.0/16", gateway="10.0.0.1"), a_range("fd00::/64"))
    v4, v6 = block_math.limited(both, SIZE, [0, 3]).sets
    assert given_from(v4) == "10.0.0.2-10.0.0.15 10.0.0.48-10.0.0.63"
    assert given_from(v6) == "fd00::1-fd00::f fd00::30-fd00::3f"
    assert both.sets[0].spans == (span("10.0.0.2-10.0.255.254"),)


def test_without_blocks_there_is_nothing() -> None:
    (s,) = block_math.limited(pool(a_range("10.0.0.0/16")), SIZE, []).sets
    assert (s.spans, s.all_spans) == ((), ())


def test_numbers_are_the_subnets_not_the_ranges() -> None:
    (s,) = block_math.limited(pool(a_range("10.0.4.0/22", "10.0.5.8", "10.0.5.40")), SIZE, [16, 17, 18, 63, 64]).sets
    assert given_from(s) == "10.0.5.8-10.0.5.15 10.0.5.16-10.0.5.31 10.0.5.32-10.0.5.40"


def test_a_block_beyond_the_subnet() -> None:
    low, high = block_math.limited(pool(a_range("10.0.0.0/24"), a_range("10.1.0.0/16")), SIZE, [16]).sets
    assert (given_from(low), given_from(high)) == ("", "10.1.1.0-10.1.1.15")


def test_reserved_excluded_and_requested() -> None:
    holes = a_range("10.0.0.0/16", reserved="10.0.0.20-10.0.0.24", exclude=(span("10.0.0.30"),))
    (s,) = block_math.limited(pool(holes), SIZE, [1]).sets
    assert given_from(s) == "10.0.0.16-10.0.0.19 10.0.0.25-10.0.0.29 10.0.0.31"
    assert ip_address("10.0.0.20") in s
    assert ip_address("10.0.0.30") not in s
    assert ip_address("10.0.0.32") not in s


def test_draining_blocks_are_kept_and_not_given() -> None:
    (s,) = block_math.limited(pool(a_range("10.0.0.0/16")), SIZE, [1], [2]).sets
    assert given_from(s) == "10.0.0.16-10.0.0.31"
    assert ip_address("10.0.0.33") in s
    assert ip_address("10.0.0.50") not in s
    assert s.ip(ip_address("10.0.0.33")).address.network == ip_network("10.0.0.0/16")


def test_rails_have_the_same_numbers() -> None:
    written = [
        (f"rail{i}", {"pf": f"ens{i}"}, [(f"rail{i}", [a_range(f"10.{i}.0.0/16"), a_range(f"10.{i + 8}.0.0/16")])])
        for i in range(2)
    ]
    rails = rails_of(written, align=False)
    some = block_math.limited(Pool(tuple(s for r in rails for s in r.sets), rails=rails), SIZE, [2])
    assert [given_from(s) for rail in some.rails for s in rail.sets] == [
        "10.0.0.32-10.0.0.47 10.8.0.32-10.8.0.47",
        "10.1.0.32-10.1.0.47 10.9.0.32-10.9.0.47",
    ]
    assert some.sets == tuple(s for rail in some.rails for s in rail.sets)


def test_a_mac_makes_the_number() -> None:
    some = pool(a_range("10.0.0.0/24"), a_range("fd00::/64", eui64=True))
    assert block_math.limited(some, SIZE, []).sets[1] == some.sets[1]
    assert words(block_math.candidates(some.sets, SIZE)) == "0-15"
    assert block_math.candidates(some.sets[1:], SIZE) == ()
    assert block_math.subnets(some.sets) == ("10.0.0.0/24",)
    assert block_math.block_of(some.sets, SIZE, ip_address("fd00::5")) is None
    block_math.refuse(some.sets[1:], SIZE)


@pytest.mark.parametrize(
    ("some", "blocks"),
    [
        (pool(a_range("10.0.0.0/24")), "0-15"),
        (pool(a_range("10.0.0.0/24", "10.0.0.20", "10.0.0.40")), "1-2"),
        (pool(a_range("10.0.0.0/24"), a_range("fd00::/64")), "0-15"),
        (pool(a_range("fd00::/64")), f"0-{2**49 - 1}"),
        (pool(a_range("fd00::/120")), "0-15"),
        # The next set has addresses of other numbers.
        (pool([a_range("10.0.0.0/24"), a_range("10.1.0.0/16", "10.1.2.0", "10.1.2.31")]), "0-15 32-33"),
        (pool(a_range("10.0.0.0/24", reserved="10.0.0.32-10.0.0.63")), "0-1 4-15"),
        (pool(a_range("10.0.0.0/24", reserved="10.0.0.33-10.0.0.63")), "0-2 4-15"),
        # No block has both.
        (pool(a_range("10.0.0.0/24", "10.0.0.64"), a_range("10.1.0.0/24", end="10.1.0.40")), ""),
    ],
)
def test_candidates(some: Pool, blocks: str) -> None:
    assert words(block_math.candidates(some.sets, SIZE)) == blocks


@given(
    st.integers(1, 60).flatmap(lambda first: st.tuples(st.just(first), st.integers(first, 63))),
    st.integers(1, 20),
    st.lists(st.integers(0, 70), max_size=6),
)
def test_candidates_are_all_that_have_an_address(bounds: tuple[int, int], size: int, reserved: Sequence[int]) -> None:
    base = int(ip_address("10.0.0.0"))
    subnet = ip_network("10.0.0.0/25")
    holes = tuple(Span(4, base + n, base + n) for n in reserved)
    one = Range("r", subnet, ip_address(base + bounds[0]), ip_address(base + bounds[1]), reserved=holes)
    numbers = [n for n in range(bounds[0], bounds[1] + 1) if n not in reserved]
    (s,) = range_sets([("s", [one])])
    found = block_math.candidates([s], size)
    assert [n for f in found for n in range(f.first, f.last + 1)] == sorted({n // size for n in numbers})
    for number in numbers:
        (given,) = block_math.limited(Pool((s,)), size, [number // size]).sets
        assert any(ip_address(base + number) in span for span in given.spans)
        assert block_math.block_of([s], size, ip_address(base + number)) == number // size


@pytest.mark.parametrize(
    ("address", "index"),
    [("10.0.0.17", 1), ("10.0.255.1", 4080), ("fd00::21", 2), ("10.9.0.1", None), ("10.0.0.1", None)],
)
def test_block_of(address: str, index: int | None) -> None:
    some = pool(a_range("10.0.0.0/16", gateway="10.0.0.1"), a_range("fd00::/64"))
    asked: Address = ip_address(address)
    assert block_math.block_of(some.sets, SIZE, asked) == index


def test_a_pool_of_less_than_a_block_is_refused() -> None:
    small = pool(a_range("10.0.0.0/16"), a_range("10.1.0.0/27", reserved="10.1.0.16-10.1.0.20"))
    block_math.refuse(small.sets, 25)
    with pytest.raises(InvalidConfig, match=r"^ipam\.cluster\.blockSize 26: s1 has 25 addresses, less than one block"):
        block_math.refuse(small.sets, 26)


def test_an_address_has_one_number() -> None:
    again = pool(a_range("10.0.0.0/16", end="10.0.0.99"), a_range("10.0.0.0/24", "10.0.0.100"))
    block_math.refuse(again.sets, SIZE)
    apart = pool(a_range("10.0.0.0/16", end="10.0.0.99"), a_range("10.2.0.0/16"), a_range("10.0.1.0/24"))
    with pytest.raises(InvalidConfig, match=r"subnet 10\.0\.1\.0/24 and r\.subnet 10\.0\.0\.0/16 overlap"):
        block_math.refuse(apart.sets, SIZE)


def test_places_among_spans() -> None:
    spans = (Span(0, 2, 4), Span(0, 10, 10))
    assert [block_math.nth(spans, n) for n in range(6)] == [2, 3, 4, 10, 2, 3]
    assert words(block_math.without(spans, [3, 10, 77])) == "2-2 4-4"
    assert words(block_math.without(spans, [])) == "2-4 10-10"


def test_a_large_list_of_taken_blocks_costs_little() -> None:
    (left,) = block_math.without([Span(0, 0, 2**49)], range(65_536))
    assert words([left]) == f"65536-{2**49}"
