"""hpn plan --check on trees in the format of /sys."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.documents_of_api import definition, listed, node
from support.plans import INFINIBAND, OVS, PFS, add, dgx, planned, vfs
from support.sysfs_tree import Tree
from support.tls_server import Server, Told

from base.protocol.errors import InvalidConfig, IoFailure
from ctl.plan.command import answer
from node import config


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


def checked(tree: Tree, file: Any, *words: str) -> tuple[list[str], int]:
    path = tree.root.parent / "present.json"
    path.write_text(json.dumps(file))
    text, status = answer([*words, "--check", "--config", f"{path}"], tree.root)
    return [line.replace(f"{path}", "FILE") for line in text.splitlines()], status


def test_definitions_of_the_cluster(tree: Tree, server: Server, asked: tuple[Server, Path]) -> None:
    dgx(tree)
    file, words = planned(tree.root).device_file, ("--kubeconfig", f"{asked[1]}")
    ipam = {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}
    both = [definition("own", None, {"ipam": ipam}), definition("one", None, {"ipam": {**ipam, "overlaps": True}})]
    server.tell(listed(*both), listed(node(), node()), listed())
    (said,), status = checked(tree, file, *words)
    assert said.startswith("NetworkAttachmentDefinition ml/own: its ipam has no cluster, so each of the 2 nodes")
    assert status == 1
    server.tell(listed(both[1]), listed(node(), node()), listed())
    assert checked(tree, file, *words) == (["FILE offers what hpn plan chooses"], 0)
    server.tell(Told(403, {"kind": "Status", "message": "no"}))
    with pytest.raises(IoFailure, match="does not list network-attachment-definitions"):
        checked(tree, file, *words)


@pytest.mark.parametrize("words", [[], ["--each"], ["--as", "master"], ["--as", "pf"], ["--vfs", "3"]])
def test_check_of_the_plan_itself(tree: Tree, words: list[str]) -> None:
    dgx(tree)
    plan = planned(tree.root, *words)
    assert checked(tree, plan.device_file, *words) == (["FILE offers what hpn plan chooses"], 0)
    file = plan.device_file
    for number, resource in enumerate(file["resources"]):
        resource["name"] = f"other.org/{number}"
    assert checked(tree, file, *words)[1] == 0
    if not words:
        for pf in PFS:
            vfs(tree, pf, 8)
        assert checked(tree, file)[1] == 0


def test_the_way(tree: Tree) -> None:
    """It counts only if the command names it."""
    dgx(tree)
    file = planned(tree.root).device_file
    assert checked(tree, file, "--by", "devicePlugin")[1] == 0
    file["resources"] = [one | {"by": "dra"} for one in file["resources"]]
    del file["resources"][3]["by"]
    differs = "FILE: offers example.com/rail3 by devicePlugin; hpn plan by dra"
    assert checked(tree, file, "--by", "dra") == ([differs], 1)
    file["resources"][3]["by"] = "dra"
    assert checked(tree, file, "--by", "dra")[1] == checked(tree, file)[1] == 0


def test_differences(tree: Tree) -> None:
    dgx(tree)
    for number in range(5, 8):
        (tree.root / f"bus/pci/devices/{PFS[number]}/sriov_totalvfs").write_text("0\n")
    file = planned(tree.root).device_file
    first, second, _, fourth, *rest = file["resources"]
    first |= {"kind": "pf", "selectors": {"ifNames": ["rail0"]}}
    fourth["selectors"] = {"pfNames": ["rail3"], "devices": ["101e"], "linkTypes": ["infiniband"]}
    of_ovs = {"name": "a.b/c", "kind": "master", "selectors": {"ifNames": ["eno1"]}}
    gone = {"name": "a.b/gone", "kind": "master", "selectors": {"ifNames": ["vlan9"]}}
    file["resources"] = [first, second, fourth, *rest, of_ovs, gone]
    file["pfs"][0]["selectors"]["ifNames"] = ["rail1", "rail2", "rail3", "rail4"]
    file["pfs"][0]["numVfs"] = 4
    del file["rdmaNamespaces"]
    lines, status = checked(tree, file)
    assert status == 1
    why, uplink = "because it can have 16 VFs", "eno1 (fffe:f0:00.0)"
    assert lines == [
        f"FILE: rail0 ({PFS[0]}): offers it as a whole for one pod each; hpn plan does not offer it as a whole, {why}",
        f"FILE: rail0 ({PFS[0]}): does not offer its VFs; hpn plan offers its VFs for one pod each, {why}",
        f"FILE: rail0 ({PFS[0]}): gives it 0 VFs; hpn plan gives it 8 VFs",
        f"FILE: rail1 ({PFS[1]}): gives it 4 VFs; hpn plan gives it 8 VFs",
        f"FILE: rail2 ({PFS[2]}): does not offer its VFs; hpn plan offers its VFs for one pod each, {why}",
        f"FILE: rail2 ({PFS[2]}): gives it 4 VFs; hpn plan gives it 8 VFs",
        f"FILE: rail3 ({PFS[3]}): does not offer its VFs; hpn plan offers its VFs for one pod each, {why}",
        f"FILE: rail3 ({PFS[3]}): gives it 4 VFs; hpn plan gives it 8 VFs",
        f"FILE: rail4 ({PFS[4]}): gives it 4 VFs; hpn plan gives it 8 VFs",
        f"FILE: {uplink}: offers it as a whole for many pods; hpn plan does not offer it as a whole, because {OVS}",
        "FILE: example.com/rail3 selects no PF or bond of this node, nor a part of one",
        "FILE: a.b/gone selects no PF or bond of this node, nor a part of one",
        "FILE: does not set rdmaNamespaces to exclusive; hpn plan does",
    ]


def test_some_vfs_differ(tree: Tree) -> None:
    """Of a plan for named NICs, the file's other resources are no difference."""
    dgx(tree)
    vfs(tree, PFS[0], 8)
    file = planned(tree.root, "rail0", "rail1").device_file
    file["resources"][0]["selectors"] = {"pfNames": ["rail0#0-2"]}
    lines, status = checked(tree, file, "rail0")
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith(f"FILE: rail0 ({PFS[0]}): offers 3 of its VFs for one pod each; hpn plan offers its VFs")


