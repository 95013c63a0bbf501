"""From the device plugin to DRA and back, node by node, with pods running: the pods' spec stays as it is."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import put_kubeconfig
from support.pages import ROOT

MANIFESTS = ROOT / "packaging" / "kubernetes" / "dra"
CREDENTIAL, FILE = "/etc/cni/net.d/hpn.kubeconfig", "/etc/hpn/devices.yaml"
RESOURCE, DEVICE = "example.com/rail0", "rail0-rail0"
PLUGIN = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.60.0.0/24"}]]}}


def write(node: Host, by: str) -> None:
    """rail0 for two containers."""
    entry = {"name": RESOURCE, "kind": "master", "count": 2, "by": by, "selectors": {"ifNames": ["rail0"]}}
    text = json.dumps({"resources": [entry]})
    node.run("sh", "-ec", 'mkdir -p /etc/hpn; cat >"$1"; chmod 644 "$1"', "sh", FILE, stdin=text)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Cluster]:
    """Both nodes offer rail0 by the device plugin, and the cluster has the class of --classes."""
    cluster.kubectl("apply", f"--filename={MANIFESTS}/nodes.yaml")
    for name, one in cluster.nodes.items():
        put_kubeconfig(cluster, name, CREDENTIAL, f"token-system:node:{name}")
        write(one, "devicePlugin")
        one.add_service("moved", ["/opt/cni/bin/hpn", "node"]).start()
    printed = cluster.nodes["node1"].run("/opt/cni/bin/hpn", "node", "--classes", FILE).stdout
    cluster.kubectl("apply", "--filename=-", stdin=printed)
    cluster.apply(manifests.network("rail0", PLUGIN, resource=RESOURCE))
    for name in cluster.nodes:
        until(lambda name=name: allocatable(cluster, name) == "2", "the plugin's devices", 120)  # type: ignore[misc]
    yield cluster
    cluster.delete("pods", "--all", "--namespace=default")
    for one in cluster.nodes.values():
        one.service("moved").stop()
        del one.services["moved"]
        one.run("rm", "-rf", FILE, CREDENTIAL, "/var/lib/kubelet/plugins_registry/.hpn-dra.json")
    cluster.kubectl("delete", "--filename=-", stdin=printed)
    cluster.kubectl("delete", "resourceslices", "--field-selector=spec.driver=hpn-cni.io")
    cluster.kubectl("delete", f"--filename={MANIFESTS}/nodes.yaml")


def allocatable(cluster: Cluster, node: str) -> str:
    return str(cluster.get("node", node)["status"]["allocatable"].get(RESOURCE, "0"))


def shares(cluster: Cluster) -> str:
    """The shares of node1's rail0 in its slice; empty without one."""
    found: list[dict[str, Any]] = cluster.get("resourceslices")["items"]
    ours = [one for one in found if one["spec"]["driver"] == "hpn-cni.io" and one["spec"]["nodeName"] == "node1"]
    listed = [one for part in ours for one in part["spec"].get("devices", ()) if one["name"] == DEVICE]
    return str(listed[0]["capacity"]["shares"]["value"]) if listed else ""


def start(cluster: Cluster, pod: str, node: str) -> None:
    cluster.apply(manifests.pod(pod, node=node, networks="rail0@hpn0", resources={RESOURCE: 1}))


def by_claim(cluster: Cluster, pod: str) -> bool:
    """Whether the pod got its device by DRA.  It is Ready, and has its interface."""
    cluster.wait("Ready", f"pod/{pod}")
    assert "hpn0" in cluster.execute(pod, "ip", "link", "show", "hpn0")
    return "extendedResourceClaimStatus" in cluster.get("pod", pod)["status"]


def is_refused(cluster: Cluster, pod: str) -> bool:
    conditions = cluster.get("pod", pod)["status"].get("conditions", [])
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def switch(cluster: Cluster, by: str) -> None:
    write(cluster.nodes["node1"], by)
    cluster.nodes["node1"].run("kill", "-HUP", str(cluster.nodes["node1"].service("moved").pid))


