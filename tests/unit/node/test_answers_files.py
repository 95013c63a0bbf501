"""The files of a grant for other programs: device information, and CDI specifications."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node_host import PF, exclusive, function, host, nodes, resource, vf

from hardware.model import Device, Kind
from node.model import Offer, Selector, Sharing, Unit, Verbs
from node.offer import answers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return host(tmp_path)


FOLDER = "var/run/k8s.cni.cncf.io/devinfo/dp"


def files(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in folder.iterdir()} if folder.exists() else {}


def test_device_information(root: Path) -> None:
    """The format is device-info-spec 1.1.0, the name that of network-attachment-definition-client."""
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


def test_device_information_of_very_many(root: Path) -> None:
    """A pod's author chooses the number, and other calls wait meanwhile.

    Only the first IDs have a file, in the order in which Multus reads one for each of the pod's networks.
    """
    one = (vf(1),)
    offer = Offer(resource(sharing=Sharing.SHARED), tuple(Unit(f"0000:3b:00.1-{n}", one) for n in range(1000)))
    ids = [unit.id for unit in offer.units]
    assert answers.grant(offer, ids, root).nodes == nodes("uverbs1", "rdma_cm")
    assert set(files(root / FOLDER)) == {f"nvidia.com-rail-0-{one}-device.json" for one in sorted(ids)[:256]}


@pytest.mark.parametrize("kind", ["vhost", "virtio"])
def test_device_information_of_vdpa(root: Path, kind: str) -> None:
    """If the resource selects vDPA devices; the format is the one that ovs-cni reads."""
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


def test_no_device_information_of_several(root: Path) -> None:
    """An ID of a pooled resource stands for all devices, and a file describes one."""
    pooled = Offer(resource(sharing=Sharing.SHARED, pooled=True), (Unit("0", (vf(1), vf(2))),))
    assert answers.grant(pooled, ["0"], root).nodes
    assert files(root / FOLDER) == {}


@pytest.mark.parametrize("name", ["eth+1", "br0-", "rail0"])
def test_cdi_names_of_interfaces(root: Path, name: str) -> None:
    """The kernel allows more names than CDI, which refuses a whole file for an invalid one."""
    (root / "sys/class/net" / name).mkdir(parents=True)
    device = Device(name, Kind.NETDEV, netdevs=(name,), rdma=vf(1).rdma)
    offer = exclusive(vf(1), device, cdi=True)
    answers.publish([offer], root)
    (body,) = files(root / "var/run/cdi").values()
    names = [entry["name"] for entry in body["devices"]]
    assert len(set(names)) == 2
    assert [one for one in names if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", one)] == []
    assert answers.grant(offer, [name], root).cdi == (f"hpn.io/net={names[1]}",)


def test_no_place_for_device_information(root: Path) -> None:
    """A failed write does not refuse the device."""
    (root / "var").touch()
    assert answers.grant(exclusive(vf(1)), ["0000:3b:00.1"], root).nodes
    answers.publish([exclusive(vf(1))], root)


CDI = "var/run/cdi"


def test_cdi(root: Path) -> None:
    """A container gets names instead of nodes, and a file defines them; a device without nodes has no name."""
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


def test_cdi_of_what_comes_with_every_device(root: Path) -> None:
    """The nodes stand once, for all devices; and at a device without other nodes, because each needs an edit."""
    everybodys = {"deviceNodes": [{"path": path, "permissions": "rw"} for path in nodes("issm1", "issm2")]}
    for node in nodes("rdma_cm", "uverbs1", "uverbs2", "umad1", "umad2"):
        (root / node[1:]).unlink()
    offer = exclusive(vf(1), vf(2, driver="uio", rdma=()), cdi=True, verbs=Verbs.DIRECTORY)
    (function(root, 2) / "uio/uio3").mkdir(parents=True)
    answers.publish([offer], root)
    (body,) = files(root / CDI).values()
    assert body["containerEdits"] == everybodys
    assert [device["containerEdits"] for device in body["devices"]] == [
        everybodys,
        {"deviceNodes": [{"path": "/dev/uio3", "permissions": "rw"}]},
    ]
    assert len(answers.grant(offer, ["0000:3b:00.1", "0000:3b:00.2"], root).cdi) == 2


def test_all_is_all_of_rdma(root: Path) -> None:
    """A container never gets another one's vfio group."""
    userspace = vf(2, driver="vfio-pci", rdma=())
    (function(root, 2) / "iommu_group").symlink_to("../../12")
    granted = answers.grant(exclusive(vf(1), userspace, verbs=Verbs.ALL), ["0000:3b:00.1"], root)
    assert granted.nodes == nodes("uverbs1", "umad1", "issm1", "rdma_cm")


def test_cdi_files_come_and_go(root: Path) -> None:
    """Files of other programs stay under any name; those of hpn are written only if they change."""
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
    answers.publish([], root)
    assert set(files(folder)) == {"hpn-other.json", "nvidia.com-gpu.json"}
