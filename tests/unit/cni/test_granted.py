"""A container's device nodes against those of its RDMA device in the pod.  The device is a tree, which the test
renumbers."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import pci
from support.sysfs_tree import Tree
from support.topology import until

from base.kernel import budget
from base.protocol import location
from base.protocol.errors import LinkUnavailable, TryAgain
from base.protocol.spec import Request
from base.state import numbers
from cni.features import granted
from cni.models import Rdma
from cni.models.sriov import Sriov

PF, VF = "0000:3b:00.0", "0000:3b:00.2"
MOVED: dict[str, Any] = {"device": VF, "rdma": [(7, "mlx5_7")], "port": None, "wanted": {}}


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A VF with uverbs4, umad4 and issm4."""
    tree = Tree(tmp_path / "sys")
    tree.pci(PF)
    vf = tree.pci(VF, pf=PF)
    tree.rdma("mlx5_7", vf, 4)
    pci.is_sys(tree.root, monkeypatch)
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    monkeypatch.setattr(granted, "_CDI", (f"{tmp_path}/cdi", f"{tmp_path}/dynamic"))
    return vf


def renumber(device: Path, number: int) -> None:
    """Renumber the device's nodes, as a move does."""
    for folder in ("infiniband_verbs", "infiniband_mad"):
        for node in list((device / folder).iterdir()):
            node.rename(node.with_name(f"{node.name.rstrip('0123456789')}{number}"))


def attached(
    device: Path, number: int = 4, *, uid: str = "", plan: dict[str, Any] | None = None, claim: str = "", **keys: Any
) -> list[str]:
    """Return ADD's log for a device that gets another number."""
    attach = Sriov(**{"deviceID": VF, "rdma": Rdma(required=True)} | keys)
    args = f"IgnoreUnknown=1;K8S_POD_UID={uid}" if uid else ""
    log = list[str]()
    with granted.kept(attach, MOVED if plan is None else plan, Request({"CNI_ARGS": args}, b""), log, claim):
        renumber(device, number)
    return log


def test_the_numbers_stay(device: Path) -> None:
    assert attached(device, uid="one") == []
    assert not os.path.exists(f"{location.state_dir()}/rdma")


def test_another_number(device: Path) -> None:
    """The pod's next ADD finds the number that the first ADD left, and still fails; its successor gets that number."""
    said = f"rdma.required: {VF} has uverbs2, issm2, umad2 in the pod, but the container got uverbs4, issm4, umad4"
    for _ in range(2):
        with pytest.raises(LinkUnavailable, match=said):
            attached(device, 2, uid="one")
    assert attached(device, 2, uid="two") == []


def test_a_pod_without_a_uid(device: Path) -> None:
    """It cannot be identified later."""
    with pytest.raises(LinkUnavailable):
        attached(device, 2)
    assert attached(device, 2) == []


def test_not_required(device: Path) -> None:
    for _ in range(2):
        (line,) = attached(device, 2, uid="one", rdma=Rdma())
        assert line.startswith(f"{VF} has uverbs2, ")


def test_its_number_comes_back(device: Path) -> None:
    with pytest.raises(LinkUnavailable):
        attached(device, 5, uid="one")
    assert attached(device, 4, uid="one") == []


def test_a_damaged_note(device: Path) -> None:
    with pytest.raises(LinkUnavailable):
        attached(device, 2, uid="one")
    Path(location.state_dir(), "rdma", VF).write_text("{")
    assert attached(device, 2, uid="one") == []


@pytest.mark.parametrize(
    ("keys", "plan"),
    [
        ({"deviceID": "", "pf": "ens1"}, MOVED),
        ({}, MOVED | {"rdma": []}),
        ({}, MOVED | {"rdma": [], "port": {"driver": "mlx5_core"}}),
        ({}, {"mac": "02:00:00:00:00:01"}),
    ],
    ids=["by pf", "shared", "shared InfiniBand", "macvlan"],
)
def test_what_nobody_was_given_or_nothing_renumbers(device: Path, keys: dict[str, Any], plan: dict[str, Any]) -> None:
    assert attached(device, 2, uid="one", plan=plan, **keys) == []


def test_bound_again_for_a_guid(device: Path) -> None:
    plan = MOVED | {"rdma": [], "port": {"driver": "mlx5_core"}, "wanted": {"port_guid": "00:11:22:33:44:55:66:77"}}
    with pytest.raises(LinkUnavailable):
        attached(device, 2, uid="one", plan=plan)


def specify(number: int, name: str = VF, place: int = 0) -> None:
    """Write the device's file, into one of the runtimes' directories."""
    nodes = [{"path": f"/dev/infiniband/{node}"} for node in (f"uverbs{number}", "rdma_cm")]
    device = {"name": f"nvidia.com_rail-0_{name}", "containerEdits": {"deviceNodes": nodes}}
    folder = Path(granted._CDI[place])
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text(json.dumps({"devices": [device]}))
    (folder / "new").rename(folder / "hpn-nvidia.com_rail-0.json")


