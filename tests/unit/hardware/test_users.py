"""A function's holder, from sysfs: it hides devices of other namespaces, but not the directories that they are in."""

from pathlib import Path

import pytest
from support.pci import is_sys
from support.sysfs_tree import Tree

from base.kernel import sysfs
from base.protocol.spec import Key
from base.state import claims, journal
from base.state.claims import Claim, ClaimedDevice
from base.state.pod import Identity
from base.state.record import Record
from hardware import users

PF, VF = "0000:3b:00.0", "0000:3b:00.2"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "sys")
    tree.pci(PF)
    return tree


def test_nobody(tree: Tree) -> None:
    vf = tree.pci(VF, pf=PF)
    assert users.user(VF, {}, tree.root) == ""
    tree.netdev("rail0v0", vf)
    tree.rdma("mlx5_1", vf, 1)
    assert users.user(VF, {}, tree.root) == ""


def test_another_namespace_has_its_interface(tree: Tree) -> None:
    vf = tree.pci(VF, pf=PF)
    tree.netdev("rail0v0", vf)
    (vf / "net/rail0v0").rename(vf / "hidden")
    assert users.user(VF, {}, tree.root) == "a namespace that holds its interface"


def test_another_namespace_has_its_rdma_device(tree: Tree) -> None:
    vf = tree.pci(VF, pf=PF)
    tree.netdev("rail0v0", vf)
    tree.rdma("mlx5_1", vf, 1)
    (vf / "infiniband/mlx5_1").rename(vf / "hidden")
    assert users.user(VF, {}, tree.root) == "a namespace that holds its RDMA device"


def test_without_ib_uverbs(tree: Tree) -> None:
    (tree.pci(VF, pf=PF) / "infiniband/mlx5_1").mkdir(parents=True)
    assert users.user(VF, {}, tree.root) == ""


def test_vfio(tree: Tree, tmp_path: Path) -> None:
    """A group that can be opened is free.  One that cannot be may be in use, for another reason than a process."""
    vf = tree.pci(VF, pf=PF, driver="vfio-pci")
    (vf / "iommu_group").symlink_to("../../../kernel/iommu_groups/7")
    (tmp_path / "7").touch()
    assert users.user(VF, {}, tree.root, tmp_path) == ""
    (tmp_path / "7").unlink()
    assert users.user(VF, {}, tree.root, tmp_path) == ""
    (tmp_path / "7").mkdir()
    why = f"may have {tmp_path / '7'} open, which hpn cannot check here (Is a directory)"
    assert users.user(VF, {}, tree.root, tmp_path) == f"a process that {why}"


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci"])
def test_vfio_without_an_iommu_and_by_another_driver(tree: Tree, tmp_path: Path, driver: str) -> None:
    vf = tree.pci(VF, pf=PF, driver=driver)
    (vf / "iommu_group").symlink_to("../../../kernel/iommu_groups/0")
    (tmp_path / "noiommu-0").mkdir()
    assert f"a process that may have {tmp_path / 'noiommu-0'} open" in users.user(VF, {}, tree.root, tmp_path)


@pytest.mark.parametrize("driver", ["igb_uio", "uio_pci_generic"])
def test_uio(tree: Tree, driver: str) -> None:
    tree.pci(VF, pf=PF, driver=driver)
    assert users.user(VF, {}, tree.root) == f"a process that may use it through {driver}"


def attached(state: Path, container: str, device: str, **of_link: object) -> None:
    link = {"device": device, "incarnation": sysfs.incarnation(device)} | of_link
    record = Record(
        "rails", Key(container, "hpn0"), "/n", Identity(1, 1), kind="sriov", link=link, config={}, pod="d/a"
    )
    with journal.lock(state, record.network, record.key) as entry:
        entry.save(record)


def test_a_claim_without_an_attachment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between Prepare and ADD, or for good with attach none.  A shared device stays the host's."""
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    devices = [
        ClaimedDevice("rails", "pool", name, "", name, kind, "example.com/rails", "none", admin=admin)
        for name, kind, admin in ((VF, "vf", False), (PF, "shared", False), ("0000:3b:00.3", "vf", True))
    ]
    claims.save(Claim("0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f", "default", "rails", ("pod",), tuple(devices)))
    owners = users.owners()
    assert users.user(VF, owners, tmp_path) == "claim default/rails"
    assert owners.keys() == {VF}


def test_attachments(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_sys(tree.root, monkeypatch)
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    vfs = [VF, "0000:3b:00.3", "0000:3b:00.4"]
    for vf in vfs:
        tree.pci(vf, pf=PF)
    assert users.owners() == {}
    attached(tmp_path / "state", "one", vfs[0])
    attached(tmp_path / "state", "two", vfs[1])
    attached(tmp_path / "state", "three", vfs[2], incarnation=1)  # of a VF that is gone
    owners = users.owners()
    titles = [f"hpn0 of d/a, container {one}, network rails" for one in ("one", "two")]
    assert {device: owner.title for device, owner in owners.items()} == dict(zip(vfs[:2], titles, strict=True))
    assert users.user(vfs[1], owners, tree.root) == "hpn0 of d/a, container two, network rails"
