"""hpn node --check: what a file would offer here, as text and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.node_files import HCA, own, shared, sriov
from support.sysfs_tree import Tree

from base.state import policy
from node import check

PF, VF0, VF1 = "0000:3b:00.0", "0000:3b:00.2", "0000:3b:00.3"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A PF with two VFs, all with an interface and an RDMA device, and a bond."""
    tree = Tree(tmp_path / "sys")
    functions = [tree.pci(PF, numa_node=1), tree.pci(VF0, pf=PF, numa_node=1), tree.pci(VF1, pf=PF, numa_node=-1)]
    for number, (path, name) in enumerate(zip(functions, ("ens1", "ens1v0", "ens1v1"), strict=True)):
        tree.netdev(name, path)
        tree.rdma(f"mlx5_{number}", path, number)
    tree.netdev("bond0")
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/rdma_cm").touch()
    return tree


def checked(tree: Tree, file: Any, **options: Any) -> tuple[list[str], int]:
    path = tree.root.parent / "node.json"
    path.write_text(json.dumps(file))
    text, status = check.answer(path, root=tree.root, **options)
    return [line.replace(str(path), "FILE") for line in text.splitlines()], status


def test_a_table(tree: Tree) -> None:
    lines, status = checked(tree, sriov(resourceName="a", selectors={"pfNames": ["ens1#0"]}, color="red"))
    assert lines == [
        "FILE is a file of sriov-network-device-plugin; it offers 1 ID here",
        "",
        "RESOURCE       IDS  DEVICE        KIND  INTERFACE  RDMA    NUMA",
        "intel.com/a    1    0000:3b:00.2  vf    ens1v0     mlx5_1  1",
        "(no resource)  -    0000:3b:00.0  pf    ens1       mlx5_0  1",
        "                    0000:3b:00.3  vf    ens1v1     mlx5_2  -",
        "",
        "of the file: resourceList[0].color is ignored, there and here",
    ]
    assert status == 0


def test_an_accelerator(tree: Tree) -> None:
    tree.pci("0000:5e:00.0", driver="vfio-pci", **{"class": "0x120000", "vendor": "0x8086", "device": "0x0d5d"})
    lines, _ = checked(tree, own(kind="accelerator", selectors={"devices": ["0d5d"], "drivers": ["vfio-pci"]}))
    assert lines[3].split() == ["example.com/a", "1", "0000:5e:00.0", "accelerator", "-", "-", "0"]
    lines, _ = checked(tree, sriov(deviceType="accelerator"))
    assert lines[3].split()[:3] == ["intel.com/a", "1", "0000:5e:00.0"]
    lines, _ = checked(tree, sriov())
    assert not [line for line in lines if line.startswith("intel.com/a") and "0000:5e:00.0" in line]


def test_all_of_a_pool(tree: Tree) -> None:
    lines, status = checked(tree, HCA)
    assert lines[0].endswith("it offers 1000 IDs here")
    assert [line.split() for line in lines[3:6]] == [
        ["rdma/hca", "1000", PF, "pf", "ens1", "mlx5_0", "1"],
        [VF0, "vf", "ens1v0", "mlx5_1", "1"],
        [VF1, "vf", "ens1v1", "mlx5_2", "-"],
    ]
    assert status == 0


def test_nothing_is_found(tree: Tree) -> None:
    """This is reported, and no fault, because one file may serve many nodes."""
    lines, status = checked(tree, shared(selectors={"ifNames": ["ib7"]}))
    assert lines[3].split() == ["rdma/a", "0", "-", "-", "-", "-", "-"]
    assert lines[-3] == (
        "found here: rdma/a finds nothing here: no pf or vf has interface 'ib7'; there are ens1, ens1v0, ens1v1"
    )
    assert status == 0