@pytest.mark.parametrize("place", [0, 1])
def test_given_by_cdi(device: Path, place: int) -> None:
    specify(2, place=place)
    assert attached(device, 2, uid="one") == []


def test_written_a_moment_later(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granted, "_WRITTEN", 60.0)
    specify(4)

    def write() -> None:
        until((device / "infiniband_verbs/uverbs2").exists)
        specify(2)

    with ThreadPoolExecutor() as threads:
        written = threads.submit(write)
        assert attached(device, 2, uid="one") == []
        written.result()


def test_not_written(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn node may not run.  The pod's next ADD succeeds after it wrote the nodes, so the pod need not go."""
    monkeypatch.setattr(granted, "_WRITTEN", 0.1)
    specify(4)
    with pytest.raises(LinkUnavailable, match=r"got uverbs4, .*; start hpn node, which has not"):
        attached(device, 2, uid="one")
    specify(2)
    assert attached(device, 2, uid="one") == []


def test_a_wait_for_hpn_node_is_not_of_the_budget(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded node writes late, and the waits for the pod are still to come."""
    monkeypatch.setattr(granted, "_WRITTEN", 0.1)
    budget.begin()
    specify(4)
    with pytest.raises(LinkUnavailable):
        attached(device, 2, uid="one")
    assert budget.left() == budget.REQUEST


def test_another_device_is_given_by_cdi(device: Path) -> None:
    specify(2, "0000:3b:00.3")
    with pytest.raises(LinkUnavailable):
        attached(device, 2, uid="one")


UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
CLAIM = f"{UID}/1"


def of_claim(number: int, uid: str = UID, *nodes: str) -> None:
    """Write the claim's file, whose second device has these nodes."""
    paths = nodes or (f"/dev/infiniband/uverbs{number}", "/dev/infiniband/rdma_cm")
    devices = [
        {"name": f"{uid}-{n}", "containerEdits": {"deviceNodes": [{"path": path} for path in of_device]}}
        for n, of_device in enumerate((("/dev/infiniband/uverbs9",), paths))
    ]
    folder = Path(granted._CDI[0])
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text(json.dumps({"devices": devices}))
    (folder / "new").rename(folder / f"hpn-claim-{uid}.json")


def test_a_claim_gives_its_own_file_only(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the resource (cdi: true), of another claim, or of the claim's other device is not the container's."""
    monkeypatch.setattr(granted, "_WRITTEN", 0.1)
    of_claim(4)
    of_claim(2, UID.replace("0d", "1d"))
    specify(2)
    for _ in range(2):  # also after the device has its number
        with pytest.raises(LinkUnavailable, match=r"has uverbs2, .* but the container got uverbs4, .*start hpn node"):
            attached(device, 2, uid="one", claim=CLAIM)
    (line,) = attached(device, 2, uid="one", claim=CLAIM, rdma=Rdma())
    assert "got uverbs4" in line
    of_claim(2)
    assert attached(device, 2, uid="one", claim=CLAIM) == []
    assert not os.path.exists(f"{location.state_dir()}/rdma")


def test_a_claims_file_that_is_stale_before_the_move(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver was loaded again between Prepare and ADD, and the move changes nothing."""
    monkeypatch.setattr(granted, "_WRITTEN", 0.1)
    of_claim(2)
    with pytest.raises(LinkUnavailable):
        attached(device, 4, claim=CLAIM)
    of_claim(4)
    assert attached(device, 4, claim=CLAIM) == []


def test_a_claim_without_rdma_nodes(device: Path) -> None:
    """Its resource has rdma: none, or its file is gone, and no container starts."""
    assert attached(device, 2, claim=CLAIM) == []
    of_claim(4, UID, "/dev/vhost-net")
    assert attached(device, 3, claim=CLAIM) == []


def test_a_device_that_loses_its_nodes(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every resource by CDI contains all of no nodes."""
    monkeypatch.setattr(granted, "_WRITTEN", 0.1)
    specify(4)

    def lose() -> None:
        for folder in ("infiniband_verbs", "infiniband_mad"):
            for one in list((device / folder).iterdir()):
                one.rename(device / f"gone-{one.name}")

    attach = Sriov(deviceID=VF, rdma=Rdma(required=True))
    said = "has no device node in the pod"
    with pytest.raises(LinkUnavailable, match=said), granted.kept(attach, MOVED, Request({}, b""), []):
        lose()


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": [{}]}', '{"devices": [{"name": 7}]}'])
def test_a_damaged_file(device: Path, text: str) -> None:
    Path(granted._CDI[0]).mkdir()
    Path(granted._CDI[0], "hpn-x.json").write_text(text)
    with pytest.raises(LinkUnavailable):
        attached(device, 2, uid="one")


@pytest.mark.usefixtures("device")
def test_what_comes_home_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process's driver may hang, and a pod must be deletable.  Usually the lock is free."""
    monkeypatch.setattr(numbers, "_MOMENT", 0.05)
    with numbers.lock(), numbers.lock_for_a_moment():
        pass
    with numbers.lock_for_a_moment(), pytest.raises(TryAgain):
        numbers.lock(0.05)
