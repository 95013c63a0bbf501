"""One ADD moves a VF of each of two NICs with its RDMA device: any free one of a PF, or those that kubelet gave."""

from collections.abc import Callable
from pathlib import Path

import pytest
from guest.node import NAME, RDMA, Node, netdev, pci, picture, rdma_devs
from support import pod_resources
from support.topology import Pod

from base.protocol import location

VFS = (NAME, "rail1v0")
UID = "11111111-2222-3333-4444-555555555555"
ARGS = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID={UID}"
SUBNETS = [{"pf": f"rail{n}", "subnet": f"10.{60 + n}.0.0/24"} for n in range(2)]
RAILS = {
    "kind": "sriov", "deviceID": ..., "rdma": {"mode": "exclusive", "required": True}, "multiRail": True,
    "ipam": {"type": "hpn-ipam", "rails": SUBNETS, "align": True},
}  # fmt: skip


@pytest.fixture
def kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kubelet"
    (folder / "device-plugins").mkdir(parents=True)
    monkeypatch.setattr(location, "KUBELETS", (f"{folder}",))
    return folder


@pytest.mark.parametrize("by", ["interfaces", "resources"])
def test_vfs(node: Node, pod: Pod, kubelet: Path, by: str) -> None:
    addresses = [pci(vf) for vf in VFS]
    given = [pod_resources.entry(UID, f"example.com/rail{n}", one) for n, one in enumerate(addresses)]
    pod_resources.keep(kubelet, *given)
    listed = [f"rail{n}" if by == "interfaces" else f"example.com/rail{n}" for n in range(2)]
    conf, before = node.conf(**RAILS, rails=listed), (picture(), netdev(VFS[1]))
    result = node.ok("ADD", pod, conf, CNI_ARGS=ARGS)
    assert {name: pod.addresses(name) for name in pod.links()} == {f"hpn{n}": {f"10.{60 + n}.0.2/24"} for n in range(2)}
    assert len(rdma_devs(pod.name)) == 2
    if by == "resources":
        assert rdma_devs(pod.name) == {RDMA, "hca1v0"}
        assert [one["pciID"] for one in result["interfaces"] if one.get("sandbox")] == addresses
    assert node.checked(pod, conf, result, CNI_ARGS=ARGS).exit_code == 0
    node.ok("DEL", pod, conf, CNI_ARGS=ARGS)
    assert (pod.links(), rdma_devs(pod.name)) == (set(), set())
    assert (picture(), netdev(VFS[1])) == before


def test_a_device_that_another_pod_has(node: Node, make_pod: Callable[[], Pod], kubelet: Path) -> None:
    """Nothing of the pod is attached, and the other keeps its own."""
    pod, other = make_pod(), make_pod()
    first, second = (pci(vf) for vf in VFS)
    pod_resources.keep(kubelet, pod_resources.entry(UID, "example.com/vf", first, second))
    node.ok("ADD", other, node.conf(deviceID=second, ipam=...))
    error = node.refused("ADD", pod, node.conf(**RAILS, rails=["example.com/vf"]), CNI_ARGS=ARGS)
    assert (error["code"], f"rail example.com/vf {second} as hpn1" in error["details"]) == (109, True), error
    assert (pod.links(), len(other.links())) == (set(), 1)
