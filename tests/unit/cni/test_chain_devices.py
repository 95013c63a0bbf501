"""Chain mode: the interface of a shared device.  The devices are a tree."""

from pathlib import Path

import pytest
from support import pci
from support.sysfs_tree import Tree

from base.protocol.errors import LinkUnavailable
from base.state.claims import ClaimedDevice
from cni import chain

PF = "0000:3b:00.0"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    made = Tree(tmp_path / "sys")
    pci.is_sys(made.root, monkeypatch)
    return made


def shared(name: str) -> ClaimedDevice:
    return ClaimedDevice("r", "n/p", "d", "", name, "shared", "example.com/r", "chain", config={"name": "rails"})


def chosen(device: ClaimedDevice) -> dict[str, object]:
    made = chain._configuration(device, {"cniVersion": "1.1.0", "type": "hpn"})
    return {key: value for key, value in made.items() if key in ("master", "pf", "runtimeConfig")}


def test_a_pf_in_switchdev_mode(tree: Tree) -> None:
    """The representors of its VFs are interfaces of the PF too."""
    pf = tree.pci(PF)
    for name, port in (("ens1npf0vf0", "pf0vf0"), ("ens1np0", "p0"), ("ens1npf0sf4", "pf0sf4")):
        tree.netdev(name, pf, phys_port_name=port)
    assert chosen(shared(PF)) == {"master": "ens1np0"}


def test_a_scalable_function(tree: Tree) -> None:
    """Its address is one of the auxiliary bus, and looks like an interface's name."""
    pf = tree.pci(PF)
    tree.netdev("ens1np0", pf)
    sf = tree.auxiliary(PF, "mlx5_core.sf.4", sfnum=88)
    tree.netdev("ens1s88", sf)
    assert chosen(shared("mlx5_core.sf.4")) == {"master": "ens1s88"}


def test_an_interface(tree: Tree) -> None:
    """A bond's, or a VLAN's, with an RDMA device."""
    assert chosen(shared("bond0.100")) == {"master": "bond0.100"}


def test_two_ports_of_one_function(tree: Tree) -> None:
    pf = tree.pci(PF)
    for name in ("ens1", "ens1d1"):
        tree.netdev(name, pf)
    with pytest.raises(LinkUnavailable, match="has 2 interfaces on the host"):
        chosen(shared(PF))
