"""kubelet knows the devices of hpn node before it admits pods, after a restart of either and after a power cut."""

import json
import time
from collections.abc import Iterator

import grpc
import pytest
from cluster import manifests
from cluster.host import Host
from cluster.services import offer, withdraw
from cluster.space import until
from cluster.two_nodes import RAILS, Cluster

RESOURCE = "hpn.test/rail"
DEVICES = 16  # of 8 rails, each for two containers
OFFERS = {"name": RESOURCE, "kind": "master", "count": 2, "selectors": {"ifNames": RAILS}}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Host]:
    """node1 with a running hpn node, which starts before kubelet at boot, as with systemd."""
    one = cluster.nodes["node1"]
    service = offer(one, OFFERS)
    at_boot = one.at_boot
    service.start()
    # The scheduler uses amounts that kubelet reported seconds ago, perhaps those of another test's hpn node.
    until(lambda: known(one), "kubelet to know the devices", 120)
    until(lambda: allocatable(cluster) == DEVICES, "the devices to be allocatable", 120)
    yield one
    cluster.delete("pods", "--all", "--namespace=default")
    one.at_boot = at_boot
    withdraw(one)


def allocatable(cluster: Cluster) -> int:
    """The allocatable amount that the scheduler uses."""
    return int(cluster.get("node", "node1")["status"]["allocatable"].get(RESOURCE, "0"))


def known(node: Host) -> bool:
    """Report whether kubelet itself can allocate a device, from its answer to GetAllocatableResources."""
    path = node.path("/var/lib/kubelet/pod-resources/kubelet.sock")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        try:
            ask = channel.unary_unary("/v1.PodResourcesLister/GetAllocatableResources")
            return RESOURCE.encode() in bytes(ask(b"", timeout=60))
        except grpc.RpcError:
            return False


def wait_until_known(node: Host, since: float) -> None:
    """Wait until the kubelet of a boot after that time can allocate a device."""
    socket = node.path("/var/lib/kubelet/device-plugins/kubelet.sock")
    until(lambda: socket.is_socket() and socket.stat().st_ctime >= since, "kubelet's socket", 120, 0.01)
    until(lambda: known(node), "kubelet to know the devices", 120, 0.01)


def holder(name: str) -> dict[str, object]:
    return manifests.pod(name, node="node1", resources={RESOURCE: 1})


def devices(node: Host) -> dict[str, list[str]]:
    """The devices of each pod, from hpn inspect."""
    report = json.loads(node.run("/opt/cni/bin/hpn", "inspect", "--json").stdout)
    return {one["pod"]: one["ids"] for one in report["unattached"] if one["resource"] == RESOURCE}


def test_a_pod_gets_a_device(cluster: Cluster, node: Host) -> None:
    cluster.apply(holder("a"), holder("b"))
    cluster.wait("Ready", "pod/a", "pod/b")
    given = devices(node)
    assert given.keys() == {"default/a", "default/b"}
    assert given["default/a"] != given["default/b"]
    (identity,) = given["default/a"]
    assert cluster.execute("a", "sh", "-c", "echo $PCIDEVICE_HPN_TEST_RAIL").strip() in identity


def test_kubelet_restarts(cluster: Cluster, node: Host) -> None:
    cluster.apply(holder("a"))
    cluster.wait("Ready", "pod/a")
    before, given = cluster.containers("a"), devices(node)
    for end in (node.service("kubelet").stop, node.service("kubelet").kill):
        end()
        since = time.time()
        node.service("kubelet").start()
        wait_until_known(node, since)
        cluster.wait_ready()
    cluster.apply(holder("b"))
    cluster.wait("Ready", "pod/b")
    assert cluster.containers("a") == before
    assert devices(node)["default/a"] == given["default/a"] != devices(node)["default/b"]


def test_the_plugin_restarts(cluster: Cluster, node: Host) -> None:
    cluster.apply(holder("a"))
    cluster.wait("Ready", "pod/a")
    before = cluster.containers("a")
    for end in (node.service("node").stop, node.service("node").kill):
        end()
        until(lambda: not known(node), "kubelet to know that the plugin is gone", 120)
        node.service("node").start()
        until(lambda: known(node), "kubelet to know the devices again", 120, 0.01)
    until(lambda: allocatable(cluster) == DEVICES, "the devices to be allocatable again", 120)
    cluster.apply(holder("b"))
    cluster.wait("Ready", "pod/b")
    assert cluster.containers("a") == before


@pytest.mark.parametrize("late", [0.0, 5.0], ids=["before_kubelet", "after_kubelet"])
def test_a_pod_over_a_power_cut(cluster: Cluster, node: Host, late: float) -> None:
    """If the plugin starts first, as with systemd, the pod comes back.  If it starts five seconds after kubelet, the
    best case of a DaemonSet, kubelet refuses the pod for good."""
    cluster.apply(holder("a"))
    cluster.wait("Ready", "pod/a")
    before = cluster.containers("a")
    node.power_cut()
    since = time.time()
    if late:
        node.at_boot = node.at_boot[1:]
    cluster.boot(node)
    if late:
        # time: what it is about
        time.sleep(late)
        node.service("node").start()
    wait_until_known(node, since)
    cluster.wait_ready()
    if late:
        until(lambda: cluster.get("pod", "a")["status"]["phase"] == "Failed", "the pod to be refused", 120)
        assert cluster.get("pod", "a")["status"]["reason"] == "UnexpectedAdmissionError"
        return
    cluster.wait_restarted(before)
    assert devices(node).keys() == {"default/a"}
