"""hpn devices on trees in the format of /sys."""

import json
import re
from itertools import zip_longest
from pathlib import Path

import pytest
import yaml
from support.node_files import read
from support.rdma_tree import gid, hca, port
from support.sysfs_tree import Tree

from base.protocol.errors import LinkUnavailable
from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import Record
from ctl.devices.command import answer
from hardware import inventory
from node.offer.offers import offers

# No machine has this PCI domain, so the journal of the test machine has no such address.
PF, VF0, VF1, VF2, GPU = "fffe:3b:00.0", "fffe:3b:00.2", "fffe:3b:00.3", "fffe:3b:00.4", "fffe:3c:00.0"
SWITCH, DOWNSTREAM = (f"pcifffe:3a/fffe:3a:00.0/fffe:3b:00.0/fffe:3c:0{n}.0" for n in (0, 1))
POD = "hpn0 of default/pod1, container c0ffee, network rail0"
ROWS = [
    ("DEVICE", "NETDEV", "ID", "DRIVER", "NUMA", "VFS", "RDMA", "STATE", "LINK", "GPUS", "USED BY"),
    (PF, "rail0", "15b3:101d", "mlx5_core", "1", "3/8, 1 free", "mlx5_0/1", "ACTIVE", "Ethernet", f"{GPU} PIX", "-"),
    (f"  vf0 {VF0}", "rail0v0", "15b3:101e", "mlx5_core", "1", "-", "mlx5_1/1", "DOWN", "Ethernet", "-", "free"),
    (f"  vf1 {VF1}", "-", "15b3:101e", "mlx5_core", "1", "-", "mlx5_2", "-", "ether", "-", POD),
    (f"  vf2 {VF2}", "-", "15b3:101e", "mlx5_core", "1", "-", "-", "-", "ether", "-",
     "a namespace that holds its interface"),
]  # fmt: skip
LINES = ["mlx5_0 port 1 ==> rail0 (Up)", "mlx5_1 port 1 ==> rail0v0 (Down)"]
LONG_LINES = [
    f"{PF} mlx5_0 (MT4125 - MCX653105A-HDAT) ConnectX-6 VPI  fw 22.31.1014 port 1 (ACTIVE) ==> rail0 (Up)",
    f"{VF0} mlx5_1 (MT4126 - NA         )                 fw 22.31.1014 port 1 (DOWN  ) ==> rail0v0 (Down)",
]
OWN = """\
resources:
- name: example.com/rail0_vf
  kind: vf
  selectors:
    vendors: ["15b3"]
    devices: ["101e"]
    drivers: ["mlx5_core"]
    isRdma: true
    pfNames: ["rail0#0-1"]
- name: example.com/rail0_vf2
  kind: vf
  selectors:
    vendors: ["15b3"]
    devices: ["101e"]
    drivers: ["mlx5_core"]
    pfNames: ["rail0#2"]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A PF with three VFs, below one switch with a GPU.  A pod holds the second VF, and another namespace the third."""
    tree = Tree(tmp_path / "sys")
    pf = tree.pci(PF, above=SWITCH, numa_node=1, sriov_totalvfs=8)
    vfs = [tree.pci(address, above=SWITCH, pf=PF, numa_node=1) for address in (VF0, VF1, VF2)]
    tree.pci(GPU, above=DOWNSTREAM, driver="nvidia", numa_node=1, **{"class": "0x030200"})
    tree.netdev("rail0", pf, carrier=1, mtu=9000)
    for number, vf in enumerate(vfs):
        tree.netdev(f"rail0v{number}", vf, carrier=0, mtu=9000)
    port(hca(tree, "mlx5_0", pf, fw_ver="22.31.1014"))
    port(hca(tree, "mlx5_1", vfs[0], fw_ver="22.31.1014"), state="1: DOWN")
    tree.rdma("mlx5_2", vfs[1], 2)
    for vf in vfs[1:]:
        tree.into_a_pod(vf)
    return tree


