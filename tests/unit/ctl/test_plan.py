"""hpn plan on trees in the format of /sys."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.plans import INFINIBAND, OVS, PFS, add, bond, dgx, planned, vfs
from support.rdma_tree import hca, port
from support.sysfs_tree import Tree

from base.protocol.errors import CniError, IoFailure, LinkUnavailable
from ctl.plan import choice
from ctl.plan.command import answer


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


def test_eight_nics(tree: Tree) -> None:
    dgx(tree)
    plan = planned(tree.root)
    rails = [f"rail{number}" for number in range(8)]
    assert plan.device_file == {
        "resources": [{"name": f"example.com/{n}", "kind": "vf", "selectors": {"pfNames": [n]}} for n in rails],
        "pfs": [{"selectors": {"ifNames": rails}, "numVfs": 8}],
        "rdmaNamespaces": "exclusive",
    }
    assert plan.remarks()[1:3] == [
        f"# eno1 (fffe:f0:00.0): left out, {OVS}",
        "# rail0 (fffe:18:00.0), mlx5_0, NUMA 0, GPU fffe:40:00.0 PIX: it can have 16 VFs",
    ]
    assert plan.networks == {
        "rails": {
            "cniVersion": "1.0.0", "name": "rails", "type": "hpn", "kind": "sriov", "resource": None,
            "rails": [f"example.com/{name}" for name in rails],
            "rdma": {"mode": "exclusive", "required": True}, "multiRail": True,
            "ipam": {
                "type": "hpn-ipam", "align": True, "cluster": {"backend": "kubernetes"},
                "rails": [{"pf": name, "subnet": f"10.{56 + number}.0.0/16"} for number, name in enumerate(rails)],
            },
        }
    }  # fmt: skip
    assert plan.label == {
        "rdma": {"networks": ["default/rails@hpn0"], "resources": [f"example.com/{name}" for name in rails]}
    }
    made = {f"example.com/rail{number}": vfs(tree, pf, 8) for number, pf in enumerate(PFS)}
    assert plan.offered(tree.root) == made
    assert planned(tree.root).device_file == plan.device_file


def test_a_network_for_each(tree: Tree) -> None:
    dgx(tree)
    words = ("--prefix", "nvidia.com", "--subnet", "172.16.0.0/20", "--vfs", "4")
    plan, rails = planned(tree.root, "--each", *words), [f"rail{number}" for number in range(8)]
    assert list(plan.networks) == rails
    assert plan.networks["rail3"] == {
        "cniVersion": "1.0.0", "name": "rail3", "type": "hpn", "kind": "sriov", "deviceID": "0000:3b:00.2",
        "rdma": {"mode": "exclusive", "required": True}, "multiRail": True, "resource": "nvidia.com/rail3",
        "ipam": {"type": "hpn-ipam", "subnet": "172.16.48.0/20", "cluster": {"backend": "kubernetes"}},
    }  # fmt: skip
    assert plan.label == {
        "rdma": {
            "networks": [f"default/{name}@hpn{number}" for number, name in enumerate(rails)],
            "resources": [f"nvidia.com/{name}" for name in rails],
        }
    }
    assert plan.device_file["pfs"] == [{"selectors": {"ifNames": rails}, "numVfs": 4}]
    assert planned(tree.root, *words).device_file == plan.device_file


def test_rails_of_several_kinds(tree: Tree) -> None:
    """One network has those with the same keys, and the label counts the interfaces of all."""
    for number, rdma in enumerate(["mlx5_0", "mlx5_1", "", ""]):
        add(tree, PFS[number], f"ens{number}", rdma=rdma, sriov_totalvfs=8)
    for number in range(4, 6):
        add(tree, PFS[number], f"ib{number}", rdma=f"mlx5_{number}", sriov_totalvfs=8, **INFINIBAND)
    add(tree, PFS[6], "rails", sriov_totalvfs=8)
    bond(tree, "ens2", "ens3")
    plan = planned(tree.root)
    assert {name: one.get("rails", one["resource"]) for name, one in plan.networks.items()} == {
        "rails2": ["example.com/ens0", "example.com/ens1"],
        "rails3": ["example.com/ib4", "example.com/ib5"],
        "rails": "example.com/rails",
        "bond0": "example.com/bond0",
    }
    assert plan.label["rdma"]["networks"] == [
        "default/rails2@hpn0", "default/rails3@hpn2", "default/rails@hpn4", "default/bond0@hpn5",
    ]  # fmt: skip
    subnets = [one["ipam"].get("rails", one["ipam"].get("subnet")) for one in plan.networks.values()]
    assert subnets[1:3] == [
        [{"pf": "ib4", "subnet": "10.58.0.0/16"}, {"pf": "ib5", "subnet": "10.59.0.0/16"}],
        "10.60.0.0/16",
    ]


def test_by_dra(tree: Tree) -> None:
    """A network for each rail, because a pod's devices by DRA are in its claims.  Each resource has a DeviceClass."""
    dgx(tree)
    words = ("--as", "master", "rail0", "rail1")
    plan, before = planned(tree.root, *words, "--by", "dra"), planned(tree.root, *words, "--each")
    assert [one.by_dra for one in plan.settings.resources] == [True, True]
    assert [one["spec"]["extendedResourceName"] for one in plan.classes] == ["example.com/rail0", "example.com/rail1"]
    assert (plan.networks, plan.label, before.classes) == (before.networks, before.label, [])
    (resource, _) = planned(tree.root, *words, "--by", "devicePlugin").device_file["resources"]
    assert resource["by"] == "devicePlugin"


