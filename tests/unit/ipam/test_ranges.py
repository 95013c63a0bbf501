"""Arithmetic with spans against plain enumeration, in both families."""

from ipaddress import ip_address, ip_network
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.elapsed import cost

from ipam.ranges import Span, assignable, count, default_gateway, next_free, subtract

BASE = {4: int(ip_address("10.0.0.0")), 6: int(ip_address("fd00::"))}
SETTINGS = settings(deadline=None, derandomize=True, max_examples=150)
versions = st.sampled_from((4, 6))
offsets = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)


def span(version, pair):
    return Span(version, BASE[version] + pair[0], BASE[version] + pair[1])


def numbers(spans):
    return [n for s in spans for n in range(s.first, s.last + 1)]


def lowest_not_in(held):
    return lambda span: next((span.address(n) for n in range(span.first, span.last + 1) if n not in held), None)


@given(versions, offsets, st.lists(offsets, max_size=5))
@SETTINGS
def test_subtract_leaves_what_is_in_no_hole(version, whole, holes):
    left = subtract(span(version, whole), [span(version, hole) for hole in holes])
    expected = sorted(set(numbers([span(version, whole)])) - set(numbers(span(version, h) for h in holes)))
    assert numbers(left) == expected
    assert count(left) == len(expected)
    # Adjacent pieces must be joined.
    assert all(a.last + 1 < b.first for a, b in pairwise(left))


def test_subtract_ignores_the_other_family():
    # A v6 hole may have a v4 address's number.
    four = Span(4, 5, 9)
    assert subtract(four, [Span(6, 5, 9)]) == (four,)


@given(versions, st.lists(st.booleans(), min_size=40, max_size=40), st.integers(-1, 45), st.data())
@SETTINGS
def test_next_free_is_the_first_of_the_round(version, usable, after, data):
    # Spans in any order, because the ranges of a set are tried in the configured order.
    pieces = subtract(span(version, (0, 39)), [span(version, (i, i)) for i, u in enumerate(usable) if not u])
    spans = data.draw(st.permutations(pieces))
    order = numbers(spans)
    held = data.draw(st.sets(st.sampled_from(order))) if order else set()
    last = BASE[version] + after
    at = order.index(last) + 1 if last in order else 0
    expected = next((n for n in order[at:] + order[:at] if n not in held), None)
    answer = next_free(spans, spans[0].address(last) if spans else None, lowest_not_in(held))
    assert answer == (None if expected is None else spans[0].address(expected))


@pytest.mark.parametrize(
    ("subnet", "first", "last", "gateway"),
    [
        ("10.0.0.0/24", "10.0.0.1", "10.0.0.254", "10.0.0.1"),  # neither network nor broadcast
        ("10.0.0.0/30", "10.0.0.1", "10.0.0.2", "10.0.0.1"),  # the smallest with a broadcast
        ("10.0.0.4/31", "10.0.0.4", "10.0.0.5", None),  # RFC 3021
        ("10.0.0.5/32", "10.0.0.5", "10.0.0.5", None),  # a host route
        ("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1"),  # no broadcast in IPv6
        ("fd00::4/127", "fd00::4", "fd00::5", None),  # RFC 6164
        ("fd00::5/128", "fd00::5", "fd00::5", None),  # a host route
    ],
)
def test_assignable_and_gateway(subnet, first, last, gateway):
    network = ip_network(subnet)
    assert assignable(network) == Span.of(ip_address(first), ip_address(last))
    assert default_gateway(network) == (ip_address(gateway) if gateway else None)


@pytest.mark.parametrize("subnet", ["10.0.0.0/8", "fd00::/64", "::/0"])
def test_size_costs_nothing(subnet):
    def find(subnet):
        everything = assignable(ip_network(subnet))
        left = subtract(everything, [Span(everything.version, everything.first, everything.first + 9)])
        answer = next_free(left, everything.address(everything.last), lowest_not_in(()))
        assert answer == everything.address(everything.first + 10)

    assert cost(lambda: find(subnet)) < 100 * cost(lambda: find("10.0.0.0/27"))


def test_small_numbers_of_ipv6_stay_ipv6():
    assert str(next_free([Span(6, 1, 9)], None, lowest_not_in(()))) == "::1"