@pytest.fixture
def state(tmp_path: Path, tree: Tree) -> Path:
    """A state directory with the pod's attachment in its journal."""
    key = Key("c0ffee", "hpn0")
    link = {"device": VF1, "incarnation": 0}
    record = Record("rail0", key, "/run/netns/x", Identity(1, 2, 3), "sriov", link, {}, pod="default/pod1")
    journal.Entry(tmp_path / "state", "rail0", key).save(record)
    return tmp_path / "state"


def shown(tree: Tree, *words: str, state: Path | None = None) -> str:
    text, status = answer([*words, "--state-dir", f"{state or tree.root}"], tree.root)
    assert status == 0
    return text


def table(text: str) -> list[tuple[str, ...]]:
    """Return the table's cells: columns are at least two blanks apart, and a device below another is indented by
    two."""
    lines = text.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S+(?: BY)?", lines[0])]
    return [tuple(line[begin:end].rstrip() for begin, end in zip_longest(starts, starts[1:])) for line in lines]


def test_a_tree(tree: Tree, state: Path) -> None:
    assert table(shown(tree, state=state)) == ROWS


def test_one_of_them(tree: Tree, state: Path) -> None:
    for name in ("rail0", PF, "mlx5_0"):
        assert table(shown(tree, name, state=state)) == ROWS
    for name in (VF1, "mlx5_2"):
        ((title, *cells),) = table(shown(tree, name, state=state))[1:]
        assert (title, cells[-1]) == (f"vf1 {VF1}", POD)
    with pytest.raises(LinkUnavailable, match=f"no NIC here is called 'rail9'; the NICs are: {PF}"):
        answer(["rail9", "--state-dir", f"{tree.root}"], tree.root)


def test_lines_of_ibdev2netdev(tree: Tree) -> None:
    assert shown(tree, "-v").split("\n\n")[1].splitlines() == LINES
    vpd = tree.root / "bus/pci/devices" / PF / "vpd"
    fields = b"PN\x0fMCX653105A-HDATEC\x02A9"
    vpd.write_bytes(b"\x82\x0e\0ConnectX-6 VPI" + b"\x90" + bytes([len(fields), 0]) + fields + b"\x78")
    assert shown(tree, "-vv").split("\n\n")[1].splitlines() == LONG_LINES
    assert (
        "\n    {}\n".format(LONG_LINES[0].replace("fffe", "0000"))
        in (Path(__file__).parents[4] / "docs/user/rdma.md").read_text()
    )


def test_numbers_that_are_none(tree: Tree) -> None:
    """Invalid numbers, which no kernel writes, appear as NA."""
    (tree.root / "bus/pci/devices" / PF / "device").write_text("0xNVIDIA\n")
    (tree.root / "class/infiniband/mlx5_0/node_type").write_text("010: CA\n")
    assert " (NA - " in shown(tree, "-vv").split("\n\n")[1].splitlines()[0]


def test_lines_of_a_bond_and_of_two_ports(tmp_path: Path) -> None:
    """A RoCE port's interface is that of its GIDs, so the bond; an InfiniBand port's is found by port number."""
    tree = Tree(tmp_path / "sys")
    roce, infiniband = tree.pci(PF), tree.pci("fffe:5e:00.0", **{"class": "0x020700"})
    tree.netdev("ens1f0", roce, carrier=1)
    tree.netdev("bond0", below=["ens1f0"], carrier=1)
    gid(port(hca(tree, "mlx5_bond_0", roce)), 0, "fe80:0000:0000:0000:0ac0:ebff:fe21:03da", "IB/RoCE v1", "bond0")
    tree.netdev("ib0", infiniband, type=32, dev_id="0x0", dev_port=0, carrier=0)
    tree.netdev("ib1", infiniband, type=32, dev_id="0x1", dev_port=0, carrier=1)
    device = hca(tree, "mlx4_0", infiniband)
    for number in (1, 2):
        port(device, number, link_layer="InfiniBand")
    assert shown(tree, "-v").split("\n\n")[1].splitlines() == [
        "mlx5_bond_0 port 1 ==> bond0 (Up)", "mlx4_0 port 1 ==> ib0 (Down)", "mlx4_0 port 2 ==> ib1 (Up)",
    ]  # fmt: skip