def test_as_masters(tree: Tree) -> None:
    """Pods share the RDMA devices, which needs the other mode."""
    dgx(tree)
    plan = planned(tree.root, "--as", "master", "rail0", "rail1")
    assert plan.device_file == {
        "resources": [
            {"name": f"example.com/{n}", "kind": "master", "rdma": "verbs", "selectors": {"ifNames": [n]}}
            for n in ("rail0", "rail1")
        ],
        "rdmaNamespaces": "shared",
    }
    assert plan.networks["rails"].items() >= {"kind": "macvlan", "rdma": {"mode": "shared"}}.items()
    assert plan.networks["rails"]["rails"] == ["example.com/rail0", "example.com/rail1"]
    assert plan.networks["rails"]["ipam"]["rails"] == [
        {"master": "rail0", "subnet": "10.56.0.0/16"}, {"master": "rail1", "subnet": "10.57.0.0/16"},
    ]  # fmt: skip
    assert plan.offered(tree.root) == {"example.com/rail0": [PFS[0]], "example.com/rail1": [PFS[1]]}
    one = planned(tree.root, "--as", "master", "rail1").networks["rail1"]
    assert one.items() >= {"kind": "macvlan", "master": "rail1", "rdma": {"mode": "shared"}}.items()


def test_as_whole_pfs(tree: Tree) -> None:
    """A PF that the host uses, or that has VFs, stays."""
    dgx(tree)
    tree.netdev("rail1.7", below=["rail1"])
    vfs(tree, PFS[2], 2)
    plan = planned(tree.root, "--as", "pf", "rail0", "rail1", "rail2", "mlx5_3")
    assert plan.offered(tree.root) == {"example.com/rail0": [PFS[0]], "example.com/rail3": [PFS[3]]}
    assert plan.networks["rails"]["kind"] == "host-device"
    assert [one["pf"] for one in plan.networks["rails"]["ipam"]["rails"]] == ["rail0", "rail3"]
    assert plan.remarks()[1:3] == [
        "# rail1 (fffe:19:00.0): left out, rail1.7 of the host is over it",
        "# rail2 (fffe:1a:00.0): left out, it has 2 VFs, which send through it",
    ]


