"""The labels of a node by its rails, and which of them are unknown now."""

import re
from dataclasses import replace
from pathlib import Path

from support.sysfs_tree import write

from hardware.model import Device, Kind, RdmaDevice
from hardware.neighbors import Neighbor
from node.labels import content
from node.model import Offer, Resource, Sharing, Unit

RESOURCE = Resource("example.com", "vf", Sharing.EXCLUSIVE, (), kind="vf")
PREFIX = "hpn-cni.io/"


def pf(number: int, **fields: object) -> Device:
    address, name = f"0000:{number:02x}:00.0", f"rail{number}"
    made = Device(address, Kind.PF, netdevs=(name,), pf=address, pf_netdev=name, link_type="ether")
    return replace(made, rdma=(RdmaDevice(f"mlx5_{number}"),), **fields)  # type: ignore[arg-type]


def vf(of: Device) -> Device:
    return Device(f"{of.id[:-1]}2", Kind.VF, pf=of.id, pf_netdev=of.pf_netdev, link_type=of.link_type, index=0)


def at(leaf: str) -> Neighbor:
    return Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1/1", leaf)


class Node:
    """A node with these PFs, of which it offers a VF each; ``sys`` is its /sys."""

    def __init__(self, folder: Path, *pfs: Device) -> None:
        self.sys, self.pfs = folder, pfs
        for one in pfs:
            self.link(one, 400_000)
            self.protocol(one, "1: CA")

    def link(self, of: Device, speed: int) -> None:
        self._write("class/net", of.pf_netdev, speed=speed)

    def protocol(self, of: Device, kind: str) -> None:
        self._write("class/infiniband", of.rdma[0].name, node_type=kind)

    def _write(self, group: str, name: str, **attributes: str | int) -> None:
        (self.sys / group / name).mkdir(parents=True, exist_ok=True)
        write(self.sys / group / name, **attributes)

    def labels(self, *leaves: str, hears: bool = True) -> dict[str, str]:
        """Without their prefix; of the PFs the first ones have these leaves."""
        vfs = tuple(map(vf, reversed(self.pfs)))
        offers = (Offer(RESOURCE, tuple(Unit(one.id, (one,)) for one in vfs)),)
        heard = {one.id: at(leaf) for one, leaf in zip(self.pfs, leaves, strict=False)} if hears else None
        found = content.labels(offers, {one.id: one for one in (*vfs, *self.pfs)}, heard, root=self.sys)
        return {name.removeprefix(PREFIX): value for name, value in found.items()}


def test_two_rails(tmp_path: Path) -> None:
    """Nodes whose rails are at the same leaves have the same hash, which is a label's value."""
    node = Node(tmp_path, pf(10), pf(2))
    found = node.labels("leaf10", "leaf2")
    leaves = found.pop("leaves")
    assert found == {"rails": "2", "rdma": "roce", "speed": "400"}
    assert re.fullmatch("[0-9a-f]{16}", leaves)
    assert Node(tmp_path, pf(2), pf(10)).labels("leaf2", "leaf10")["leaves"] == leaves
    assert node.labels("leaf2", "leaf10")["leaves"] != leaves, "the rails are exchanged"


def test_rails_without_numbers() -> None:
    """They come after those with one, by their names."""
    names = ("ens10f0", "ens9f0", "")
    pfs = [*(pf(number, pf_netdev=name) for number, name in enumerate(names)), pf(7)]
    offered = [Offer(RESOURCE, tuple(Unit(one.id, (vf(one),)) for one in pfs))]
    found = content.rails(offered, {one.id: one for one in pfs})
    assert [one.pf_netdev for one in found] == ["rail7", "", "ens9f0", "ens10f0"]


def test_a_link_that_is_down(tmp_path: Path) -> None:
    """Its speed is unknown, and so is that of a PF in a pod."""
    node = Node(tmp_path, pf(0), pf(1))
    node.link(node.pfs[1], -1)
    assert node.labels()["speed"] == ""
    assert Node(tmp_path, pf(0), pf(1, netdevs=())).labels()["speed"] == ""
    node.link(node.pfs[1], 100_000)
    assert node.labels()["speed"] == "100", "a job is as fast as its slowest rail"


def test_leaves_that_are_not_heard(tmp_path: Path) -> None:
    node = Node(tmp_path, pf(0), pf(1))
    assert node.labels("leaf0")["leaves"] == "", "one is missing"
    assert "leaves" not in node.labels(hears=False), "the file has no lldp"
    assert "leaves" not in Node(tmp_path, pf(0, link_type="infiniband")).labels()


def test_protocols(tmp_path: Path) -> None:
    """Of several, that of most rails; one in a pod in exclusive mode is unknown."""
    ib, node = {"link_type": "infiniband"}, Node(tmp_path, pf(0))
    for kind, name in (("1: CA", "roce"), ("4: RNIC", "iwarp"), ("", ""), ("7: <unknown>", "")):
        node.protocol(node.pfs[0], kind)
        assert node.labels()["rdma"] == name
    assert Node(tmp_path, pf(0), pf(1, **ib), pf(2, **ib)).labels()["rdma"] == "infiniband"
    assert Node(tmp_path, pf(0), pf(1, **ib)).labels()["rdma"] == "infiniband", "the first in the alphabet"


def test_no_rail(tmp_path: Path) -> None:
    """A PF without RDMA is none; nor is one that the file does not offer."""
    one = replace(pf(0), rdma=())
    offers = (Offer(RESOURCE, (Unit(vf(one).id, (vf(one),)),)),)
    assert content.labels(offers, {one.id: one}, {}, hca=True, root=tmp_path) == {}
    assert content.labels((), {pf(0).id: pf(0)}, {}, hca=True, root=tmp_path) == {}


def test_the_label_without_a_prefix(tmp_path: Path) -> None:
    one, offered = Node(tmp_path, pf(0)).pfs[0], vf(pf(0))
    offers = (Offer(RESOURCE, (Unit(offered.id, (offered,)),)),)
    found = [content.labels(offers, {one.id: one}, None, hca=hca, root=tmp_path) for hca in (False, True)]
    assert found[1] == {**found[0], "rdma": "hca"}
    assert found[0].keys() == {f"{PREFIX}{name}" for name in ("rails", "rdma", "speed")}
