"""The device information file (device-info-spec 1.1.0): ADD writes and keeps it, and an undo restores it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.disks import no_file_longer_than

from base.protocol.errors import InvalidConfig, IoFailure
from cni.features import device_info

pytestmark = pytest.mark.usefixtures("node_file")
VF = {"device": "0000:3b:10.1", "pf": "0000:3b:00.0", "rdma_devs": ["mlx5_4", "mlx5_5"]}
SF = {"device": "mlx5_core.sf.4", "pci": "0000:3b:00.0", "pf": "", "rdma_devs": ["mlx5_7"]}
VETH = {"device": "", "pci": "", "pf": "", "rdma_devs": []}
MACVLAN = {"master": "ens1f0", "pci": "0000:3b:00.0", "rdma_devs": []}
GIDS = [{"address": "10.56.0.2", "device": "mlx5_4", "port": 1, "index": 3, "type": "RoCE v2"}]
# A device plugin's file.
PLUGIN = {"type": "pci", "version": "1.0.0", "pci": {"pci-address": "0000:3b:10.1", "vhost-net": "/dev/vhost-net"}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "devinfo/cni/default-rail0-0123_hpn0"


def asked(path: object) -> dict[str, Any]:
    return {"runtimeConfig": {"CNIDeviceInfoFile": path}}


def written(file: Path, link: dict[str, Any]) -> dict[str, Any]:
    """The file's content after plan and write."""
    planned = device_info.plan(asked(str(file)), link)
    device_info.write(planned, link, link["rdma_devs"], GIDS)
    return json.loads(file.read_text()) if file.exists() else {}


def test_a_file_of_ours(file: Path) -> None:
    planned = device_info.plan(asked(str(file)), VF)
    assert written(file, VF) == {
        "type": "pci",
        "version": "1.1.0",
        "pci": {"pci-address": "0000:3b:10.1", "pf-pci-address": "0000:3b:00.0", "rdma-device": "mlx5_4,mlx5_5"},
        "gids": GIDS,
    }
    assert file.stat().st_mode & 0o777 == 0o644
    device_info.undo(planned)
    assert list(file.parent.iterdir()) == []
    device_info.undo(planned)


def test_the_device_plugins_file(file: Path) -> None:
    """Other programs' members stay, and the undo restores the file."""
    file.parent.mkdir(parents=True)
    before = json.dumps(PLUGIN | {"future": [1]})
    file.write_text(before)
    planned = device_info.plan(asked(str(file)), VF)
    body = written(file, VF)
    assert (body["version"], body["future"], body["pci"]["vhost-net"]) == ("1.0.0", [1], "/dev/vhost-net")
    assert body["pci"]["rdma-device"] == "mlx5_4,mlx5_5"
    device_info.undo(planned)
    assert file.read_text() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_multus_removed_it(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(PLUGIN))
    planned = device_info.plan(asked(str(file)), VF)
    written(file, VF)
    file.unlink()
    device_info.undo(planned)
    assert not file.exists()


def test_an_interrupted_write(file: Path) -> None:
    planned = device_info.plan(asked(str(file)), VF)
    file.parent.mkdir(parents=True)
    file.with_name(f"{file.name}.hpn").write_text("{")
    device_info.undo(planned)
    assert list(file.parent.iterdir()) == []


def test_a_master(file: Path) -> None:
    assert written(file, MACVLAN)["pci"] == {"pci-address": "0000:3b:00.0"}


@pytest.mark.parametrize("link", [MACVLAN | {"pci": ""}, {"rdma_devs": []}], ids=repr)
def test_no_pci_function(file: Path, link: dict[str, Any]) -> None:
    assert written(file, link) == {}


def test_nobody_asked(file: Path) -> None:
    assert device_info.plan({}, VF) == {}


def test_a_device_of_another_type(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('{"type": "vdpa", "vdpa": {}}')
    assert written(file, VF) == {"type": "vdpa", "vdpa": {}}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pci": 5}', "\udcff"])
def test_what_cannot_be_read(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(InvalidConfig, match="CNIDeviceInfoFile"):
        device_info.plan(asked(str(file)), VF)


def test_a_failed_write_leaves_the_old_file(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(before := json.dumps(PLUGIN))
    planned = device_info.plan(asked(str(file)), VF)
    with no_file_longer_than(len(before)), pytest.raises(IoFailure, match="File too large"):
        device_info.write(planned, VF, [], GIDS)
    assert file.read_text() == before
    device_info.undo(planned)
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IoFailure, match="CNIDeviceInfoFile"):
        device_info.write(device_info.plan(asked(f"{tmp_path}/gone"), VF) | {"entry": f"{tmp_path}/file"}, VF, [], [])


@pytest.mark.parametrize("path", ["relative", 5, ["/x"], "/a\0b"])
def test_a_path_that_is_none(path: object) -> None:
    with pytest.raises(InvalidConfig, match="CNIDeviceInfoFile"):
        device_info.plan(asked(path), VF)


def test_a_pod_names_no_file() -> None:
    """Under Multus, args.cni comes from the pod's annotation."""
    conf = {"args": {"cni": {"CNIDeviceInfoFile": "/nonexistent/passwd"}}}
    assert device_info.plan(conf, VF) == {}


def test_a_part_of_a_pci_function(file: Path) -> None:
    """A scalable function is no PCI function, so the file names its parent PCI function.  A veth has none."""
    assert written(file, SF)["pci"] == {"pci-address": "0000:3b:00.0", "rdma-device": "mlx5_7"}
    assert device_info.plan(asked(str(file)), VETH) == {}
