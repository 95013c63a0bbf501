"""The rounds of a fabric test."""

from itertools import combinations

import pytest

from base.protocol.errors import InvalidConfig
from ctl.fabric import schedule
from ctl.fabric.model import Ends


@pytest.mark.parametrize("hosts", range(2, 18))
def test_full(hosts: int) -> None:
    """Each pair once, in as few rounds as possible, and no host twice in a round."""
    found = schedule.full(hosts)
    assert len(found) == hosts - 1 + hosts % 2
    assert sorted(pair for one in found for pair in one) == list(combinations(range(hosts), 2))
    for one in found:
        assert len(one) == hosts // 2
        assert len({host for pair in one for host in pair}) == 2 * len(one)


@pytest.mark.parametrize("hosts", range(2, 18))
def test_quick(hosts: int) -> None:
    """One round; an odd host out gets a second one."""
    found = schedule.quick(hosts)
    assert len(found) == 1 + hosts % 2
    assert len(found[0]) == hosts // 2
    assert {host for one in found for pair in one for host in pair} == {*range(hosts)}


@pytest.mark.parametrize("hosts", [0, 1])
def test_nothing_to_test(hosts: int) -> None:
    assert (schedule.full(hosts), schedule.quick(hosts)) == ([], [])


def test_a_file() -> None:
    text = "# mine\n2 a c\n1 b a\n\n1 d c  # beside it\n"
    assert schedule.from_lines(text, ("a", "b", "c", "d")) == [[Ends(0, 1), Ends(2, 3)], [Ends(0, 2)]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no pair"),
        ("1 a", "line 1: 2 words"),
        ("\n1 a e", "line 2: 'e' is not one of the hosts; the hosts are a, b, c, c"),
        ("1 a c", "'c' is not one"),  # two hosts have that name
        ("+1 a b", "not a number"),
        ("99999999 a b", "round 99999999"),
        ("1 a a", "a is already in round 1"),
        ("1 a b\n1 b a", "line 2: a is already in round 1"),
    ],
)
def test_a_file_that_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        schedule.from_lines(text, ("a", "b", "c", "c"))


def test_rails() -> None:
    assert schedule.rails_of("0-3,6,2") == (0, 1, 2, 3, 6)
    for text in ("", "3-1", "-1", "1-", "64", "a", "0,,1", "٣"):
        with pytest.raises(ValueError, match="write"):
            schedule.rails_of(text)