def test_vfs_that_no_pod_can_have(tree: Tree) -> None:
    add(tree, PFS[0], "ens1", rdma="mlx5_0", sriov_totalvfs=8)
    free = vfs(tree, PFS[0], 3)
    tree.netdev("vlan7", below=["ens1v1"])
    path = tree.pci("fffe:18:02.0", pf=PFS[0], driver="vfio-pci")
    plan = planned(tree.root)
    assert plan.device_file["resources"][0]["selectors"] == {"pfNames": ["ens1#0,2"]}
    assert plan.remarks()[2:4] == [
        "# VF 1 (fffe:18:01.1): left out, vlan7 of the host is over it",
        f"# VF 3 ({path.name}): left out, vfio-pci drives it",
    ]
    assert plan.offered(tree.root) == {"example.com/ens1": [free[0], free[2]]}
    assert plan.device_file["pfs"] == [{"selectors": {"ifNames": ["ens1"]}, "numVfs": 4}]


def test_a_name_that_is_not_printable(tree: Tree) -> None:
    """It stays in its comment, and shows its control characters."""
    add(tree, PFS[0], "ens1", rdma="mlx5_0")
    add(tree, PFS[1], "ens2", rdma="mlx5_1")
    tree.netdev("a\nb", below=["ens1"])
    assert f"# ens1 ({PFS[0]}): left out, a\\nb of the host is over it" in planned(tree.root, "--as", "pf").remarks()


def test_no_vf_is_free(tree: Tree) -> None:
    add(tree, PFS[0], "ens1", sriov_totalvfs=8)
    tree.pci("fffe:18:02.0", pf=PFS[0], driver="vfio-pci")
    with pytest.raises(LinkUnavailable, match="no pod can have one of its VFs"):
        answer([], tree.root)


def test_more_vfs_than_the_pf_can_have(tree: Tree) -> None:
    """The interface's name becomes one of Kubernetes, which has no capitals."""
    add(tree, PFS[0], "Ens1_0", sriov_totalvfs=3)
    plan = planned(tree.root, "--vfs", "5")
    assert plan.device_file["pfs"] == [{"selectors": {"ifNames": ["Ens1_0"]}, "numVfs": 3}]
    assert list(plan.networks) == ["ens1-0"]
    assert planned(tree.root).device_file["pfs"][0]["numVfs"] == 3


def bonded(tree: Tree, *, rdma: int) -> None:
    """Two PFs in a bond.  mlx5 keeps one RDMA device for both."""
    for number in range(2):
        add(tree, PFS[number], f"ens{number}", rdma=f"mlx5_{number}" if number < rdma else "", sriov_totalvfs=8)
    bond(tree, "ens0", "ens1")


def test_a_bond(tree: Tree) -> None:
    bonded(tree, rdma=1)
    plan = planned(tree.root)
    assert plan.device_file == {
        "resources": [
            {"name": "example.com/bond0", "kind": "master", "rdma": "verbs", "selectors": {"ifNames": ["bond0"]}}
        ],
        "rdmaNamespaces": "shared",
    }
    assert plan.remarks()[1:] == [
        "# ens0 (fffe:18:00.0): left out, it is in bond0",
        "# ens1 (fffe:19:00.0): left out, it is in bond0",
        "# bond0, mlx5_0, NUMA 0: it is not a PF",
        "# Pods share the RDMA devices of the host.",
    ]
    assert plan.networks["bond0"]["master"] == "bond0"
    assert plan.offered(tree.root) == {"example.com/bond0": ["bond0"]}
    with pytest.raises(
        LinkUnavailable, match=r"new VFs would remove the RDMA device that it shares in bond0; .*it is not a PF"
    ):
        answer(["--as", "vf"], tree.root)


def test_a_bond_whose_members_have_vfs(tree: Tree) -> None:
    bonded(tree, rdma=1)
    made = [vfs(tree, pf, 2) for pf in PFS[:2]]
    plan = planned(tree.root)
    assert plan.offered(tree.root) == {"example.com/ens0": made[0], "example.com/ens1": made[1]}
    assert "# bond0: left out, pods get the VFs of ens0, ens1 below it" in plan.remarks()
    assert planned(tree.root, "--as", "master", "bond0").offered(tree.root) == {"example.com/bond0": ["bond0"]}


