"""Selectors of the device file that name interfaces by their altnames, as a configuration's master and pf do."""

from pathlib import Path
from typing import Any

import pytest
from support.sysfs_tree import Tree
from support.topology import Host, ip

from hardware.inventory import Inventory
from hardware.model import Device
from node import config
from node.offer import offers
from node.provision.matching import matching

PF, VF = "0000:3b:00.0", "0000:3b:00.1"
LONG = "the-fabric-of-rail-number-0"


@pytest.fixture
def tree(host: Host, tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "sys")
    pf = tree.pci(PF)
    tree.netdev("rail0", pf)
    tree.netdev("fabric", tree.pci(VF, pf=PF))
    ip("link", "add", "br0", "type", "bridge")
    tree.netdev("br0")
    for name, altname in (("rail0", LONG), ("fabric", "enp59s0f0v0"), ("br0", "the-bridge")):
        ip("link", "property", "add", "dev", name, "altname", altname)
    return tree


def selected(found: tuple[Device, ...], kind: str, **selectors: Any) -> list[str]:
    document = {"resources": [{"name": "a", "kind": kind, "selectors": selectors}]}
    resources = config.own.settings(document, prefix="example.com", cdi=False).resources
    return [device.id for device in found if any(offers.agrees(one, device) for one in resources[0].selectors)]


def check(found: tuple[Device, ...]) -> None:
    assert selected(found, "pf", ifNames=[LONG]) == [PF]
    assert selected(found, "vf", ifNames=["enp59s0f0v0"]) == [VF]
    assert selected(found, "vf", pfNames=[f"{LONG.upper()}#0"]) == [VF]
    assert selected(found, "vf", pfNames=[f"{LONG}#1"]) == []
    assert selected(found, "vf", pfNames=["rail0#1", f"{LONG}#0"]) == [VF], "two names of one PF"
    assert selected(found, "master", ifNames=["the-bridge"]) == ["br0"]


def test_by_altname(tree: Tree, tmp_path: Path) -> None:
    """Also while a pod has the device, and after a restart of hpn node meanwhile."""
    file = tmp_path / "devices.json"
    first = Inventory(tree.root, file)
    check(first.devices())
    for address in (PF, VF):
        tree.into_a_pod(tree.root / "bus/pci/devices" / address)
    ip("link", "del", "rail0")  # and fabric, its peer
    check(first.devices())
    check(Inventory(tree.root, file).devices())


def test_a_pf_that_gets_its_properties(tree: Tree) -> None:
    document = {"resources": [{"name": "a", "kind": "vf"}], "pfs": [{"selectors": {"ifNames": [LONG]}, "numVfs": 1}]}
    rules = config.own.settings(document, prefix="example.com", cdi=False).pfs
    assert [device.id for device in matching(rules, Inventory(tree.root).devices())] == [PF]


def test_a_software_interface_stays(tree: Tree) -> None:
    """It is unhealthy while it is away, because a selector names it."""
    found = Inventory(tree.root).devices()
    document = {"resources": [{"name": "a", "kind": "master", "selectors": {"ifNames": ["the-bridge"]}}]}
    made, _ = offers.offers(config.own.settings(document, prefix="example.com", cdi=False).resources, found)
    kept = offers.keep({"example.com/a": made[0]}, offers.offers([made[0].resource], ())[0], {})
    assert {one.id for unit in kept["example.com/a"].units for one in unit.devices} == {"br0"}
