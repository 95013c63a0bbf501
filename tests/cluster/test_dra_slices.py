"""ResourceSlices of a node, on a real API server: they appear, follow the health of links, and go."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import NODE1, put_kubeconfig

FILE = "/etc/hpn/devices.yaml"
DRIVER = "hpn-cni.io"
CREDENTIAL = "/etc/cni/net.d/hpn.kubeconfig"
PLUGIN = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.60.0.0/24"}]]}}


def rails(*numbers: int, by: str = "dra", count: int = 4) -> list[dict[str, Any]]:
    """A resource for each of these rails."""
    common = {"kind": "master", "count": count, "by": by}
    return [{"name": f"example.com/rail{n}", **common, "selectors": {"ifNames": [f"rail{n}"]}} for n in numbers]


def write(node: Host, resources: list[dict[str, Any]]) -> None:
    file = {"health": {"downAfter": 0.1, "upAfter": 0.1}, "resources": resources}
    node.run("sh", "-ec", 'mkdir -p /etc/hpn; cat >"$1"; chmod 644 "$1"', "sh", FILE, stdin=json.dumps(file))


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("resourceslices")["items"]
    return [one for one in found if one["spec"]["driver"] == DRIVER]


def devices(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The devices of all slices, by name."""
    return {one["name"]: one for found in slices(cluster) for one in found["spec"].get("devices", ())}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Host]:
    """node1 with hpn node not yet started."""
    one = cluster.nodes["node1"]
    put_kubeconfig(cluster, "node1", CREDENTIAL, NODE1)
    service = one.add_service("dra", ["/opt/cni/bin/hpn", "node"])
    yield one
    cluster.delete("pods", "--all", "--namespace=default")
    service.stop()
    del one.services["dra"]
    one.run("rm", "-rf", FILE, CREDENTIAL, "/var/lib/kubelet/plugins_registry/.hpn-dra.json")
    cluster.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={DRIVER}")


def reload(node: Host) -> None:
    node.run("kill", "-HUP", str(node.service("dra").pid))


def test_slices(cluster: Cluster, node: Host) -> None:
    write(node, rails(0, 1))
    node.service("dra").start()
    until(lambda: set(devices(cluster)) == {"rail0-rail0", "rail1-rail1"}, "the slices", 120)
    first, second = sorted(slices(cluster), key=lambda one: one["metadata"]["name"])
    assert first["spec"]["nodeName"] == "node1"
    (owner,) = first["metadata"]["ownerReferences"]
    assert owner["uid"] == cluster.get("node", "node1")["metadata"]["uid"]
    (device,) = first["spec"]["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["shares"]["value"] == "4"
    assert device["attributes"]["k8s.cni.cncf.io/deviceID"] == {"string": "rail0"}
    assert device["attributes"]["k8s.cni.cncf.io/resourceName"] == {"string": "example.com/rail0"}
    # The link's health is a taint.
    node.run("ip", "link", "set", "rail1", "down")
    tainted = {"key": "hpn-cni.io/unhealthy", "value": "no-link", "effect": "NoSchedule"}
    until(lambda: "taints" in devices(cluster)["rail1-rail1"], "the taint", 120)
    (taint,) = devices(cluster)["rail1-rail1"]["taints"]
    assert taint.items() >= tainted.items()
    assert "taints" not in devices(cluster)["rail0-rail0"]
    node.run("ip", "link", "set", "rail1", "up")
    until(lambda: "taints" not in devices(cluster)["rail1-rail1"], "the end of the taint", 120)
    # No request changed the other pool.
    now = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in slices(cluster)}
    assert now[first["metadata"]["name"]] == first["metadata"]["resourceVersion"]
    assert now[second["metadata"]["name"]] != second["metadata"]["resourceVersion"]
    # A slice that another program writes stays, and hpn node and hpn doctor name it.
    pool = {"name": "node1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node1", "pool": pool, "devices": [{"name": "x"}]}
    stranger = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "stranger"}}
    cluster.apply({**stranger, "spec": spec})
    write(node, rails(1))
    reload(node)
    until(lambda: set(devices(cluster)) == {"rail1-rail1", "x"}, "the slice of rail0 to go", 120)
    log = node.service("dra").log
    until(lambda: "did not make, and leaves: stranger (by kubectl" in log.read_text(), "the log to name it", 120)
    found = json.loads(node.run("/opt/cni/bin/hpn", "doctor", "--json", check=False).stdout)["findings"]
    assert "ResourceSlice stranger (by kubectl" in next(
        one["evidence"] for one in found if one["id"] == "slices-foreign"
    )


class Both:
    """Watches a resource of one unit, from begin to end: it must never be allocatable and in a slice at once.

    kubelet learns the plugin's list a moment after hpn node changed it, so what kubelet reports may be old.  The slices
    are read first: a device that enters them later is not compared with an older list.
    """

    def __init__(self, cluster: Cluster, resource: str, device: str) -> None:
        self._cluster, self._resource, self._device = cluster, resource, device
        self.bad = list[str]()
        self.seen = set[str]()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Both":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.is_set():
            in_slices = self._device in devices(self._cluster)
            status = self._cluster.get("node", "node1")["status"]["allocatable"]
            is_allocatable = status.get(self._resource, "0") != "0"
            self.seen.add("slices" if in_slices else "plugin" if is_allocatable else "none")
            if in_slices and is_allocatable:
                self.bad.append(f"{self._device} is in a slice, and {self._resource} is allocatable")


