"""What a container gets for its IDs.  Names and JSON are those of sriov-network-device-plugin's README."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node_host import exclusive, function, host, nodes, resource, vf

from base.state import claims
from hardware.model import Device, Kind
from node.model import Offer, Selector, Sharing, Unit, Verbs
from node.offer import answers
from node.offer.answers import AllocateRefused

MODULE = {"uverbs1": "ib_uverbs", "umad1": "ib_umad", "issm1": "ib_umad"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return host(tmp_path)


def information(env: Any) -> Any:
    return json.loads(env["PCIDEVICE_NVIDIA_COM_RAIL-0_INFO"])


def test_an_rdma_vf(root: Path) -> None:
    granted = answers.grant(exclusive(vf(1), vf(2)), ["0000:3b:00.2"], root)
    assert granted.nodes == nodes("uverbs2", "rdma_cm")
    assert granted.env["PCIDEVICE_NVIDIA_COM_RAIL-0"] == "0000:3b:00.2"
    told = {"uverbs": "/dev/infiniband/uverbs2", "rdma_cm": "/dev/infiniband/rdma_cm", "rdma_dev": "mlx5_2"}
    assert information(granted.env) == {"0000:3b:00.2": {"generic": {"deviceID": "0000:3b:00.2"}, "rdma": told}}
    for name in ("", "_INFO"):  # for a shell
        assert granted.env[f"PCIDEVICE_NVIDIA_COM_RAIL_0{name}"] == granted.env[f"PCIDEVICE_NVIDIA_COM_RAIL-0{name}"]
    assert (len(granted.env), granted.cdi) == (4, ())


def test_a_claims_device(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offer is older than the claim.  Who cannot read a claim does not know whose the device is."""
    for module, name in ((claims, "FOLDER"), (answers, "CLAIMS_DIR")):
        monkeypatch.setattr(module, name, f"{tmp_path}/claims")
    uid = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
    one = claims.ClaimedDevice("r", "n/p", "d", "", "0000:3b:00.1", "vf", "example.com/r", "none")
    claims.save(claims.Claim(uid, "default", "c", (), (one,)))
    offer = exclusive(vf(1), vf(2))
    with pytest.raises(
        AllocateRefused, match=r"Kubernetes allocated '0000:3b:00.1' to claim default/c; delete the pod"
    ):
        answers.grant(offer, ["0000:3b:00.1"], root)
    assert answers.grant(offer, ["0000:3b:00.2"], root).nodes
    (tmp_path / "claims" / f"{uid}.json").write_text('{"id":"0000:3b:00.2"')
    with pytest.raises(AllocateRefused, match=r"device 0000:3b:00.2 may be a claim's: "):
        answers.grant(offer, ["0000:3b:00.2"], root)


def test_several_in_the_order_of_multus(root: Path) -> None:
    granted = answers.grant(exclusive(vf(2), vf(1)), ["0000:3b:00.2", "0000:3b:00.1"], root)
    assert granted.env["PCIDEVICE_NVIDIA_COM_RAIL-0"] == "0000:3b:00.1,0000:3b:00.2"
    assert granted.nodes == nodes("uverbs1", "rdma_cm", "uverbs2")


def test_a_name_that_a_shell_can_read_is_given_once(root: Path) -> None:
    granted = answers.grant(exclusive(vf(1), name="rail0"), ["0000:3b:00.1"], root)
    assert set(granted.env) == {"PCIDEVICE_NVIDIA_COM_RAIL0", "PCIDEVICE_NVIDIA_COM_RAIL0_INFO"}


@pytest.mark.parametrize(
    ("verbs", "expected"),
    [
        (Verbs.CHOSEN, nodes("uverbs1", "rdma_cm")),
        (Verbs.MANAGEMENT, nodes("uverbs1", "umad1", "issm1", "rdma_cm")),
        (Verbs.ALL, nodes("uverbs1", "umad1", "issm1", "rdma_cm", "uverbs2", "umad2", "issm2")),
        (Verbs.DIRECTORY, nodes("issm1", "issm2", "rdma_cm", "umad1", "umad2", "uverbs1", "uverbs2")),
        (Verbs.NONE, ()),
    ],
)
def test_verbs(root: Path, verbs: Verbs, expected: tuple[str, ...]) -> None:
    granted = answers.grant(exclusive(vf(1), vf(2), verbs=verbs), ["0000:3b:00.1"], root)
    assert granted.nodes == expected
    told = information(granted.env)["0000:3b:00.1"].get("rdma", {})
    assert ("umad" in told, "uverbs" in told) == (verbs in (Verbs.MANAGEMENT, Verbs.ALL), verbs is not Verbs.NONE)