@pytest.mark.parametrize(
    ("selectors", "why"),
    [
        ({"drivers": ["mlx5_ib"]}, "finds nothing here: no vf has driver 'mlx5_ib'; there are mlx5_core"),
        ({"pfNames": ["ens1#2-7"]}, "no vf has PF 'ens1#2-7'; there are ens1#0-1"),
        ({"rootDevices": ["0000:5e:00.0"]}, "no vf has PF '0000:5e:00.0'; there are 0000:3b:00.0#0-1"),
        ({"pKeys": ["0x8001"]}, "no vf has partition key '0x0001'"),
        ({"vdpaType": "vhost"}, "no vf has a vDPA device of type 'vhost'"),
        ({"vendors": ["15b3"], "devices": ["0001", "0002"]}, "no vf has device '0001' or '0002'; there are 101e"),
        (
            {"pfNames": ["ens1#0"], "ifNames": ["ens1v1"]},
            "no vf matches all parts of the selector; each part matches some",
        ),
        ([{}, {"linkTypes": ["infiniband"]}], "finds nothing here by its selector 2: no vf has link type 'infiniband'"),
    ],
)
def test_why_nothing_is_found(tree: Tree, selectors: Any, why: str) -> None:
    lines, _ = checked(tree, own(selectors=selectors))
    (said,) = (line for line in lines if line.startswith("found here: example.com/a finds nothing"))
    assert why in said


def test_nothing_of_its_kind(tree: Tree) -> None:
    lines, _ = checked(tree, own(kind="sf", selectors={"vendors": ["15b3"]}))
    assert lines[-1] == "found here: example.com/a finds nothing here: there is no sf"


def test_two_claim_one(tree: Tree) -> None:
    file = {
        "resources": [*own()["resources"], *own(name="example.com/b", selectors={"ifNames": ["ens1v1"]})["resources"]]
    }
    lines, _ = checked(tree, file)
    (said,) = (line for line in lines if "both claim" in line)
    assert "example.com/a (resources[0]) and example.com/b (resources[1]) both claim 0000:3b:00.3" in said


def test_a_resource_is_left_out(tree: Tree) -> None:
    file = {"resources": [*own()["resources"], *own(name="a_b/c")["resources"]]}
    lines, status = checked(tree, file)
    assert [line for line in lines if line.startswith('left out: resources[1] "a_b/c": kubelet accepts a prefix only')]
    assert status == 1


def test_a_file_that_is_refused(tree: Tree) -> None:
    lines, status = checked(tree, own(kind="x", zzz=1))
    assert (len(lines), status) == (2, 2)
    assert lines[0].startswith('FILE: resources[0].kind "x" is not one of')
    lines, status = checked(tree, own(kind="x", zzz=1), as_json=True)
    assert (len(json.loads("\n".join(lines))["refused"]), status) == (2, 2)


def test_flags(tree: Tree) -> None:
    lines, _ = checked(tree, own(name="a"), prefix="example.com")
    assert lines[3].startswith("example.com/a")


def test_as_json(tree: Tree) -> None:
    file = own(kind="master", count=5, selectors={"ifNames": ["ens1", "bond0"]})
    lines, status = checked(tree, file, as_json=True)
    document = json.loads("\n".join(lines))
    (resource,) = document["resources"]
    assert status == 0
    assert {key: resource[key] for key in ("name", "source", "sharing", "ids")} == {
        "name": "example.com/a", "source": "resources[0]", "sharing": "shared", "ids": 10,
    }  # fmt: skip
    assert resource["devices"][0] == {
        "id": PF, "kind": "pf", "interfaces": ["ens1"], "rdma": ["mlx5_0"], "numa": 1, "vendor": "15b3",
        "device": "101d", "driver": "mlx5_core", "linkType": "ether",
    }  # fmt: skip
    assert [one["id"] for one in resource["devices"]] == [PF, "bond0"]
    assert [one["id"] for one in document["unclaimed"]] == [VF0, VF1]
    assert document["unclaimed"][1]["numa"] is None


def test_what_the_machine_lacks(tree: Tree) -> None:
    (tree.root.parent / "dev/infiniband/rdma_cm").unlink()
    lines, status = checked(tree, HCA)
    assert (status, any("modprobe rdma_ucm" in line for line in lines)) == (0, True)


def test_more_locked_memory_than_the_node_allows(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    policy_file = tree.root.parent / "policy.json"
    policy_file.write_text('{"memlockMost": 4096}')
    policy_file.chmod(0o600)
    monkeypatch.setattr(policy, "FILE", f"{policy_file}")
    lines, status = checked(tree, own(cdi=True, memlock="unlimited"))
    why = (
        f"resources[0].memlock unlimited is more than memlockMost 4096 in {policy_file}, which wins for containers of "
    )
    assert (lines[-1].startswith(f"found here: {why}example.com/a; "), status) == (True, check.LEFT_OUT)
    assert checked(tree, own(cdi=True, memlock=4096))[1] == check.WHOLE