def test_a_bond_beside_vfs(tree: Tree) -> None:
    """In exclusive mode the bond's RDMA device stays on the host, and its pods get none."""
    bonded(tree, rdma=1)
    add(tree, PFS[2], "ens2", rdma="mlx5_2", sriov_totalvfs=8)
    plan = planned(tree.root)
    assert plan.device_file["rdmaNamespaces"] == "exclusive"
    assert [("rdma" in one) for one in plan.device_file["resources"]] == [False, False]
    assert {name: "rdma" in network for name, network in plan.networks.items()} == {"ens2": True, "bond0": False}


def test_a_bond_without_roce_lag(tree: Tree) -> None:
    """Members with RDMA devices of their own can get VFs."""
    bonded(tree, rdma=2)
    assert [r.full_name for r in planned(tree.root, "--as", "vf").settings.resources] == [
        "example.com/ens0", "example.com/ens1",
    ]  # fmt: skip


def test_infiniband(tree: Tree) -> None:
    """VFs need GUIDs; a PF without SR-IOV, as in a virtual machine, moves by kind sriov: host-device refuses it."""
    add(tree, PFS[0], "ib0", rdma="mlx5_0", sriov_totalvfs=8, **INFINIBAND)
    add(tree, PFS[1], "ib1", rdma="mlx5_1", **INFINIBAND)
    plan = planned(tree.root)
    assert plan.device_file["pfs"] == [{"selectors": {"ifNames": ["ib0"]}, "numVfs": 8, "guids": True}]
    assert plan.networks["ib0"].items() >= {"kind": "sriov", "resource": "example.com/ib0"}.items()
    assert plan.networks["ib1"].items() >= {"kind": "sriov", "pfOnly": True, "resource": "example.com/ib1"}.items()
    made = vfs(tree, PFS[0], 8)
    assert plan.offered(tree.root) == {"example.com/ib0": made, "example.com/ib1": [PFS[1]]}


def test_a_dpu(tree: Tree) -> None:
    """A host's PF of a BlueField without VFs stays with the host, unless it is asked for."""
    add(tree, PFS[0], "ens0", rdma="mlx5_0")
    add(tree, PFS[1], "ens1", rdma="mlx5_1", device="0xa2dc")
    plan = planned(tree.root)
    assert list(plan.networks) == ["ens0"]
    assert f"# ens1 ({PFS[1]}): left out, its DPU serves the host by it; --as pf includes it" in plan.remarks()
    both = planned(tree.root, "--as", "pf").networks["rails"]
    assert both["rails"] == ["example.com/ens0", "example.com/ens1"]


@pytest.mark.parametrize("how", ["pf", "master"])
def test_switchdev(tree: Tree, how: str) -> None:
    """A PF's RDMA device has no RoCE in that mode."""
    add(tree, PFS[0], "ens0", rdma="mlx5_0")
    (nic,) = choice.nics(tree.root)
    one = replace(nic, is_switchdev=True)
    if how == "master":
        one = replace(one, device=replace(one.device, used="the host has 192.0.2.1/24 on it"))
    assert list(choice.decide([one]).left_out.values()) == [
        f"it is in switchdev mode, where its RDMA device has no RoCE; --as {how} includes it"
    ]
    assert [rail.how for rail in choice.decide([one], "master").rails] == ["master"]
    assert [rail.how for rail in choice.decide([replace(one, total_vfs=8)]).rails] == ["vf"]


def test_ipoib(tree: Tree) -> None:
    add(tree, PFS[0], "ib0", rdma="mlx5_0", sriov_totalvfs=8, **INFINIBAND)
    plan = planned(tree.root, "--as", "master")
    assert plan.networks["ib0"].items() >= {"kind": "ipoib", "master": "ib0", "rdma": {"mode": "shared"}}.items()
    assert plan.offered(tree.root) == {"example.com/ib0": [PFS[0]]}


