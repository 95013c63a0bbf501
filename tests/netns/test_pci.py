"""What is done because of a PCI function behind an attachment, without one: /sys is a tree of the test's own.

What a real one does is the lab's to show.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pci
import pytest
from topology import Host, Pod

from cni import journal
from cni.kernel import sysfs
from cni.pod import Identity
from cni.spec import Key


@pytest.fixture
def sys_tree(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PF of rail0, and one VF of it."""
    root = host.tmp_path / "sys"
    pci.function(root, pci.PF, netdev="rail0")
    pci.function(root, pci.VF, pf=pci.PF)
    pci.is_sys(root, monkeypatch)
    return root


@pytest.fixture
def device_info(host: Host, node_file: Path) -> Path:
    """The file that Multus asks for."""
    return host.tmp_path / "devinfo/cni/default-rail0-0123_hpn0"


def asking_for(device_info: Path, host: Host) -> dict[str, object]:
    return host.conf(runtimeConfig={"CNIDeviceInfoFile": str(device_info)})


@pytest.mark.parametrize("before", [None, '{"type": "pci", "future": 1}'], ids=["ours", "a device plugin's"])
@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_the_device_information_goes_with_the_attachment(
    host: Host, pod: Pod, sys_tree: Path, device_info: Path, command: str, before: str | None
) -> None:
    if before:
        device_info.parent.mkdir(parents=True)
        device_info.write_text(before)
    conf = asking_for(device_info, host)
    host.ok("ADD", pod, conf)
    assert json.loads(device_info.read_text())["pci"]["pci-address"] == pci.PF
    host.ok(command, pod, conf | {"cni.dev/valid-attachments": []})
    assert [(p.name, p.read_text()) for p in device_info.parent.iterdir()] == (
        [(device_info.name, before)] * bool(before)
    )


def test_the_device_information_of_an_add_that_failed(host: Host, pod: Pod, sys_tree: Path, device_info: Path) -> None:
    """It is written last but for the journal, which a directory in its file's place keeps from being written."""
    conf = asking_for(device_info, host)
    with host.meanwhile(pod, conf) as reply:
        host.record(pod).with_suffix(".json.tmp").mkdir()
    assert json.loads(reply.result().stdout)["code"] == 5
    assert list(device_info.parent.iterdir()) == []
    host.record(pod).with_suffix(".json.tmp").rmdir()
    host.ok("DEL", pod, conf)
    assert host.state_files() == set()


def owned_by(pod: Pod, host: Host) -> None:
    """Have the journal say that this pod has the VF, by the network fabric."""
    key = Key(pod.name, "net1")
    seen = Path(pod.path).stat()
    record = journal.Record(
        network="fabric",
        key=key,
        netns=pod.path,
        identity=Identity(seen.st_ino, 0),
        kind="sriov",
        link={"device": pci.VF, "incarnation": sysfs.incarnation(pci.VF), "netdev": "rail0v1"},
        config={},
    )
    with journal.locked(host.state, "fabric", key) as entry:
        entry.save(record)


def test_a_device_that_another_attachment_has(host: Host, make_pod: Callable[[], Pod], sys_tree: Path) -> None:
    one, two = make_pod(), make_pod()
    owned_by(one, host)
    before = host.picture(one, two)
    conf = host.conf(kind="sriov", master=..., deviceID=pci.VF)
    error = host.refused("ADD", two, conf)
    assert error["code"] == 109
    assert error["msg"].startswith(f"deviceID '{pci.VF}' belongs to ")
    assert "network fabric" in error["msg"]
    assert host.picture(one, two) == before
