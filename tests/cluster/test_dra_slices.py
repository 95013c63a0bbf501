"""ResourceSlices of a node, on a real API server: they appear, follow the health of links, and go."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import NODE1, put_kubeconfig

FILE = "/etc/hpn/devices.yaml"
DRIVER = "hpn-cni.io"
CREDENTIAL = "/etc/cni/net.d/hpn.kubeconfig"


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
    write(node, rails(1))
    reload(node)
    until(lambda: set(devices(cluster)) == {"rail1-rail1"}, "the slice of rail0 to go", 120)
