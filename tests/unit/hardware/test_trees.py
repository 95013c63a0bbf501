"""The readers of /sys on devices of other machines (the folder trees)."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.plans import planned
from support.sysfs_tree import Tree, write

from base.protocol.errors import LinkUnavailable
from ctl.devices import command as devices
from ctl.doctor.command import facts, findings
from ctl.doctor.model import Severity
from ctl.plan import choice
from ctl.plan.command import answer
from hardware.model import Kind
from node import check

TREES = sorted(Path(__file__).parent.joinpath("trees").glob("*.yaml"))
_FIELDS = {"class", "vendor", "device", "driver", "numa_node", "sriov_totalvfs", "netdevs", "rdma", "pf", "above"}


def built(tmp_path: Path, document: dict[str, Any]) -> Tree:
    """The tree of a file, without the attributes that its source does not show."""
    tree, number = Tree(tmp_path / "sys"), 0
    for address, about in document["pci"].items():
        assert about.keys() <= _FIELDS, about.keys() - _FIELDS
        above = {"above": about["above"]} if "above" in about else {}
        path = tree.pci(address, pf=about.get("pf", ""), driver=about.get("driver", ""), **above)
        for name in ("class", "vendor", "device", "numa_node"):
            (path / name).unlink()
        given = about.keys() & {"class", "vendor", "device", "numa_node", "sriov_totalvfs"}
        write(path, **{name: about[name] for name in given})
        for name, values in about.get("netdevs", {}).items():
            tree.netdev(name, path, **values)
        for name, values in about.get("rdma", {}).items():
            _rdma(tree, path, name, number, values)
            number += 1
    if number:
        mode = tree.root / "module/ib_core/parameters"
        mode.mkdir(parents=True)
        (mode / "netns_mode").write_text("Y\n")  # the kernel's default
        (tmp_path / "dev/infiniband").mkdir(parents=True)
        if document.get("rdma_cm", True):
            (tmp_path / "dev/infiniband/rdma_cm").touch()
    for name, values in document.get("software", {}).items():
        tree.netdev(name, below=values["below"])
        if values.get("is_bond"):
            (tree.root / "class/net" / name / "bonding").mkdir()
            for lower in values["below"]:
                (tree.root / "class/net" / lower / "master").symlink_to(f"../{name}")
    return tree


def _rdma(tree: Tree, function: Path, name: str, number: int, values: dict[str, Any]) -> None:
    """An RDMA device with its uverbs, and umad and issm where the source shows them."""
    home = function / "infiniband" / name
    home.mkdir(parents=True)
    write(home, **{key: value for key, value in values.items() if key not in ("ports", "umad", "issm")})
    for port, attributes in values.get("ports", {}).items():
        (home / "ports" / str(port) / "gids").mkdir(parents=True)
        write(home / "ports" / str(port), **attributes)
    mads = [*values.get("umad", ()), *values.get("issm", ())]
    for kind, names in {"infiniband_verbs": [f"uverbs{number}"], "infiniband_mad": mads}.items():
        for node in names:
            path = function / kind / node
            path.mkdir(parents=True)
            write(path, ibdev=name)
            _link(tree, kind, path)
    _link(tree, "infiniband", home)


def _link(tree: Tree, kind: str, path: Path) -> None:
    (tree.root / "class" / kind).mkdir(exist_ok=True)
    (tree.root / "class" / kind / path.name).symlink_to(path)


@pytest.fixture(params=TREES, ids=lambda path: path.stem)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return found


def test_each_reader(tmp_path: Path, document: dict[str, Any]) -> None:
    """hpn devices lists each NIC, hpn plan chooses as the file expects, hpn node offers what the plan says, and hpn
    doctor reads the machine."""
    assert document["name"]
    assert document["source"]
    tree, expected = built(tmp_path, document), document["expect"]
    tops = {one for one, about in document["pci"].items() if about["class"].startswith("0x02") and "pf" not in about}

    text, status = devices.answer(["--json", "--state-dir", str(tmp_path)], tree.root)
    listed = {one["device"]: one for one in json.loads(text)["devices"]}
    assert (status, tops - listed.keys()) == (0, set())
    for address, about in document["pci"].items():
        if address in tops:
            names = set(listed[address]["netdevs"]), {one["device"] for one in listed[address]["rdma"]}
            assert names == (about.get("netdevs", {}).keys(), about.get("rdma", {}).keys())

    found = choice.nics(tree.root)
    assert {nic.device.id for nic in found if nic.device.kind is Kind.PF} == tops
    assert {rail.nic.name: rail.how for rail in choice.decide(found).rails} == expected["plan"]
    if expected["plan"]:
        plan = planned(tree.root)
        offered = {one for ids in plan.offered(tree.root).values() for one in ids}
        assert offered <= document["pci"].keys() | document.get("software", {}).keys()
        for network in plan.networks.values():
            assert network.items() >= expected.get("network", {}).items()
    else:
        with pytest.raises(LinkUnavailable, match="pods can have no NIC of this node"):
            answer([], tree.root)

    file = tmp_path / "devices.yaml"
    file.write_text("resources: [{name: example.com/all, kind: pf, selectors: {vendors: [15b3, 1d0f]}}]")
    text, _ = check.answer(file, root=tree.root, as_json=True)
    offers = json.loads(text)
    ids = {one["id"] for part in (*offers["resources"], {"devices": offers["unclaimed"]}) for one in part["devices"]}
    assert tops <= ids

    known = facts(tmp_path, "", "")
    assert {nic.device.id for nic in known.hardware.nics} >= tops
    assert [(name, one) for name, one in findings(known) if one.severity is not Severity.NOTE] == []
