"""Soft-RoCE devices of the node: over hardware they belong to the NIC, over software to the interface."""

from collections.abc import Iterator

import pytest
from guest.machine import rdma
from guest.node import PF, Node, pci
from support.topology import ip

from hardware import inventory
from hardware.model import Device
from node.model import Resource, Selector, Sharing
from node.offer import needs
from node.offer.offers import offers


@pytest.fixture
def veth(node: Node) -> Iterator[str]:
    ip("link", "add", "soft0", "type", "veth", "peer", "name", "soft1")
    yield "soft0"
    ip("link", "delete", "soft0")


def rdma_of(device: str) -> list[str]:
    found: dict[str, Device] = {one.id: one for one in inventory.devices()}
    return [one.name for one in found[device].rdma]


def test_soft_roce(node: Node, veth: str) -> None:
    before = rdma_of(pci(PF))
    for name, netdev in (("rxe_nic", PF), ("rxe_veth", veth)):
        rdma("link", "add", name, "type", "rxe", "netdev", netdev)
    try:
        assert (rdma_of(pci(PF)), rdma_of(veth)) == (sorted([*before, "rxe_nic"]), ["rxe_veth"])
        selector = Selector(netdevs=frozenset({veth}), rdma=True)
        made, said = offers([Resource("ex.com", "r", Sharing.SHARED, (selector,))], inventory.devices())
        assert ([unit.id for unit in made[0].units], said) == ([f"{veth}-0"], ())
        assert needs.obstacles(made) == ()
    finally:
        for name in ("rxe_nic", "rxe_veth"):
            rdma("link", "delete", name)
