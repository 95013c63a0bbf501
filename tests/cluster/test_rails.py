"""One definition for all rails of a pod, by the real Multus and kubelet: one call, one entry of the status for each."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import RAILS, Cluster

STATUS = "k8s.v1.cni.cncf.io/network-status"
SUBNETS = [{"master": rail, "subnet": f"10.{60 + n}.0.0/24"} for n, rail in enumerate(RAILS)]
IPAM = {"type": "hpn-ipam", "rails": SUBNETS, "align": True}
DEVICES = {
    "resources": [
        {"name": f"example.com/{rail}", "kind": "master", "count": 8, "selectors": {"ifNames": [rail]}}
        for rail in RAILS
    ]
}


def of_rails(cluster: Cluster, pod: str) -> list[tuple[str, str, list[str]]]:
    """The pod's network status from Multus, without the cluster's network: definition, interface, addresses."""
    found: list[dict[str, Any]] = json.loads(cluster.get("pod", pod)["metadata"]["annotations"][STATUS])
    return [(one["name"], one["interface"], one["ips"]) for one in found[1:]]


def allocatable(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = cluster.get("node", "node1")["status"]["allocatable"]
    return found


@pytest.fixture
def resources(cluster: Cluster) -> Iterator[Host]:
    """node1 with a resource for each rail."""
    node = cluster.nodes["node1"]
    node.run("sh", "-ec", "mkdir -p /etc/hpn; cat >/etc/hpn/devices.yaml", stdin=json.dumps(DEVICES))
    service = node.add_service("rails", ["/opt/cni/bin/hpn", "node"])
    service.start()
    yield node
    cluster.delete("pods", "--all", "--namespace=default")
    service.stop()
    del node.services["rails"]
    node.run("rm", "-f", "/etc/hpn/devices.yaml")


def test_by_interfaces(cluster: Cluster) -> None:
    plugin = {"type": "hpn", "rails": [*RAILS], "multiRail": True, "ipam": IPAM, "capabilities": {"ips": True}}
    asked = [{"name": "rails", "interface": "hpn0", "ips": ["10.60.0.9/24"]}]
    cluster.apply(
        manifests.network("rails", plugin),
        manifests.pod("a", node="node1", networks="rails@hpn0"),
        manifests.pod("b", node="node2", networks=json.dumps(asked)),
    )
    cluster.wait("Ready", "pod/a", "pod/b")
    assert of_rails(cluster, "a") == [("default/rails", f"hpn{n}", [f"10.{60 + n}.0.2"]) for n in range(8)]
    assert of_rails(cluster, "b") == [("default/rails", f"hpn{n}", [f"10.{60 + n}.0.9"]) for n in range(8)]
    for n in (0, 7):
        ping = ("ping", "-I", f"hpn{n}", "-c", "1", "-w", "60", f"10.{60 + n}.0.9")
        assert " 0% packet loss" in cluster.execute("a", *ping)
    node = cluster.nodes["node1"]
    checked = node.run("/opt/cni/bin/hpn", "check")
    assert checked.returncode == 0, checked.stdout
    cluster.delete("pod", "a", "b")
    for node in cluster.nodes.values():
        assert (node.attachments(), node.leases()) == ([], [])


def test_by_resources(cluster: Cluster, resources: Host) -> None:
    """kubelet's checkpoint has the devices that it gave this pod, also after another of the same name."""
    names = [f"example.com/{rail}" for rail in RAILS]
    until(lambda: all(allocatable(cluster).get(name) == "8" for name in names), "the resources to be allocatable", 120)
    ipam = {**IPAM, "rails": SUBNETS[:7]}
    cluster.apply(
        manifests.network("rails", {"type": "hpn", "rails": names[:7], "ipam": ipam}),
        manifests.pod("a", node="node1", networks="rails@hpn0", resources=dict.fromkeys(names[1:7], 1)),
    )
    missing = "kubelet gave pod default/a no device of this resource"
    events = ("get", "events", "--output=jsonpath={.items[*].message}")
    until(lambda: missing in cluster.kubectl(*events), "the ADD to fail", 120)
    assert resources.attachments() == []
    cluster.delete("pod", "a")
    cluster.apply(manifests.pod("a", node="node1", networks="rails@hpn0", resources=dict.fromkeys(names[:7], 1)))
    cluster.wait("Ready", "pod/a")
    found = of_rails(cluster, "a")
    assert [name for _, name, _ in found] == [f"hpn{n}" for n in range(7)]
    assert [one["master"] for one in resources.attachments()] == [*RAILS[:7]]
    cluster.delete("pod", "a")
    assert (resources.attachments(), resources.leases()) == ([], [])
