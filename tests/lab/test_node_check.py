"""hpn node --check with real VFs and RDMA devices: the offers of the four kinds of file."""

import json
import subprocess
from pathlib import Path
from typing import Any

from guest.machine import nics
from guest.node import NAME, PF, RDMA, Node, pci
from support.node_files import HCA, VHCA
from support.node_process import PROGRAM

ROOT = Path(__file__).parents[2]


def check(node: Node, file: Any) -> dict[str, Any]:
    path = node.tmp_path / "config.json"
    path.write_text(json.dumps(file))
    command = [*PROGRAM, "node", "--check", path, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def ids(resource: dict[str, Any]) -> list[str]:
    return [device["id"] for device in resource["devices"]]


def vfs(rail: int) -> list[str]:
    """The addresses of the VFs, ordered by their numbers."""
    return [vf.address for vf in list(nics.pfs())[rail].vfs]


def test_the_sriov_plugins(node: Node) -> None:
    some = {"resourceName": "some", "selectors": [{"pfNames": [f"{PF.upper()}#0,2-3"], "isRdma": True}]}
    root = {"resourceName": "root", "selectors": {"rootDevices": [f"{pci('rail1')}#1"]}}
    rest = {"resourceName": "rest", "selectors": {"drivers": ["igbvf", "igb"]}}
    document = check(node, {"resourceList": [some, root, rest]})
    first, second, third = document["resources"]
    assert sorted(ids(first)) == sorted(vfs(0)[n] for n in (0, 2, 3))
    assert ids(second) == [vfs(1)[1]]
    assert sorted(ids(third)) == sorted([vfs(0)[1], *(vfs(1)[n] for n in (0, 2, 3))])
    assert any(f"leaves out PFs that have VFs: {pci(PF)}" in said for said in document["found"])
    (vf,) = (one for one in first["devices"] if one["id"] == node.device)
    assert (vf["interfaces"], vf["rdma"], vf["driver"]) == ([NAME], [RDMA], "igbvf")


def test_the_shared_plugins(node: Node) -> None:
    entry = {"resourceName": "hca", "rdmaHcaMax": 7, "selectors": {"ifNames": [NAME, "rail1v1"]}}
    (resource,) = check(node, {"configList": [entry]})["resources"]
    assert (resource["name"], resource["ids"], resource["sharing"]) == ("rdma/hca", 7, "shared")
    assert sorted(ids(resource)) == sorted([node.device, pci("rail1v1")])


def test_the_old_plugins(node: Node) -> None:
    (resource,) = check(node, HCA)["resources"]
    assert (resource["name"], resource["ids"]) == ("rdma/hca", 1000)
    assert {*vfs(0), *vfs(1)} <= set(ids(resource))
    (resource,) = check(node, VHCA | {"pfNetdevices": ["rail1"]})["resources"]
    assert (resource["name"], sorted(ids(resource))) == ("rdma/vhca", sorted(vfs(1)))


def test_ours(node: Node) -> None:
    file = {
        "resources": [
            {"name": "example.com/vf", "kind": "vf", "selectors": {"pfNames": [PF]}},
            {"name": "example.com/pf", "kind": "pf", "selectors": {"ifNames": ["rail1"]}},
            {"name": "example.com/macvlan", "kind": "master", "count": 3, "selectors": {"ifNames": ["rail1"]}},
            {"name": "example.com/none", "kind": "vf", "selectors": {"drivers": ["mlx5_core"]}},
        ]
    }
    document = check(node, file)
    vf, pf, master, none = document["resources"]
    assert (sorted(ids(vf)), ids(pf), none["ids"]) == (sorted(vfs(0)), [pci("rail1")], 0)
    assert (ids(master), master["ids"]) == ([], 0)  # a pod with the whole PF has it alone
    assert [said for said in document["found"] if "no vf has driver 'mlx5_core'; there are igbvf" in said]
    assert [said for said in document["found"] if "both claim" in said and pci("rail1") in said]
    assert set(vfs(1)) <= {one["id"] for one in document["unclaimed"]}
