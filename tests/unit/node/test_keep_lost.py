"""Which units stay in the list when their devices are lost."""

from dataclasses import replace

import pytest

from hardware.model import Device, Kind
from node.model import Offer, Resource, Selector, Sharing, Unit
from node.offer.offers import keep

VF = Device("0000:3b:00.2", Kind.VF, driver="mlx5_core", netdevs=("eth3v0",))
OTHER = replace(VF, id="0000:3b:00.3", netdevs=("eth3v1",))


def offer(*units: Unit, name: str = "vf") -> Offer:
    return Offer(Resource("rdma", name, Sharing.EXCLUSIVE, ()), units)


def unit(*devices: Device, name: str = "") -> Unit:
    return Unit(name or devices[0].id, devices)


def devices(*found: Device) -> dict[str, Device]:
    return {device.id: device for device in found}


BEFORE = {"rdma/vf": offer(unit(VF), unit(OTHER))}


def test_all_there() -> None:
    now = offer(unit(OTHER), unit(VF))
    assert keep(BEFORE, [now], devices(VF, OTHER)) == {"rdma/vf": now}


def test_gone() -> None:
    assert keep(BEFORE, [offer(unit(OTHER))], devices(OTHER))["rdma/vf"].units == (unit(OTHER), unit(VF))


@pytest.mark.parametrize(("names", "stays"), [(frozenset({"bond0"}), True), (frozenset[str](), False)])
def test_an_interface_of_software_is_gone(names: frozenset[str], stays: bool) -> None:  # a parameter
    """Without names each pod's interface may count, and the list would grow without end."""
    master = Resource("rdma", "vf", Sharing.SHARED, (Selector(netdevs=names),))
    bond = unit(Device("bond0", Kind.NETDEV, netdevs=("bond0",)), name="bond0-0")
    kept = keep({"rdma/vf": Offer(master, (bond,))}, [Offer(master, ())], {})
    assert kept["rdma/vf"].units == (bond,) * stays


def test_without_its_driver() -> None:
    """A selector by driver or by interface no longer matches it."""
    bare = replace(VF, driver="", netdevs=())
    assert keep(BEFORE, [offer(unit(OTHER))], devices(OTHER, bare))["rdma/vf"].units == (unit(OTHER), unit(VF))


def test_in_a_pod() -> None:
    """A selector by interface may no longer match it."""
    away = replace(VF, netdevs=())
    kept = keep(BEFORE, [offer(unit(OTHER))], devices(OTHER, away))
    assert kept["rdma/vf"].units == (unit(OTHER), unit(VF))
    again = keep(kept, [offer(unit(OTHER))], devices(OTHER, away))
    assert again["rdma/vf"].units == (unit(OTHER), unit(VF))


@pytest.mark.parametrize("now", [replace(VF, netdevs=("renamed",)), replace(VF, driver="vfio-pci")], ids=repr)
def test_there_and_no_longer_selected(now: Device) -> None:
    assert keep(BEFORE, [offer(unit(OTHER))], devices(OTHER, now))["rdma/vf"].units == (unit(OTHER),)


def test_another_resource_has_it_now() -> None:
    bare = replace(VF, driver="")
    found = keep(BEFORE, [offer(unit(OTHER)), offer(unit(bare), name="bare")], devices(OTHER, bare))
    assert {name: [one.id for one in kept.units] for name, kept in found.items()} == {
        "rdma/vf": [OTHER.id],
        "rdma/bare": [VF.id],
    }


def test_a_resource_that_is_no_longer_wanted() -> None:
    assert keep(BEFORE, [], devices()) == {}


def test_units_of_all_devices() -> None:
    """They are offered while one device exists; after the last one is lost, they stay as lost units."""
    before = {"rdma/vf": offer(unit(VF, OTHER, name="0"), unit(VF, OTHER, name="1"))}
    now = offer(unit(OTHER, name="0"), unit(OTHER, name="1"))
    assert keep(before, [now], devices(OTHER)) == {"rdma/vf": now}
    assert keep(before, [offer()], devices()) == before


def test_needed_by_the_host() -> None:
    """A DHCP client of the host has given it an address: it stays, with the reason, for as long as the address does."""
    taken = replace(VF, used="the host has 192.0.2.1/24 on it")
    for before in (BEFORE, {"rdma/vf": offer(unit(OTHER), unit(taken))}):
        assert keep(before, [offer(unit(OTHER))], devices(OTHER, taken))["rdma/vf"].units == (unit(OTHER), unit(taken))
    now = offer(unit(OTHER), unit(VF))
    assert keep({"rdma/vf": offer(unit(OTHER), unit(taken))}, [now], devices(OTHER, VF)) == {"rdma/vf": now}