def test_vfs_that_do_not_exist(tree: Tree) -> None:
    """Their product and driver are unknown."""
    add(tree, PFS[0], "ens1", sriov_totalvfs=8)
    file = planned(tree.root).device_file
    file["resources"][0]["selectors"] |= {"devices": ["101e"], "drivers": ["mlx5_core"]}
    assert checked(tree, file)[1] == 0
    file["resources"][0]["selectors"]["vendors"] = ["8086"]
    assert checked(tree, file)[1] == 1


def test_two_resources_select_one_nic(tree: Tree) -> None:
    """The first has it.  A name without a prefix gets that of the plan."""
    add(tree, PFS[0], "ens1")
    both = [{"name": kind, "kind": kind, "selectors": {"ifNames": ["ens1"]}} for kind in ("master", "pf")]
    assert checked(tree, {"resources": both})[1] == 0
    assert checked(tree, {"resources": both[::-1]})[1] == 1


def test_a_name_that_is_not_printable(tree: Tree) -> None:
    add(tree, PFS[0], "ens1", rdma="mlx5_0")
    add(tree, PFS[1], "ens2", rdma="mlx5_1")
    tree.netdev("a\nb", below=["ens1"])
    file = planned(tree.root, "--as", "pf").device_file
    file["resources"][0]["selectors"]["ifNames"].append("ens1")
    ((line,), status) = checked(tree, file, "--as", "pf")
    assert (line.endswith("because a\\nb of the host is over it"), status) == (True, 1)


def test_guids_differ(tree: Tree) -> None:
    add(tree, PFS[0], "ib0", rdma="mlx5_0", sriov_totalvfs=8, **INFINIBAND)
    file = planned(tree.root).device_file
    del file["pfs"][0]["guids"]
    assert checked(tree, file) == ([f"FILE: ib0 ({PFS[0]}): gives it 8 VFs; hpn plan gives it 8 VFs with GUIDs"], 1)


def test_check_of_a_broken_file(tree: Tree) -> None:
    tree.netdev("veth0")
    with pytest.raises(InvalidConfig, match=r"present\.json: it has none of the keys resources"):
        checked(tree, {}, "veth0")


def test_the_file_that_hpn_node_reads(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the first that exists.  If there is none, the message has hpn's own."""
    tree.netdev("veth0")
    peers = tmp_path / "peer.json"
    monkeypatch.setattr(config, "OURS", tmp_path / "devices.yaml")
    monkeypatch.setattr(config, "DEFAULTS", (config.OURS, peers))
    with pytest.raises(InvalidConfig, match=r"devices\.yaml: no such file"):
        answer(["veth0", "--check"], tree.root)
    peers.write_text(json.dumps({"mode": "hca"}))
    text, status = answer(["veth0", "--check"], tree.root)
    says = "does not offer it as a whole; hpn plan offers it as a whole for many pods, because it is not a PF"
    assert (text, status) == (f"{peers}: veth0: {says}\n", 1)


def test_hidden_sysfs(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="shows no devices"):
        answer([], tmp_path)
