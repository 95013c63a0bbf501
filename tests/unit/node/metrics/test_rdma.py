"""RDMA ports on the page, from a tree like /sys; and the pods that use a device."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.metrics_page import made
from support.sysfs_tree import Tree

from base.protocol.spec import Key
from base.state.pod import Identity
from base.state.record import Record
from hardware import rdma_users
from hardware.rdma_users import OF_HOST, OF_KERNEL, UNKNOWN, User
from node.metrics import page

PF, VF = "0000:3b:00.0", "0000:3b:00.2"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A PF with mlx5_0, and two VFs with mlx5_1 and mlx5_2; each has sent 100 times its number and 7."""
    tree = Tree(tmp_path)
    tree.rdma("mlx5_0", tree.pci(PF), 0)
    for number in (1, 2):
        tree.rdma(f"mlx5_{number}", tree.pci(f"0000:3b:00.{number + 1}", pf=PF), number)
    for number in range(3):
        home = tmp_path / f"class/infiniband/mlx5_{number}"
        (home / "device").symlink_to(home.resolve().parents[1])
        port = home / "ports/1"
        write(port, state="4: ACTIVE" if number else "1: DOWN")
        write(port / "counters", port_xmit_data=100 * number + 7, VL15_dropped="N/A (no PMA)")
        write(port / "hw_counters", out_of_buffer=number, lifespan=10)
    return tree


def write(folder: Path, **files: str | int) -> None:
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def record(*names: str, pod: str = "ns/p", **fields: Any) -> Record:
    link = {"rdma_devs": list(names), **({"device": VF} if "device" not in fields else {})}
    kept = {name: value for name, value in fields.items() if name != "device"}
    return Record("n", Key("c", "hpn0"), "/n", Identity(1, 1), kind="sriov", link=link, config={}, pod=pod, **kept)


def test_ports_and_whose_they_are(tree: Tree) -> None:
    found = made(page.ports([record("mlx5_1")], print, tree.root))
    counter = "hpn_rdma_port_counter_total"
    assert found == {
        ("hpn_rdma_port_active", "1", "mlx5_0"): 0, ("hpn_rdma_port_active", "1", "mlx5_1"): 1,
        (counter, "port_xmit_data", "", "", "1", "mlx5_0"): 7, (counter, "out_of_buffer", "", "", "1", "mlx5_0"): 0,
        (counter, "port_xmit_data", "ns", "p", "1", "mlx5_1"): 107,
        (counter, "out_of_buffer", "ns", "p", "1", "mlx5_1"): 1,
    }  # fmt: skip


def test_a_pod_without_a_namespace(tree: Tree) -> None:
    """Such as podman's."""
    found = made(page.ports([record("mlx5_1", pod="web")], print, tree.root))
    assert found["hpn_rdma_port_counter_total", "port_xmit_data", "", "web", "1", "mlx5_1"] == 107


def test_a_device_that_is_shared_is_nobodys(tree: Tree) -> None:
    found = made(page.ports([record("mlx5_0", device=None)], print, tree.root))
    assert {key[2:4] for key in found if key[0] == "hpn_rdma_port_counter_total"} == {("", "")}


def test_a_record_of_an_older_boot_owns_nothing(tree: Tree) -> None:
    found = made(page.ports([record("mlx5_1", boot="older")], print, tree.root))
    assert {key[-1] for key in found} == {"mlx5_0"}


def test_soft_roce_is_its_pods(tree: Tree) -> None:
    found = made(page.ports([record(device=None, rxe="mlx5_2")], print, tree.root))
    assert found["hpn_rdma_port_counter_total", "port_xmit_data", "ns", "p", "1", "mlx5_2"] == 207


def test_names_that_are_no_text(tree: Tree) -> None:
    """An RDMA device's name may have any bytes."""
    name = os.fsdecode(b"m\xff")
    (tree.root / "class/infiniband/mlx5_1").rename(tree.root / "class/infiniband" / name)
    found = made(page.ports([record(name)], print, tree.root))
    assert found["hpn_rdma_port_counter_total", "port_xmit_data", "ns", "p", "1", "m\\udcff"] == 107


def test_a_machine_without_rdma(tmp_path: Path) -> None:
    assert made(page.ports([record("mlx5_1")], print, tmp_path)) == {}


def test_the_pods_that_use_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods only: of the others, the kernel and the host have no number, and an unknown user would be a false one."""
    uses = {
        ("mlx5_0", User("ml", "train-0", "u-1")): {"qp": 12, "mr": 40, "objects": 60},
        ("mlx5_0", User(uid="u-2")): {"cq": 1},
        ("mlx5_1", User("", "web")): {"qp": 1},
        **{("mlx5_0", user): {"qp": 9, "mr": 9, "cq": 9} for user in (OF_KERNEL, OF_HOST, UNKNOWN)},
    }
    monkeypatch.setattr(rdma_users, "uses", lambda _records, _remark: uses)
    found = made(page.users([], pytest.fail))
    charged = "hpn_pod_rdma_objects", "ml", "train-0", "mlx5_0", "u-1"
    assert found == {charged: 60} | {
        (f"hpn_pod_rdma_{resource}", *labels): number
        for labels, numbers in (
            (("ml", "train-0", "mlx5_0", "u-1"), (12, 40, 0)),
            (("", "", "mlx5_0", "u-2"), (0, 0, 1)),
            (("", "web", "mlx5_1", ""), (1, 0, 0)),
        )
        for resource, number in zip(("qp", "mr", "cq"), numbers, strict=True)
    }
