"""The preferred units of a container."""

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.model import Device, Kind
from node.model import Offer, Resource, Sharing, Unit
from node.offer.preferred import choose


def vf(pf: str, number: int, numa: int = 0) -> Device:
    return Device(f"{pf}v{number}", Kind.VF, pf=pf, index=number, numa=numa)


def pf(name: str, numa: int = 0) -> Device:
    return Device(name, Kind.PF, pf=name, numa=numa)


def exclusive(*devices: Device) -> Offer:
    resource = Resource("ex.com", "r", Sharing.EXCLUSIVE, ())
    return Offer(resource, tuple(Unit(device.id, (device,)) for device in devices))


def shared(*devices: Device, count: int = 3, pooled: bool = False) -> Offer:
    resource = Resource("ex.com", "r", Sharing.SHARED, (), count=count, pooled=pooled)
    if pooled:
        return Offer(resource, tuple(Unit(str(n), devices) for n in range(count)))
    return Offer(resource, tuple(Unit(f"{d.id}-{n}", (d,)) for d in devices for n in range(count)))


def everything(offer: Offer) -> list[str]:
    return [unit.id for unit in offer.units]


TWO = exclusive(*(vf(name, n) for name in "AB" for n in range(4)))
# A and B are on node 0, C and D on node 1.
FOUR = exclusive(*(vf(name, n, numa) for name, numa in zip("ABCD", (0, 0, 1, 1), strict=True) for n in range(4)))


@pytest.mark.parametrize(
    ("offer", "in_use", "must", "size", "chosen"),
    [
        # One from each PF, in order.
        (TWO, [], [], 1, ["Av0"]),
        (TWO, [], [], 2, ["Av0", "Bv0"]),
        (TWO, [], [], 3, ["Av0", "Bv0", "Av1"]),
        (TWO, [], ["Bv3"], 2, ["Bv3", "Av0"]),
        (TWO, [], ["Bv3", "Bv1"], 4, ["Bv3", "Bv1", "Av0", "Av1"]),
        # The PF with fewer units in use.
        (TWO, ["Av0"], [], 1, ["Bv0"]),
        (TWO, ["Av0", "Bv1", "Bv0"], [], 1, ["Av1"]),
        # On the NUMA node of the required units; more PFs come before one node.
        (FOUR, [], ["Cv0"], 2, ["Cv0", "Dv0"]),
        (FOUR, [], ["Cv0"], 3, ["Cv0", "Dv0", "Av0"]),
        (FOUR, [], [], 4, ["Av0", "Bv0", "Cv0", "Dv0"]),
        # The NUMA node with enough PFs.
        (FOUR, ["Av0", "Av1", "Av2", "Av3"], [], 2, ["Cv0", "Dv0"]),
        (FOUR, ["Av0", "Av1", "Av2", "Av3"], [], 1, ["Cv0"]),
        (exclusive(vf("A", 0, -1), vf("B", 0, 1)), [], ["Bv0"], 2, ["Bv0", "Av0"]),
        # Whole PFs come last.
        (exclusive(pf("P"), vf("A", 0), vf("A", 1), pf("Q")), [], [], 2, ["Av0", "Av1"]),
        (exclusive(pf("P"), vf("A", 0), pf("Q")), [], [], 2, ["Av0", "P"]),
        # Shares of different devices, and of the device with fewer users.
        (shared(pf("P"), pf("Q")), [], [], 3, ["P-0", "Q-0", "P-1"]),
        (shared(pf("P"), pf("Q")), ["P-0"], [], 1, ["Q-0"]),
        (shared(vf("A", 0), vf("A", 1), vf("B", 0)), [], [], 3, ["Av0-0", "Bv0-0", "Av1-0"]),
        (shared(Device("bond0", Kind.NETDEV), Device("bond1", Kind.NETDEV)), [], [], 2, ["bond0-0", "bond1-0"]),
        # By number, not by text.
        (shared(pf("P"), pf("Q"), count=11, pooled=True), [str(n) for n in range(9)], [], 2, ["9", "10"]),
    ],
)
def test_choice(offer: Offer, in_use: list[str], must: list[str], size: int, chosen: list[str]) -> None:
    available = [one for one in everything(offer) if one not in in_use]
    assert choose(offer, available, must, size) == tuple(chosen)
    assert choose(offer, reversed(available), must, size) == tuple(chosen)


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [
        (["Av0"], [], 2),
        (["Av0", "x"], [], 2),
        (["Av0"], ["x"], 1),
        (["Av0"], ["Bv0"], 1),
        (["Av0", "Bv0"], ["Av0", "Bv0"], 1),
        (["Av0"], [], -1),
        ([], [], 0),
        ([], [], 2**40),
    ],
)
def test_in_doubt(available: list[str], must: list[str], size: int) -> None:
    assert choose(TWO, available, must, size) == ()