def test_selectors(tree: Tree, state: Path) -> None:
    """Both programs select exactly the VFs in the table."""
    _, _, own, theirs = shown(tree, "-v", state=state).split("\n\n")
    assert f"{own}\n" == OWN
    names = ["rail0_vf", "rail0_vf2"]
    selectors = {one["name"].partition("/")[2]: one["selectors"] for one in yaml.safe_load(own)["resources"]}
    assert json.loads(theirs) == {"resourceList": [{"resourceName": n, "selectors": selectors[n]} for n in names]}
    for document in (yaml.safe_load(own), json.loads(theirs)):
        found, _ = offers(read(document, prefix="example.com").resources, inventory.devices(tree.root))
        assert [[unit.id for unit in offer.units] for offer in found] == [[VF0, VF1], [VF2]]


def test_selectors_of_a_pf_without_vfs(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    tree.netdev("ens1f0np0", tree.pci(PF, driver="ice", vendor="0x8086", device="0x1592"))
    _, own, theirs = shown(tree, "-v").split("\n\n")
    for document in (yaml.safe_load(own), json.loads(theirs)):
        ((offer,), _) = offers(read(document, prefix="example.com").resources, inventory.devices(tree.root))
        assert (offer.resource.full_name, [unit.id for unit in offer.units]) == ("example.com/ens1f0np0_pf", [PF])


def test_json(tree: Tree, state: Path) -> None:
    document = json.loads(shown(tree, "--json", state=state))
    (pf,) = document["devices"]
    vf0, vf1, vf2 = pf.pop("below")
    assert (document["rdmaNamespaces"], document["unread"]) == (None, [])
    ports = [{"port": 1, "state": "ACTIVE", "linkLayer": "Ethernet", "rate": "100 Gb/sec (4X EDR)", "netdev": "rail0"}]
    assert pf == {
        "device": PF, "kind": "pf", "netdevs": ["rail0"], "vendor": "15b3", "product": "101d", "driver": "mlx5_core",
        "numa": 1, "linkType": "ether", "rdma": [{"device": "mlx5_0", "fwVer": "22.31.1014", "ports": ports}],
        "usedBy": "", "sriov": {"numVfs": 3, "totalVfs": 8, "free": 1}, "eswitch": "",
        "gpus": [{"address": GPU, "word": "PIX"}], "neighbor": None,
    }  # fmt: skip
    assert [(one["index"], one["usedBy"]) for one in (vf0, vf1)] == [(0, "free"), (1, POD)]
    assert (vf1["rdma"], vf2["rdma"]) == ([{"device": "mlx5_2"}], [])


def test_without_a_nic(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    assert shown(tree) == "there is no NIC here\n"
    assert shown(tree, "-v") == "there is no NIC here\n"
    assert json.loads(shown(tree, "--json"))["devices"] == []


def test_soft_roce(tmp_path: Path) -> None:
    """The interface of soft-RoCE need not belong to a NIC."""
    tree = Tree(tmp_path / "sys")
    tree.netdev("veth0", carrier=1, mtu=1500)
    tree.netdev("veth1", carrier=1, mtu=1500)
    one = port(hca(tree, "rxe0", None, over="veth0"))
    gid(one, 0, "fe80:0000:0000:0000:0ac0:ebff:fe21:03da", "RoCE v2", "veth0")
    ((device, netdev, *_, rdma, state, link, used),) = table(shown(tree))[1:]
    assert (device, netdev, rdma, state, link, used) == ("veth0", "veth0", "rxe0/1", "ACTIVE", "Ethernet", "-")
    assert shown(tree, "-v").split("\n\n")[1:] == ["rxe0 port 1 ==> veth0 (Up)\n"]


def test_a_journal_that_cannot_be_read(tree: Tree, tmp_path: Path) -> None:
    """The output reports that the users of devices are unknown."""
    state = tmp_path / "unreadable"
    state.mkdir()
    (state / "attachments").symlink_to("attachments")
    *_, said = shown(tree, state=state).splitlines()
    assert said.startswith(f"{state}: Too many levels of symbolic links; only root can read the devices' owners")
    assert json.loads(shown(tree, "--json", state=state))["unread"] == [said]