def allocatable(cluster: Cluster, resource: str) -> str:
    return str(cluster.get("node", "node1")["status"]["allocatable"].get(resource, "0"))


def test_from_the_plugin_and_back(cluster: Cluster, node: Host) -> None:
    """A pod's device enters the slices when the pod has ended, also across restarts of hpn node and kubelet."""
    write(node, rails(0, 1, by="devicePlugin", count=1))
    node.service("dra").start()
    until(lambda: allocatable(cluster, "example.com/rail0") == "1", "the device to be allocatable", 120)
    cluster.apply(manifests.network("rail0", PLUGIN, resource="example.com/rail0"))
    asked = {"example.com/rail0": 1}
    cluster.apply(manifests.pod("a", node="node1", networks="rail0@hpn0", resources=asked))
    cluster.wait("Ready", "pod/a")
    with Both(cluster, "example.com/rail1", "rail1-rail1") as both:
        write(node, rails(0, 1, count=1))
        reload(node)
        until(lambda: "rail1-rail1" in devices(cluster), "the free device in a slice", 120)
        assert "rail0-rail0" not in devices(cluster)
        for name in ("dra", "kubelet"):
            node.service(name).kill()
            node.service(name).start()
        cluster.wait_ready()
        until(lambda: "rail1-rail1" in devices(cluster), "the free device in a slice again", 120)
        assert "rail0-rail0" not in devices(cluster)
        cluster.delete("pod", "a")
        until(lambda: "rail0-rail0" in devices(cluster), "the pod's device in a slice", 120)
        write(node, rails(0, 1, by="devicePlugin", count=1))
        reload(node)
        until(lambda: allocatable(cluster, "example.com/rail1") == "1", "the device to be allocatable again", 120)
        assert devices(cluster) == {}
    assert both.bad == []
    assert both.seen == {"slices", "plugin", "none"}


def test_shares(cluster: Cluster, node: Host) -> None:
    """A shared device keeps its other shares for claims while a pod has one from the plugin."""
    write(node, rails(0, by="devicePlugin", count=4))
    node.service("dra").start()
    until(lambda: allocatable(cluster, "example.com/rail0") == "4", "the device to be allocatable", 120)
    cluster.apply(manifests.network("rail0", PLUGIN, resource="example.com/rail0"))
    cluster.apply(manifests.pod("a", node="node1", networks="rail0@hpn0", resources={"example.com/rail0": 1}))
    cluster.wait("Ready", "pod/a")
    write(node, rails(0, count=4))
    reload(node)

    def shares() -> str:
        found = devices(cluster).get("rail0-rail0", {"capacity": {"shares": {"value": ""}}})
        return str(found["capacity"]["shares"]["value"])

    until(lambda: shares() == "3", "the free shares", 120)
    cluster.delete("pod", "a")
    until(lambda: shares() == "4", "all shares", 120)


def test_an_api_server_that_is_away(cluster: Cluster, node: Host) -> None:
    """hpn node reports it, the device plugin goes on, and the slices are brought up to date afterwards."""
    write(node, [*rails(0), *rails(1, by="devicePlugin")])
    node.service("dra").start()
    until(lambda: "rail0-rail0" in devices(cluster), "the slice", 120)
    until(lambda: allocatable(cluster, "example.com/rail1") == "4", "the device to be allocatable", 120)
    log = node.service("dra").log
    server = cluster.control.service("kube-apiserver")
    server.kill()
    try:
        for rail in ("rail0", "rail1"):
            node.run("ip", "link", "set", rail, "down")
        until(lambda: "ResourceSlices cannot be brought up to date: " in log.read_text(), "the problem's report", 120)
        until(lambda: "unhealthy: rail1 of example.com/rail1" in log.read_text(), "the plugin's report", 120)
    finally:
        server.start()
        ready = "get", "--raw=/readyz"
        until(lambda: cluster.kubectl(*ready, check=False) == "ok", "the API server", 180, 0.2)
    cluster.wait_ready()
    until(lambda: "taints" in devices(cluster).get("rail0-rail0", {}), "the taint", 180)
    until(lambda: allocatable(cluster, "example.com/rail1") == "0", "the plugin's list", 120)
    for rail in ("rail0", "rail1"):
        node.run("ip", "link", "set", rail, "up")
    until(lambda: "taints" not in devices(cluster)["rail0-rail0"], "the end of the taint", 120)


def test_classes(cluster: Cluster, node: Host) -> None:
    """The API server takes the printed classes, and their selectors find the devices: it evaluates CEL when it stores
    them."""
    write(node, rails(0, 1))
    printed = node.run("/opt/cni/bin/hpn", "node", "--classes", FILE).stdout
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=printed)
    try:
        found = cluster.get("deviceclasses")["items"]
        assert {one["metadata"]["name"]: one["spec"]["extendedResourceName"] for one in found} == {
            "rail0.example.com": "example.com/rail0", "rail1.example.com": "example.com/rail1"
        }  # fmt: skip
    finally:
        cluster.kubectl("delete", "--filename=-", stdin=printed)
