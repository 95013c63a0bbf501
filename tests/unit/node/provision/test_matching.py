"""Which PFs are new, and the rules for them alone."""

from dataclasses import replace
from typing import Any

import pytest

from hardware.model import Device, Kind
from node.model import PfRule, Selector
from node.offer.offers import agrees
from node.provision.matching import lasting, only, seen, without

RAIL0, RAIL1 = "0000:3b:00.0", "0000:5e:00.0"
PF = Device(RAIL0, Kind.PF, driver="igb", netdevs=("rail0",), names=("rail0",))
OTHER = replace(PF, id=RAIL1, netdevs=("rail1",), names=("rail1",))


def rule(place: int = 0, **selected: Any) -> PfRule:
    sets = {name: frozenset(values) for name, values in selected.items()}
    return PfRule(Selector(kinds=frozenset({Kind.PF}), **sets), f"pfs[{place}]", num_vfs=2)


BY_NAME, BY_ADDRESS, BY_DRIVER = rule(netdevs=["rail0"]), rule(addresses=[RAIL0]), rule(1, drivers=["igb"])


@pytest.mark.parametrize("asked", [BY_NAME, BY_ADDRESS, BY_DRIVER])
def test_a_pf_in_a_pod_and_home_again(asked: PfRule) -> None:
    """The interface's name is remembered meanwhile.  On its return it may have any name at first."""
    before = seen([asked], [PF])
    assert len(before) == 1
    assert seen([asked], [replace(PF, netdevs=())]) == before
    assert seen([asked], [replace(PF, netdevs=("net1",), names=("net1",))]) <= before


@pytest.mark.parametrize(
    ("first", "then", "asked"),
    [
        (replace(PF, netdevs=(), names=()), PF, [BY_ADDRESS]),
        (replace(PF, names=("eth0",)), PF, [BY_NAME]),
        (replace(PF, names=("eth0",)), PF, [BY_NAME, BY_DRIVER]),
        (replace(PF, driver=""), PF, [BY_ADDRESS]),
        (PF, replace(PF, driver="vfio-pci"), [BY_ADDRESS]),
    ],
)
def test_its_interface_its_name_or_its_driver_has_come(first: Device, then: Device, asked: list[PfRule]) -> None:
    assert len(seen(asked, [then]) - seen(asked, [first])) == 1


@pytest.mark.parametrize("asked", [BY_NAME, BY_ADDRESS])
def test_its_driver_is_bound_again(asked: PfRule) -> None:
    """Without a driver no rule by name selects it; afterwards it counts as new."""
    before = seen([asked], [PF, OTHER])
    unbound = replace(PF, driver="", netdevs=(), names=())
    assert lasting(before, [unbound, OTHER]) == frozenset()
    assert lasting(before, [OTHER]) == frozenset()
    assert lasting(before, [replace(PF, netdevs=()), OTHER]) == before


def test_the_rules_for_it_alone() -> None:
    rules = [BY_NAME, BY_ADDRESS, BY_DRIVER, rule(addresses=[RAIL1])]
    for address, device, count in ((RAIL0, PF, 3), (RAIL1, OTHER, 2)):
        narrowed = only(rules, [address])
        asked = [one.source for one in rules if agrees(one.selector, device)]
        assert [one.source for one in narrowed if agrees(one.selector, device)] == asked
        assert len(asked) == count
        others = [one for one in (PF, OTHER) if one is not device]
        assert not any(agrees(one.selector, other) for one in narrowed for other in others)
    assert {one.num_vfs for one in only(rules, [RAIL0, RAIL1])} == {2}


def test_what_was_said_of_others() -> None:
    sentences = [f"pfs[0].mtu 9000: rail0 ({RAIL0}) has no interface", f"pfs[1].numVfs 8: {RAIL1} has no SR-IOV", "x"]
    assert without(sentences, {RAIL0}) == (sentences[1], "x")
