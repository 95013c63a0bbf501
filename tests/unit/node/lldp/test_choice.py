"""Which announced neighbor counts: damped, so that two that take turns do not replace each other."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hardware.neighbors import Neighbor
from node.lldp.choice import Heard, after


def said(port: str, at: int, ttl: int = 120) -> Neighbor:
    return Neighbor("mac", f"of {port}", "ifname", port, ttl=ttl, heard=at)


def heard(*announcements: Neighbor) -> Heard:
    now = Heard()
    for one in announcements:
        now = after(now, one)
    return now


def port(made: Heard) -> str:
    return made.neighbor.port if made.neighbor else ""


def test_the_first_and_its_changes() -> None:
    first = said("a", 0)
    assert heard(first).neighbor == first
    changed = replace(said("a", 30), vlan=7)
    assert heard(first, changed).neighbor == changed


def test_exchanged_cables() -> None:
    """Another port counts with its second announcement, if the old one is silent between."""
    assert port(heard(said("a", 0), said("b", 1))) == "a"
    assert port(heard(said("a", 0), said("b", 1), said("b", 2))) == "b"
    assert port(heard(said("a", 0), said("b", 1), said("a", 2), said("b", 3))) == "a"
    assert port(heard(said("a", 0), said("b", 1), said("c", 2), said("b", 3))) == "a"


def test_an_old_one_is_replaced_at_once() -> None:
    assert port(heard(said("a", 0), said("b", 119))) == "a"
    assert port(heard(said("a", 0), said("b", 120))) == "b"


def test_a_withdrawal() -> None:
    """TTL 0 of its own port ends a neighbor, which stays as the last one; that of another has no effect."""
    ended = heard(replace(said("a", 0), vlan=7), said("a", 9, ttl=0))
    assert ended.neighbor == replace(said("a", 9, ttl=0), vlan=7)
    assert port(after(ended, said("b", 10))) == "b"
    assert heard(said("a", 0), said("b", 1, ttl=0)) == Heard(said("a", 0))
    assert heard(said("b", 1, ttl=0)) == Heard()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from([0, 2, 120])), max_size=40))
def test_no_port_counts_that_was_not_announced(steps: list[tuple[str, int, int]]) -> None:
    now, made, changes = 0, Heard(), 0
    for name, passed, ttl in steps:
        now += passed
        before, made = made, after(made, said(name, now, ttl))
        changes += port(before) != port(made)
        if made.neighbor and port(before) != port(made):
            assert made.neighbor == said(name, now, ttl)
            assert ttl
    assert changes <= len(steps)
