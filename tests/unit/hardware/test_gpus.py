"""A GPU's distance from a NIC, in trees like /sys."""

from pathlib import Path

import pytest
from support.sysfs_tree import Tree

from hardware import functions
from hardware.functions import Near, nearest, place, relation

NIC = "0000:3d:00.0"
ROOT = "pci0000:3a/0000:3a:00.0"
SWITCH = f"{ROOT}/0000:3b:00.0"  # its upstream port; a downstream port for each device is below that


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "sys")
    tree.pci(NIC, above=f"{SWITCH}/0000:3c:00.0", numa_node=0)
    return tree


def gpu(
    tree: Tree, above: str, address: str = "0000:9b:00.0", numa: int = 0, code: str = "0x030200", **more: str
) -> str:
    tree.pci(address, driver="nvidia", above=above, numa_node=numa, **{"class": code, "vendor": "0x10de"} | more)
    return address


@pytest.mark.parametrize(
    ("above", "numa", "word"),
    [
        (f"{SWITCH}/0000:3c:01.0", 0, "PIX"),
        (f"{SWITCH}/0000:3c:01.0/0000:9a:00.0/0000:9a:01.0", 0, "PXB"),  # a second switch below the first
        (f"{ROOT}/0000:9a:00.0/0000:9a:01.0", 0, "PXB"),
        ("pci0000:3a/0000:3a:02.0", 0, "PHB"),
        ("pci0000:3a", 0, "PHB"),
        ("pci0000:9a/0000:9a:00.0", 0, "NODE"),
        ("pci0000:9a/0000:9a:00.0", 1, "SYS"),
        ("pci0000:9a/0000:9a:00.0", -1, "SYS"),
    ],
)
def test_near(tree: Tree, above: str, numa: int, word: str) -> None:
    """The names of nvidia-smi topo -m."""
    address = gpu(tree, above, numa=numa)
    assert relation(place(NIC, tree.root), place(address, tree.root)) == word


def test_the_nearest(tree: Tree) -> None:
    """Only the nearest ones, and none on another NUMA node."""
    far = gpu(tree, "pci0000:da", "0000:db:00.0", numa=1)
    found = [place(far, tree.root)]
    assert nearest(place(NIC, tree.root), found) == ()
    same = [gpu(tree, f"{SWITCH}/0000:3c:0{n}.0", f"0000:4{n}:00.0") for n in (1, 2)]
    gpu(tree, "pci0000:3a/0000:3a:02.0")
    assert nearest(place(NIC, tree.root), functions.gpus(tree.root)) == tuple(Near(address, "PIX") for address in same)


def test_what_is_a_gpu(tree: Tree) -> None:
    above = f"{SWITCH}/0000:3c:01.0"
    yes = [
        gpu(tree, above, "0000:41:00.0"),
        gpu(tree, above, "0000:42:00.0", code="0x030000"),
        gpu(tree, above, "0000:43:00.0", code="0x038000", vendor="0x1002"),
        gpu(tree, above, "0000:44:00.0", code="0x120000", vendor="0x1da3"),
    ]
    gpu(tree, above, "0000:45:00.0", code="0x030000", vendor="0x1a03")  # a BMC's
    gpu(tree, above, "0000:46:00.0", code="0x040300")  # the sound that comes with a GPU
    tree.pci("0000:41:00.4", above=above, pf="0000:41:00.0", **{"class": "0x030200"})
    assert [one.address for one in functions.gpus(tree.root)] == yes
