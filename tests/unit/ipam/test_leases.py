"""The choice of addresses, with a book in memory."""

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

import pytest

from base.protocol.errors import AddressUnavailable, PoolExhausted
from ipam.leases import choose
from ipam.pool import Range, range_sets
from ipam.ranges import Span


@dataclass
class Book:
    held: dict[str, str] = field(default_factory=dict)
    mine: tuple = ()
    last: tuple = ()

    def holder(self, address):
        return self.held.get(str(address), "")

    def first_free(self, span):
        addresses = map(span.address, range(span.first, span.last + 1))
        return next((address for address in addresses if str(address) not in self.held), None)


def at(*texts):
    return tuple(ip_address(text) for text in texts)


FOUR = Range(
    "r4",
    ip_network("10.0.0.0/24"),
    *at("10.0.0.10", "10.0.0.13", "10.0.0.12"),
    (Span.of(*at("10.0.0.11", "10.0.0.11")),),
)  # usable: .10 and .13
SIX = Range("r6", ip_network("fd00::/64"), *at("fd00::5", "fd00::9"), None)
SETS = range_sets([("s4", [FOUR]), ("s6", [SIX])])


@pytest.mark.parametrize(
    ("book", "requested", "expected"),
    [
        (Book(), (), ("10.0.0.10/24", "fd00::5/64")),  # the beginning of each
        (Book(last=at("fd00::6", "10.0.0.10")), (), ("10.0.0.13/24", "fd00::7/64")),  # after the last, in any order
        (Book(last=at("10.0.0.13", "fd00::9")), (), ("10.0.0.10/24", "fd00::5/64")),  # past the end: wrap
        (Book(last=at("10.0.0.12", "1.2.3.4")), (), ("10.0.0.10/24", "fd00::5/64")),  # a hint of no use
        (Book({"10.0.0.10": "a"}), (), ("10.0.0.13/24", "fd00::5/64")),  # over excluded, gateway and held
        (Book(mine=at("10.0.0.13", "fd00::8")), (), ("10.0.0.13/24", "fd00::8/64")),  # what it has
        (Book(mine=at("10.0.0.12", "fd00::8")), (), ("10.0.0.10/24", "fd00::8/64")),  # one of it fits no more
        (Book(), at("fd00::9"), ("10.0.0.10/24", "fd00::9/64")),  # asked of one set only
        (Book(mine=at("10.0.0.10")), at("10.0.0.13"), ("10.0.0.13/24", "fd00::5/64")),  # asking wins over having
        (Book({"10.0.0.13": "me"}, mine=at("10.0.0.13")), at("10.0.0.13"), ("10.0.0.13/24", "fd00::5/64")),  # its own
    ],
)
def test_choose(book, requested, expected):
    assert tuple(str(ip.address) for ip in choose(SETS, requested, book)) == expected


def test_gateway_is_the_ranges():
    assert [ip.gateway for ip in choose(SETS, (), Book())] == [ip_address("10.0.0.12"), None]


@pytest.mark.parametrize(
    ("requested", "held", "reason"),
    [
        (("192.168.0.1",), {}, "is in no range"),
        (("10.0.0.12",), {}, "is the gateway of r4"),
        (("10.0.0.11",), {}, "is excluded by r4.exclude"),
        (("10.0.0.14",), {}, "is outside 10.0.0.10-10.0.0.13"),  # in the subnet, not in the range
        (("fd00::5",), {"fd00::5": "c:net1"}, "is held by c:net1"),
        (("10.0.0.10", "10.0.0.13"), {}, "provides one address"),  # two of one set
    ],
)
def test_refused_request_says_why(requested, held, reason):
    with pytest.raises(AddressUnavailable) as e:
        choose(SETS, at(*requested), Book(held))
    assert requested[-1] in e.value.msg
    assert reason in e.value.msg


def test_exhausted_set_is_named_with_its_size():
    with pytest.raises(PoolExhausted, match=r"s4 \(10.0.0.0/24\): all 2 addresses are held"):
        choose(SETS, (), Book({"10.0.0.10": "a", "10.0.0.13": "b"}))


def test_ranges_of_a_set_are_tried_in_order():
    low, high = (Range(k, ip_network(n)) for k, n in (("low", "10.0.0.0/30"), ("high", "10.0.9.0/30")))
    sets = range_sets([("s", [high, low])])
    held = {}
    for expected in ("10.0.9.1", "10.0.9.2", "10.0.0.1", "10.0.0.2"):
        (ip,) = choose(sets, (), Book(held))
        held[str(ip.address.ip)] = "x"
        assert str(ip.address.ip) == expected


def test_no_range_gives_another_ranges_gateway():
    # Both in one subnet; .9 is the first's gateway and within the second.
    a = Range("a", ip_network("10.0.0.0/24"), *at("10.0.0.2", "10.0.0.3", "10.0.0.9"))
    b = Range("b", ip_network("10.0.0.0/24"), *at("10.0.0.9", "10.0.0.10"))
    assert [str(ip.address.ip) for ip in choose(range_sets([("a", [a]), ("b", [b])]), (), Book())][1] == "10.0.0.10"
