"""Information about an attachment's devices, for Kubernetes and for people: the device information file and hpn
inspect."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from guest.gid_tables import PATIENT, gid, table
from guest.node import PF, Node, macvlan, pci
from support.node_process import PROGRAM
from support.topology import Pod

ROOT = Path(__file__).parents[2]


def with_info(conf: dict[str, Any], file: Path) -> dict[str, Any]:
    return conf | {"runtimeConfig": {"CNIDeviceInfoFile": str(file)}}


@pytest.mark.usefixtures("node_file")
def test_device_information_of_a_vf(node: Node, pod: Pod) -> None:
    file = node.tmp_path / "devinfo/cni/rail0"
    conf = with_info(node.conf(rdma=PATIENT | {"name": "mlx5_0"}), file)
    node.ok("ADD", pod, conf)
    body, there = json.loads(file.read_text()), table("mlx5_0", pod.name)
    assert body["pci"] == {"pci-address": node.device, "pf-pci-address": pci(PF), "rdma-device": "mlx5_0"}
    assert len(body["gids"]) == 4
    for g in body["gids"]:
        assert there[g["index"]] == (gid(g["address"]), g["type"], "hpn0")
    node.ok("DEL", pod)
    assert list(file.parent.iterdir()) == []


@pytest.mark.usefixtures("node_file")
def test_device_information_of_a_shared_master(node: Node, shared: None, hca: str, pod: Pod) -> None:
    file = node.tmp_path / "devinfo"
    file.write_text('{"type": "pci", "version": "1.1.0", "pci": {"vhost-net": "/dev/vhost-net"}}')
    before = file.read_text()
    node.ok("ADD", pod, with_info(macvlan(node, rdma=PATIENT), file))
    body = json.loads(file.read_text())
    assert body["pci"] == {"pci-address": pci(PF), "rdma-device": hca, "vhost-net": "/dev/vhost-net"}
    assert {g["device"] for g in body["gids"]} == {hca}
    node.ok("GC", None, macvlan(node) | {"cni.dev/valid-attachments": []})
    assert file.read_text() == before


def test_device_information_of_an_add_that_failed(node: Node, pod: Pod, node_file: Path) -> None:
    """ADD writes the file last; after a failed ADD the earlier file is back."""
    file = node.tmp_path / "file"
    file.write_text("")
    error = node.refused("ADD", pod, with_info(node.conf(), file / "devinfo"))
    assert (error["code"], "CNIDeviceInfoFile" in error["msg"]) == (7, True)
    error = node.refused("ADD", pod, with_info(node.conf(), file))
    assert (error["code"], "CNIDeviceInfoFile" in error["msg"]) == (7, True)
    node_file.write_text('{"allowedPaths": {"CNIDeviceInfoFile": ["/proc"]}}')
    directory = Path("/proc/devinfo")  # no file can be made here
    error = node.refused("ADD", pod, with_info(node.conf(), directory))
    assert (error["code"], "CNIDeviceInfoFile" in error["msg"]) == (5, True)
    assert (pod.links(), node.state_files(), file.read_text()) == (set(), set(), "")


def test_inspect(node: Node, pod: Pod) -> None:
    """The record's GIDs match the pod's GID table."""
    node.ok("ADD", pod, node.conf(rdma=PATIENT | {"name": "mlx5_0"}))
    command = [*PROGRAM, "inspect", "--state-dir", str(node.state)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
    (found,) = json.loads(done.stdout)["attachments"]
    assert [found[k] for k in ("device", "pf", "pfName", "vf", "alive")] == [node.device, pci(PF), PF, 0, True]
    assert set(found["addresses"]) == pod.addresses()
    there = table("mlx5_0", pod.name)
    assert {g["address"] for g in found["rdma"]["gids"]} == {a.partition("/")[0] for a in pod.addresses()}
    for g in found["rdma"]["gids"]:
        assert there[g["index"]] == (gid(g["address"]), g["type"], "hpn0")
    print(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    node.ok("DEL", pod)
