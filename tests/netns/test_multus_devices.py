"""The cluster tier's stand-in for Multus: how a pod's devices reach the plugins and the network-status."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.under_multus import World, kubelet, pod_resources, world
from support.topology import Host, Pod, ip

CAPABILITIES = {"deviceID": True, "CNIDeviceInfoFile": True}
RAIL = "example.com/rail0"
# The format of hpn: Multus drops all unknown members.
SAID = {
    "type": "pci",
    "version": "1.1.0",
    "pci": {"pci-address": "0000:3b:00.2", "rdma-device": "mlx5_2", "gids": [{"index": 3}]},
}
# More than 64 KiB, which HTTP/2 sends before the receiver must ask for more.
OTHERS = [pod_resources(f"other-{n}", (RAIL, [f"{n:05}"] * 20)) for n in range(1000)]


@pytest.fixture
def node(host: Host, tmp_path: Path) -> Iterator[World]:
    ip("link", "set", "lo", "up")
    pods = [*OTHERS, pod_resources("p", (RAIL, ["0000:3b:00.7"]), ("x/other", ["z"]), (RAIL, ["0000:3b:00.2"]))]
    with world(tmp_path) as made, kubelet(tmp_path, pods):
        made.define("rail", {"capabilities": CAPABILITIES}, resource=RAIL)
        yield made


def test_devices_are_handed_out_sorted(node: World, pod: Pod) -> None:
    """Each network of a resource gets the pod's next device in order; later networks get none."""
    node.define("none", {"capabilities": CAPABILITIES}, resource="example.com/none")
    node.define("listed", {"type": "", "plugins": [{"type": "recorder"}, {"type": "recorder"}]}, resource=RAIL)
    node.annotate("rail@hpn0,none,listed,rail")
    node.run("ADD", pod)
    confs = [call["conf"] for call in node.calls()[1:]]
    assert [(c["name"], c.get("deviceID"), c.get("pciBusID")) for c in confs] == [
        ("rail", "0000:3b:00.2", "0000:3b:00.2"),
        ("none", None, None),
        ("listed", "0000:3b:00.7", "0000:3b:00.7"),
        ("listed", "0000:3b:00.7", "0000:3b:00.7"),
        ("rail", None, None),
    ]
    assert confs[0]["runtimeConfig"] == {
        "deviceID": "0000:3b:00.2",
        "CNIDeviceInfoFile": "/var/run/k8s.cni.cncf.io/devinfo/cni/default-rail-c1_hpn0",
    }
    assert [c.get("runtimeConfig") for c in confs[1:]] == [None] * 4
    node.run("DEL", pod)
    assert [call["conf"].get("deviceID") for call in node.calls()][-2:] == ["0000:3b:00.2", None]


def test_device_information(node: World, pod: Pod) -> None:
    """Multus copies the device plugin's file for the attachment, adds it to the network-status, and removes it at
    DEL."""
    of_plugin = node.folder / "devices" / "devinfo" / "dp" / "example.com-rail0-0000:3b:00.2-device.json"
    of_plugin.parent.mkdir(parents=True)
    of_plugin.write_text(json.dumps(SAID))
    node.annotate("rail@hpn0")
    node.run("ADD", pod)
    passed_on = SAID | {"pci": {"pci-address": "0000:3b:00.2", "rdma-device": "mlx5_2"}}
    assert [status.get("device-info") for status in node.status()] == [None, passed_on]
    copied = node.folder / "devices" / "devinfo" / "cni" / "default-rail-c1_hpn0"
    assert json.loads(copied.read_text()) == passed_on
    node.run("DEL", pod)
    assert not copied.exists()
    assert of_plugin.exists()
