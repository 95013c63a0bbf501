"""Which RDMA ports of a network namespace are rails."""

from pathlib import Path

import pytest
from support.rdma_tree import gid, hca, port
from support.sysfs_tree import Tree

from ctl.fabric import rails

PF, VF = "fffe:3b:00.0", "fffe:3b:00.2"


def tree_with(root: Path, *addresses: str) -> Tree:
    """Functions whose RDMA device is named as the interface."""
    tree = Tree(root)
    homes = {PF: tree.pci(PF)}
    homes[VF] = tree.pci(VF, pf=PF)
    for number, address in enumerate(addresses):
        name = {PF: "rail0", VF: "rail0v0"}[address]
        tree.netdev(name, homes[address], address=f"02:00:00:00:00:{number:02x}")
        gid(port(hca(tree, name, homes[address])), 0, f"fe80:0000:0000:0000:0000:00ff:fe00:{number:04x}", "", name)
    return tree


@pytest.mark.parametrize(
    ("addresses", "wanted", "found"),
    [
        ((PF, VF), (), ["rail0"]),
        ((VF,), (), ["rail0v0"]),  # a pod's namespace
        ((PF, VF), ("rail0v0", "rail0"), ["rail0v0", "rail0"]),
    ],
)
def test_which_are_rails(tmp_path: Path, addresses: tuple[str, ...], wanted: tuple[str, ...], found: list[str]) -> None:
    """The VFs that wait for pods on a host are none, or each PF's number would depend on their count."""
    tree = tree_with(tmp_path / "sys", *addresses)
    assert [one.netdev for one in rails.read(wanted, tree.root)] == found
