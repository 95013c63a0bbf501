"""What a container gets for its IDs; the names and JSON are those of sriov-network-device-plugin's README."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node import answers
from node.answers import Refused
from node.model import Device, Kind, Offer, RdmaDevice, Resource, Selector, Sharing, Unit, Verbs

PF = "0000:3b:00.0"
MODULE = {"rdma_cm": "rdma_ucm", "uverbs1": "ib_uverbs", "umad1": "ib_umad", "issm1": "ib_umad"}


def rdma(number: int) -> tuple[RdmaDevice, ...]:
    umad, issm = f"/dev/infiniband/umad{number}", f"/dev/infiniband/issm{number}"
    return (RdmaDevice(f"mlx5_{number}", f"/dev/infiniband/uverbs{number}", (umad,), (issm,)),)


def vf(number: int, **fields: Any) -> Device:
    return Device(f"0000:3b:00.{number}", Kind.VF, pf=PF, **{"driver": "mlx5_core", "rdma": rdma(number)} | fields)


def resource(**fields: Any) -> Resource:
    return Resource(
        **{"prefix": "nvidia.com", "name": "rail-0", "sharing": Sharing.EXCLUSIVE, "selectors": ()} | fields
    )


def exclusive(*devices: Device, **fields: Any) -> Offer:
    return Offer(resource(**fields), tuple(Unit(device.id, (device,)) for device in devices))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with the VFs 1 and 2, their RDMA devices, and all other nodes that a container may need."""
    nodes = [f"infiniband/{kind}{n}" for kind in ("uverbs", "umad", "issm") for n in (1, 2)]
    nodes += [
        "infiniband/rdma_cm",
        "vfio/vfio",
        "vfio/12",
        "vfio/noiommu-12",
        "vhost-net",
        "net/tun",
        "uio3",
        "vhost-vdpa-0",
    ]
    for node in nodes:
        (tmp_path / "dev" / node).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / node).touch()
    (tmp_path / "dev/infiniband/by-ibdev").mkdir()
    for number in (1, 2):
        (tmp_path / f"sys/bus/pci/devices/0000:3b:00.{number}").mkdir(parents=True)
    return tmp_path


def function(root: Path, number: int = 1) -> Path:
    return root / f"sys/bus/pci/devices/0000:3b:00.{number}"


def nodes(*names: str) -> tuple[str, ...]:
    return tuple(f"/dev/infiniband/{name}" for name in names)


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
    with pytest.raises(Refused) as caught:
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
    function(root).rmdir()
    assert "device 0000:3b:00.1 was removed from this node; delete the pod" in refusal(offer, "0000:3b:00.1", root)
    assert not (root / "var").exists()


FOLDER = "var/run/k8s.cni.cncf.io/devinfo/dp"


def files(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in folder.iterdir()} if folder.exists() else {}


def test_device_information(root: Path) -> None:
    """As device-info-spec 1.1.0 has it, under the name that network-attachment-definition-client looks for."""
    sf = Device("mlx5_core.sf.4", Kind.SF, pf=PF)
    (root / "sys/bus/auxiliary/devices/mlx5_core.sf.4").mkdir(parents=True)
    answers.grant(exclusive(vf(1), sf), ["0000:3b:00.1", "mlx5_core.sf.4"], root)
    common = {"type": "pci", "version": "1.1.0"}
    assert files(root / FOLDER) == {
        "nvidia.com-rail-0-0000:3b:00.1-device.json": common
        | {"pci": {"pci-address": "0000:3b:00.1", "pf-pci-address": PF, "rdma-device": "mlx5_1"}},
        "nvidia.com-rail-0-mlx5_core.sf.4-device.json": common | {"pci": {"pci-address": PF}},
    }
    share = Offer(resource(sharing=Sharing.SHARED), (Unit("0000:3b:00.1-7", (vf(1),)),))
    answers.grant(share, ["0000:3b:00.1-7"], root)
    others = [
        "nvidia.com-rail-0-x-0000:3b:00.1-device.json",
        "nvidia.com-rail-0-0000:3b:00.1.json",
        "other.com-a-device.json",
    ]
    for other in others:
        (root / FOLDER / other).write_text("{}")
    answers.publish([exclusive(vf(1), vf(2))], root)
    assert set(files(root / FOLDER)) == {"nvidia.com-rail-0-0000:3b:00.1-device.json", *others}