def test_a_node_goes_and_comes_back(nodes: Cluster) -> None:
    cluster, node = nodes, nodes.nodes["node1"]
    for pod, of in (("a", "node1"), ("b", "node2")):
        start(cluster, pod, of)
        assert not by_claim(cluster, pod)
    switch(cluster, "dra")
    until(lambda: shares(cluster) == "1", "the share that no pod has", 120)
    start(cluster, "c", "node1")
    start(cluster, "d", "node2")
    assert by_claim(cluster, "c")
    assert not by_claim(cluster, "d")
    # The NIC has no third share, although one pod has its share by the plugin.
    start(cluster, "e", "node1")
    until(lambda: is_refused(cluster, "e"), "the scheduler to find no device", 120)
    # kubelet removes all slices when it starts.
    before = {one["metadata"]["uid"] for one in cluster.get("resourceslices")["items"]}
    node.service("kubelet").kill()
    node.service("kubelet").start()
    cluster.wait_ready()

    def is_back() -> bool:
        now = {one["metadata"]["uid"] for one in cluster.get("resourceslices")["items"]}
        return shares(cluster) == "1" and not now & before

    until(is_back, "slices after kubelet removed them", 120)
    cluster.delete("pod", "a")
    assert by_claim(cluster, "e")
    assert shares(cluster) == "2"
    # And back: claims keep their devices.
    switch(cluster, "devicePlugin")
    until(lambda: shares(cluster) == "", "the slices to go", 120)
    assert allocatable(cluster, "node1") == "0"
    assert by_claim(cluster, "c")
    cluster.delete("pod", "c")
    until(lambda: allocatable(cluster, "node1") == "1", "the ended claim's unit", 120)
    # The scheduler also counts the request of e, which has its device by a claim.
    cluster.delete("pod", "e")
    start(cluster, "f", "node1")
    assert not by_claim(cluster, "f")
    until(lambda: allocatable(cluster, "node1") == "2", "all units", 120)
    assert node.run("sh", "-c", "ls /run/hpn/claims", check=False).stdout == ""


def test_pods_without_an_interface(nodes: Cluster) -> None:
    """They start by DRA too: with the host's network, without a network, and with one that names no resource."""
    cluster = nodes
    cluster.apply(manifests.network("plain", {**PLUGIN, "name": "plain"}))
    switch(cluster, "dra")
    until(lambda: shares(cluster) == "2", "the shares", 120)
    for pod, networks, spec in (("host", "", {"hostNetwork": True}), ("verbs", "", {}), ("unnamed", "plain@hpn0", {})):
        made = manifests.pod(pod, node="node1", networks=networks, resources={RESOURCE: 1})
        made["spec"] |= spec
        cluster.apply(made)
        cluster.wait("Ready", f"pod/{pod}")
        assert "extendedResourceClaimStatus" in cluster.get("pod", pod)["status"]
        assert "PCIDEVICE_EXAMPLE_COM_RAIL0=rail0" in cluster.execute(pod, "env")
        if networks:
            assert "hpn0" in cluster.execute(pod, "ip", "link", "show", "hpn0")
        cluster.delete("pod", pod)
    cluster.delete("network-attachment-definitions", "plain")


def test_a_node_comes_back_without_its_credential(nodes: Cluster) -> None:
    """As by `helm rollback`, which takes the token too: a pod with a claim ends, kubelet removes the slices, and the
    device plugin offers the devices again."""
    cluster, node = nodes, nodes.nodes["node1"]
    switch(cluster, "dra")
    until(lambda: shares(cluster) == "2", "the slice", 120)
    start(cluster, "a", "node1")
    assert by_claim(cluster, "a")
    node.service("moved").stop()
    node.run("rm", CREDENTIAL)
    write(node, "devicePlugin")
    node.service("moved").start()
    until(
        lambda: "ended: claim default/a" in node.service("moved").log.read_text(), "hpn node to wait for the claim", 120
    )
    cluster.delete("pod", "a")
    until(lambda: shares(cluster) == "", "kubelet to remove the slices", 240)
    until(lambda: allocatable(cluster, "node1") == "2", "the plugin's devices", 120)
    start(cluster, "b", "node1")
    assert not by_claim(cluster, "b")