def test_a_bond_of_infiniband(tree: Tree) -> None:
    add(tree, PFS[0], "ib0", **INFINIBAND)
    tree.netdev("bond0", below=["ib0"], type=32)
    (tree.root / "class/net/bond0/bonding").mkdir()
    with pytest.raises(LinkUnavailable, match="bond0: IPoIB children cannot be over it"):
        answer(["bond0"], tree.root)


def test_scalable_functions(tree: Tree) -> None:
    add(tree, PFS[0], "ens1", rdma="mlx5_0", sriov_totalvfs=8, above="pci0000:00")
    for number in range(2):
        sf = tree.auxiliary(PFS[0], f"mlx5_core.sf.{number + 2}", sfnum=number)
        tree.netdev(f"ens1s{number}", sf)
        tree.rdma(f"mlx5_{number + 2}", sf, number + 2)
    plan = planned(tree.root)
    assert plan.offered(tree.root) == {"example.com/ens1": ["mlx5_core.sf.2", "mlx5_core.sf.3"]}
    assert (
        plan.networks["ens1"].items()
        >= {"kind": "host-device", "rdma": {"mode": "exclusive", "required": True}}.items()
    )
    assert "it has 2 scalable functions, and no VFs" in plan.remarks()[1]


def test_scalable_functions_of_infiniband(tree: Tree) -> None:
    add(tree, PFS[0], "ib0", above="pci0000:00", **INFINIBAND)
    tree.netdev("ib0s0", tree.auxiliary(PFS[0], "mlx5_core.sf.2", sfnum=0), type=32)
    with pytest.raises(LinkUnavailable, match="no pod can have a scalable function of InfiniBand"):
        answer([], tree.root)


def erdma(tree: Tree, slot: int, **values: Any) -> Path:
    """Drawn after an Alibaba node: an RDMA function, and its RDMA device."""
    path = tree.pci(f"fffe:{slot:02x}:00.0", driver="erdma", vendor="0x1ded", device="0x107f", **values)
    port(hca(tree, f"rocep{slot}s0", path, node_type="4: RNIC"))
    return path


def test_erdma(tree: Tree) -> None:
    """The RDMA device belongs to a function without interface.  Pods share it, beside interfaces over a virtio NIC."""
    erdma(tree, 9)
    virtio = tree.pci("fffe:06:00.0", driver="virtio-pci", vendor="0x1af4", device="0x1000")
    tree.netdev("eth6", virtio / "virtio3")
    plan = planned(tree.root)
    assert plan.device_file == {
        "resources": [
            {"name": "example.com/eth6", "kind": "master", "selectors": {"ifNames": ["eth6"]}},
            {"name": "example.com/fffe-09-00.0", "kind": "shared", "selectors": {"pciAddresses": ["fffe:09:00.0"]}},
        ],
        "rdmaNamespaces": "shared",
    }
    assert list(plan.networks) == ["eth6"]
    assert "rdma" not in plan.networks["eth6"]
    assert plan.label["rdma"]["resources"] == ["example.com/eth6", "example.com/fffe-09-00.0"]
    assert plan.offered(tree.root) == {
        "example.com/eth6": ["fffe:06:00.0"],
        "example.com/fffe-09-00.0": ["fffe:09:00.0"],
    }


def test_erdma_with_an_interface(tree: Tree) -> None:
    """iWARP has no GIDs of addresses, so ADD must not wait for them."""
    tree.netdev("eth9", erdma(tree, 9))
    assert planned(tree.root).networks["eth9"].items() >= {
        "kind": "host-device", "rdma": {"mode": "exclusive"}, "resource": "example.com/eth9",
    }.items()  # fmt: skip


def test_erdma_beside_vfs(tree: Tree) -> None:
    """RDMA has one mode, and VFs need exclusive mode."""
    erdma(tree, 9)
    add(tree, PFS[0], "ens1", rdma="mlx5_0", sriov_totalvfs=8)
    plan = planned(tree.root)
    assert [one.name for one in plan.settings.resources] == ["ens1"]
    assert plan.remarks()[1].endswith(
        "left out, it has no interface, and in exclusive mode its RDMA device stays on the host"
    )