@pytest.mark.parametrize("verbs", [Verbs.CHOSEN, Verbs.MANAGEMENT, Verbs.ALL, Verbs.DIRECTORY])
def test_a_node_without_rdma_cm(root: Path, verbs: Verbs) -> None:
    """EFA has no RDMA CM, and sriov-network-device-plugin offers devices without it too."""
    offer = exclusive(vf(1), verbs=verbs)
    before = answers.grant(offer, ["0000:3b:00.1"], root)
    (root / "dev/infiniband/rdma_cm").unlink()
    granted = answers.grant(offer, ["0000:3b:00.1"], root)
    assert set(before.nodes) - set(granted.nodes) == set(nodes("rdma_cm"))
    assert "/dev/infiniband/uverbs1" in granted.nodes
    assert "rdma_cm" not in information(granted.env)["0000:3b:00.1"]["rdma"]


def test_shared_and_pooled(root: Path) -> None:
    one = Offer(resource(sharing=Sharing.SHARED), tuple(Unit(f"0000:3b:00.1-{n}", (vf(1),)) for n in range(3)))
    granted = answers.grant(one, ["0000:3b:00.1-2"], root)
    assert (granted.nodes, granted.env["PCIDEVICE_NVIDIA_COM_RAIL_0"]) == (nodes("uverbs1", "rdma_cm"), "0000:3b:00.1")
    both = Offer(resource(sharing=Sharing.SHARED, pooled=True), tuple(Unit(str(n), (vf(1), vf(2))) for n in range(3)))
    granted = answers.grant(both, ["1"], root)
    assert granted.nodes == nodes("uverbs1", "rdma_cm", "uverbs2")
    assert granted.env["PCIDEVICE_NVIDIA_COM_RAIL_0"] == "0000:3b:00.1,0000:3b:00.2"


@pytest.mark.parametrize(("name", "node"), [("", "12"), ("vfio-noiommu", "noiommu-12")])
def test_vfio(root: Path, name: str, node: str) -> None:
    group = root / "sys/kernel/iommu_groups/12"
    group.mkdir(parents=True)
    if name:
        (group / "name").write_text(f"{name}\n")
    (function(root) / "iommu_group").symlink_to(group)
    granted = answers.grant(exclusive(vf(1, driver="vfio-pci", rdma=())), ["0000:3b:00.1"], root)
    assert granted.nodes == ("/dev/vfio/vfio", f"/dev/vfio/{node}")
    assert information(granted.env)["0000:3b:00.1"]["vfio"] == {
        "mount": "/dev/vfio/vfio",
        "dev-mount": f"/dev/vfio/{node}",
    }


def test_other_providers(root: Path) -> None:
    (function(root) / "uio/uio3").mkdir(parents=True)
    (function(root) / "vdpa0/vhost-vdpa-0").mkdir(parents=True)
    extra = {"*": {"a": "1", "b": "1"}, "0000:3b:00.1": {"b": "2"}, "0000:3b:00.2": {"c": "3"}}
    fields = {"extra": extra, "vhost_net": True, "selectors": (Selector(vdpa="vhost"),)}
    device = vf(1, driver="uio_pci_generic", vdpa="vhost", rdma=())
    granted = answers.grant(exclusive(device, **fields), ["0000:3b:00.1"], root)
    assert granted.nodes == ("/dev/uio3", "/dev/vhost-net", "/dev/net/tun", "/dev/vhost-vdpa-0")
    assert information(granted.env)["0000:3b:00.1"] == {
        "generic": {"deviceID": "0000:3b:00.1"},
        "uio": {"mount": "/dev/uio3"},
        "vhost": {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"},
        "vdpa": {"mount": "/dev/vhost-vdpa-0"},
        "extra": {"a": "1", "b": "2"},
    }


def test_an_interface_of_software(root: Path) -> None:
    (root / "sys/class/net/bond0").mkdir(parents=True)
    bond = Device("bond0", Kind.NETDEV, names=("bond0",))
    granted = answers.grant(exclusive(bond), ["bond0"], root)
    assert (granted.nodes, granted.env["PCIDEVICE_NVIDIA_COM_RAIL_0"]) == ((), "bond0")
    assert not (root / "var").exists()


def refusal(offer: Offer, one: str, root: Path) -> str:
    with pytest.raises(AllocateRefused) as caught:
        answers.grant(offer, [one], root)
    return str(caught.value)


def test_refused(root: Path) -> None:
    offer = exclusive(vf(1), verbs=Verbs.MANAGEMENT)
    assert "nvidia.com/rail-0: this node does not have '0000:3b:00.2' now" in refusal(offer, "0000:3b:00.2", root)
    for node, module in MODULE.items():
        (root / "dev/infiniband" / node).unlink()
        said = refusal(offer, "0000:3b:00.1", root)
        assert (
            said
            == f"nvidia.com/rail-0: /dev/infiniband/{node} is missing on this node; load {module}: modprobe {module}"
        )
        (root / "dev/infiniband" / node).touch()
    needed = exclusive(replace(vf(1), used="the host has 192.0.2.1/24 on it"))
    said = "the host needs device 0000:3b:00.1 now: the host has 192.0.2.1/24 on it; delete the pod"
    assert said in refusal(needed, "0000:3b:00.1", root)
    function(root).rmdir()
    assert "device 0000:3b:00.1 was removed from this node; delete the pod" in refusal(offer, "0000:3b:00.1", root)
    assert not (root / "var").exists()