devices = st.builds(
    lambda kind, pf, number, numa: Device(f"{pf}v{number}", kind, pf="" if kind is Kind.NETDEV else pf, numa=numa),
    st.sampled_from(Kind), st.sampled_from("ABCD"), st.integers(0, 5), st.integers(-1, 2),
)  # fmt: skip
offers = st.builds(
    lambda found, share, pooled: shared(*found, count=2, pooled=pooled) if share else exclusive(*found),
    st.lists(devices, unique_by=lambda device: device.id, max_size=12), st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.data(), offers, st.integers(-1, 30))
def test_laws(data: st.DataObject, offer: Offer, size: int) -> None:
    """An answer has the right size, all of ``must`` first, only available IDs, and none twice."""
    some = st.lists(st.sampled_from([*everything(offer), "unknown"]), max_size=30)
    available, must = data.draw(some), data.draw(some)
    answer = choose(offer, available, must, size)
    assert answer == choose(offer, set(available), must, size)
    if answer:
        assert len(answer) == len(set(answer)) == size
        assert answer[: len(set(must))] == tuple(dict.fromkeys(must))
        assert set(answer) <= set(available)
    else:
        known = set(available) & set(everything(offer))
        assert size <= 0 or len(known) < size or len(set(must)) > size or not set(must) <= known


@given(st.lists(devices, unique_by=lambda device: device.id, max_size=12), st.integers(1, 6))
def test_spread(found: Sequence[Device], size: int) -> None:
    """No PF gives two VFs while another PF could give one."""
    vfs = [device for device in found if device.kind is Kind.VF]
    answer = choose(exclusive(*vfs), [device.id for device in vfs], [], size)
    if answer:
        assert len({device.pf for device in vfs if device.id in answer}) == min(
            size, len({device.pf for device in vfs})
        )


@pytest.mark.parametrize(
    "offer",
    [
        shared(*(pf(f"P{n}", n % 2) for n in range(4)), count=1000),
        shared(*(vf(f"P{p}", n, p % 2) for p in range(4) for n in range(50)), count=20),
        shared(*(pf(f"P{n}", n % 2) for n in range(4)), count=4000, pooled=True),
        exclusive(*(vf(f"P{p}", n, p % 4) for p in range(4) for n in range(1000))),
    ],
    ids=["hcas", "shared-vfs", "pooled", "vfs"],
)
def test_many(offer: Offer) -> None:
    """A pod's author chooses the number, and other calls wait meanwhile.

    So to choose 1000 of 4000 units takes little longer than to choose four.
    """

    def seconds(size: int) -> float:
        times = [time.process_time()]
        for _ in range(3):
            assert len(choose(offer, everything(offer), [], size)) == size
            times.append(time.process_time())
        return min(after - before for before, after in pairwise(times))

    assert seconds(1000) < 10 * seconds(4)


def reference(offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
    """The choice by reading all units each time, as docs/develop/node.md describes it."""
    units = {unit.id: unit for unit in offer.units}
    taken = [units[one] for one in must]
    numa = frozenset[int]().union(*(unit.numa for unit in taken)) or home([units[one] for one in available], size)

    def place(unit: Unit) -> tuple[int, ...]:
        (device,) = unit.devices
        return (
            offer.resource.sharing is Sharing.EXCLUSIVE and device.kind is Kind.PF,
            [other.devices for other in taken].count(unit.devices),
            [of(other) for other in taken].count(of(unit)),
            bool(numa and unit.numa and unit.numa.isdisjoint(numa)),
            sum(of(other) == of(unit) for other in offer.units if other.id not in available),
        )

    while len(taken) < size:
        taken.append(min((unit for unit in offer.units if unit.id in available and unit not in taken), key=place))
    return tuple(unit.id for unit in taken)


def of(unit: Unit) -> str:
    return unit.devices[0].pf or unit.devices[0].id


def home(units: Sequence[Unit], size: int) -> frozenset[int]:
    """The NUMA node with the most PFs, and among those the one with the most units."""
    on = {node: [unit for unit in units if node in unit.numa] for node in range(3)}
    best = max(on, key=lambda node: (min(len({of(unit) for unit in on[node]}), size), len(on[node]), -node))
    return frozenset({best}) if on[best] else frozenset()


@given(st.data(), offers)
def test_as_the_reference(data: st.DataObject, offer: Offer) -> None:
    if offer.resource.pooled or not offer.units:
        return
    available = data.draw(st.lists(st.sampled_from(everything(offer)), unique=True, min_size=1))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=3))
    size = data.draw(st.integers(max(1, len(must)), len(available)))
    assert choose(offer, available, must, size) == reference(offer, available, must, size)