@pytest.mark.parametrize("kind", ["vhost", "virtio"])
def test_device_information_of_vdpa(root: Path, kind: str) -> None:
    """Where the resource asks for that, as ovs-cni reads it."""
    (function(root) / "vdpa0" / ("vhost-vdpa-0" if kind == "vhost" else "virtio5")).mkdir(parents=True)
    for selector in (Selector(vdpa=kind), Selector()):
        granted = answers.grant(exclusive(vf(1, vdpa=kind, rdma=()), selectors=(selector,)), ["0000:3b:00.1"], root)
        (body,) = files(root / FOLDER).values()
        assert granted.nodes == (("/dev/vhost-vdpa-0",) if selector.vdpa == "vhost" else ())
        if selector.vdpa:
            path = {"path": "/dev/vhost-vdpa-0"} if kind == "vhost" else {}
            known = {"parent-device": "vdpa0", "driver": kind, "pci-address": "0000:3b:00.1"} | path
            assert body == {"type": "vdpa", "version": "1.1.0", "vdpa": known}
        else:
            assert body["pci"]["pci-address"] == "0000:3b:00.1"


def test_no_place_for_device_information(root: Path) -> None:
    """That refuses nobody a device."""
    (root / "var").touch()
    assert answers.grant(exclusive(vf(1)), ["0000:3b:00.1"], root).nodes
    answers.publish([exclusive(vf(1))], root)


CDI = "var/run/cdi"


def test_cdi(root: Path) -> None:
    """Names in place of nodes, and a file that says what they stand for; of what has no nodes there is no name."""
    plain = vf(2, rdma=())
    offer = exclusive(vf(1), plain, cdi=True)
    answers.publish([offer, exclusive(vf(1), name="by-nodes")], root)
    granted = answers.grant(offer, ["0000:3b:00.1", "0000:3b:00.2"], root)
    assert (granted.nodes, granted.cdi) == ((), ("hpn.io/net=nvidia.com_rail-0_0000:3b:00.1",))
    assert granted.env["PCIDEVICE_NVIDIA_COM_RAIL_0"] == "0000:3b:00.1,0000:3b:00.2"
    edits = [{"path": f"/dev/infiniband/{node}", "permissions": "rw"} for node in ("uverbs1", "rdma_cm")]
    assert files(root / CDI) == {
        "hpn-nvidia.com_rail-0.json": {
            "cdiVersion": "0.5.0",
            "kind": "hpn.io/net",
            "devices": [{"name": "nvidia.com_rail-0_0000:3b:00.1", "containerEdits": {"deviceNodes": edits}}],
        }
    }


def test_cdi_files_come_and_go(root: Path) -> None:
    """Those of others stay, whatever their names; ours are written only if they change."""
    offer = exclusive(vf(1), cdi=True)
    folder = root / CDI
    folder.mkdir(parents=True)
    (folder / "hpn-other.json").write_text('{"kind": "nvidia.com/gpu"}')
    (folder / "nvidia.com-gpu.json").write_text('{"kind": "hpn.io/net"}')
    answers.publish([offer, exclusive(vf(2), name="b", cdi=True)], root)
    assert set(files(folder)) == {
        "hpn-other.json",
        "nvidia.com-gpu.json",
        "hpn-nvidia.com_rail-0.json",
        "hpn-nvidia.com_b.json",
    }
    inode = (folder / "hpn-nvidia.com_rail-0.json").stat().st_ino
    answers.publish([offer, Offer(resource(name="b", cdi=True), ())], root)
    assert (folder / "hpn-nvidia.com_rail-0.json").stat().st_ino == inode
    assert set(files(folder)) == {"hpn-other.json", "nvidia.com-gpu.json", "hpn-nvidia.com_rail-0.json"}
    answers.publish([replace(offer, resource=resource(cdi=True, verbs=Verbs.MANAGEMENT))], root)
    assert "umad1" in (folder / "hpn-nvidia.com_rail-0.json").read_text()
    answers.withdraw(root)
    assert set(files(folder)) == {"hpn-other.json", "nvidia.com-gpu.json"}
