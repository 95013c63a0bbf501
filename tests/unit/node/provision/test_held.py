"""Which VFs are withheld while a child process provisions their PF."""

import shutil
from pathlib import Path

import pytest
from support import pci
from support.sysfs_tree import Tree

from base.kernel import sysfs
from hardware import inventory
from hardware.model import Device
from node.provision.provisioning import Held

RAIL0, RAIL1 = "0000:3b:00.0", "0000:3c:00.0"
OLD, NEW, OTHER = "0000:3b:00.2", "0000:3b:00.3", "0000:3c:00.2"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Two PFs; the first has a VF."""
    tree = Tree(tmp_path / "sys")
    pci.is_sys(tree.root, monkeypatch)
    monkeypatch.setattr(sysfs, "SYS", tree.root)
    tree.pci(RAIL0)
    tree.pci(RAIL1)
    tree.pci(OLD, pf=RAIL0)
    return tree


def devices(tree: Tree) -> tuple[Device, ...]:
    return inventory.devices(tree.root)


def left(held: Held, tree: Tree, *busy: str) -> list[str]:
    """The VFs that are not withheld."""
    return [device.id for device in held.without(devices(tree), busy) if device.kind == "vf"]


def test_those_that_come_meanwhile(tree: Tree) -> None:
    held = Held()
    held.pass_all()
    tree.pci(NEW, pf=RAIL0)
    tree.pci(OTHER, pf=RAIL1)
    assert left(held, tree, RAIL0) == [OLD, OTHER]
    assert held.some
    assert left(held, tree, RAIL0, RAIL1) == [OLD, OTHER]
    assert left(held, tree) == [OLD, NEW, OTHER]
    assert not held.some
    assert left(held, tree, RAIL0, RAIL1) == [OLD, NEW, OTHER]


def test_another_vf_at_the_address_of_one_that_was_let_through(tree: Tree) -> None:
    held = Held()
    held.pass_all()
    assert left(held, tree, RAIL0) == [OLD]
    (tree.root / "devices/pci0000:00" / OLD).rename(tree.root / "was")
    shutil.copytree(tree.root / "was", tree.root / "devices/pci0000:00" / OLD, symlinks=True)
    assert left(held, tree, RAIL0) == []
    assert left(held, tree) == [OLD]


def test_those_of_a_pf_that_comes_with_vfs(tree: Tree) -> None:
    held = Held()
    assert left(held, tree, RAIL0) == []
    assert [device.id for device in held.without(devices(tree), [RAIL0])] == [RAIL0, RAIL1]