@pytest.mark.parametrize(
    ("values", "name", "words", "why"),
    [
        ({"driver": "vfio-pci"}, "", [], "vfio-pci drives it, so a process may use it"),
        ({"driver": ""}, "", [], "it has no driver"),
        ({}, "", [], "it has neither interface nor RDMA device"),
        ({}, "ens 1", [], "no selector can name its interface"),
        ({}, "ens1", ["--as", "vf"], "it can have no VFs"),
        ({}, "ens1", ["--as", "sf"], "it has no scalable functions"),
    ],
)
def test_nothing_to_offer(tree: Tree, values: Any, name: str, words: list[str], why: str) -> None:
    add(tree, PFS[0], name, **values)
    with pytest.raises(LinkUnavailable) as raised:
        answer(words, tree.root)
    title, remedy = (
        f"{name} ({PFS[0]})" if name else PFS[0],
        "name an interface that pods can share, as in: hpn plan eth1",
    )
    assert raised.value.msg == f"pods can have no NIC of this node; {title}: {why}; {remedy}"


def test_a_pf_that_a_pod_has(tree: Tree) -> None:
    """Its interface is hidden, and it must not count as a function without one."""
    tree.into_a_pod(add(tree, PFS[0], "ens1", rdma="mlx5_0"))
    with pytest.raises(LinkUnavailable, match="a namespace that holds its interface has it"):
        answer([], tree.root)


def test_software(tree: Tree) -> None:
    """An interface of software is chosen only by its name."""
    tree.netdev("veth0")
    with pytest.raises(LinkUnavailable):
        answer([], tree.root)
    plan = planned(tree.root, "veth0")
    assert plan.offered(tree.root) == {"example.com/veth0": ["veth0"]}
    assert plan.label == {"rails": {"networks": ["default/veth0@hpn0"], "resources": ["example.com/veth0"]}}
    with pytest.raises(LinkUnavailable, match="no NIC here is called 'eth9'; there are: veth0"):
        answer(["eth9"], tree.root)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--prefix", "Example"], r"resources\[0\] .*DNS name"),
        (["--subnet", "10.56.0.1/16"], r"--subnet '10.56.0.1/16', for 1 rails: .*host bits set; write another"),
        (["--subnet", "10.56.0.0/30"], "less than one block"),
        (["--subnet", "x"], "--subnet 'x'"),
    ],
)
def test_wrong_values(tree: Tree, words: list[str], why: str) -> None:
    tree.netdev("veth0")
    with pytest.raises(CniError, match=why):
        answer(["veth0", *words], tree.root)


@pytest.mark.parametrize("words", [["--as", "x"], ["--vfs", "-1"], ["--config", "x"], ["--check", "--output", "x"]])
def test_wrong_options(tree: Tree, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        answer(words, tree.root)


def test_output(tree: Tree, tmp_path: Path) -> None:
    tree.netdev("veth0")
    folder = tmp_path / "plan"
    names = ["devices.yaml", "networks.yaml", "label.yaml", "values.yaml"]
    assert answer(["veth0", "--output", f"{folder}"], tree.root) == ("".join(f"wrote {folder}/{n}\n" for n in names), 0)
    texts = [(folder / name).read_text() for name in names]
    assert "---\n".join(texts[:3]) == planned(tree.root, "veth0").text
    assert (texts[3], 0) == answer(["veth0", "--helm"], tree.root)
    for name in (*names[:2], names[3]):
        (folder / name).unlink()
    answer(["veth0", "--by", "dra", "--output", f"{folder}/dra"], tree.root)
    assert (folder / "dra/classes.yaml").read_text().count("kind: DeviceClass") == 1
    shutil.rmtree(folder / "dra")
    (folder / "label.yaml").write_text("mine")
    with pytest.raises(IoFailure, match=r"label\.yaml exists there; name another directory, or move it"):
        answer(["veth0", "--output", f"{folder}"], tree.root)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("label.yaml", "mine")]
