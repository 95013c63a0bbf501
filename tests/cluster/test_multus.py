"""Pods with hpn interfaces beside the cluster network, through Multus."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.two_nodes import RAILS, Cluster
from support.shipped import alone, documents

CONF = Path(__file__).parents[2] / "conf"
STATUS = "k8s.v1.cni.cncf.io/network-status"
MULTUS = "/etc/cni/net.d/00-multus.conf"


def status(cluster: Cluster, pod: str) -> list[dict[str, Any]]:
    """The pod's network status from Multus."""
    return list(json.loads(cluster.get("pod", pod)["metadata"]["annotations"][STATUS]))


def rail(number: int) -> dict[str, Any]:
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": f"10.{60 + number}.0.0/24"}]]}
    return {"type": "hpn", "master": f"rail{number}", "ipam": ipam, "capabilities": {"ips": True}}


def test_two_pods_on_two_nodes(cluster: Cluster) -> None:
    """The pods use the definition of conf/ without its pool, and request an address each, because both nodes share one
    range."""
    (conf,) = documents(CONF / "nad-macvlan.yaml")
    cluster.apply(manifests.network("rail0", alone(conf)["plugins"][0]))
    for name, node, number in (("a", "node1", 11), ("b", "node2", 12)):
        asked = [{"name": "rail0", "interface": "hpn0", "ips": [f"10.56.0.{number}/24", f"fd00:56::{number}/64"]}]
        cluster.apply(manifests.pod(name, node=node, networks=json.dumps(asked)))
    cluster.wait("Ready", "pod/a", "pod/b")
    assert " 0% packet loss" in cluster.execute("a", "ping", "-I", "hpn0", "-c", "1", "-w", "60", "10.56.0.12")
    own, of_hpn = status(cluster, "a")
    assert (own["interface"], own["default"], own["ips"]) == (
        "eth0",
        True,
        [cluster.get("pod", "a")["status"]["podIP"]],
    )
    assert (of_hpn["name"], of_hpn["interface"], of_hpn["ips"][0]) == ("default/rail0", "hpn0", "10.56.0.11")
    assert of_hpn["mac"] in cluster.execute("a", "ip", "link", "show", "hpn0")
    assert [a["pod"] for a in cluster.nodes["node1"].attachments()] == ["default/a"]


def test_a_range_for_each_node(cluster: Cluster) -> None:
    """A definition without a configuration refers to the node's own file of that name."""
    for number, node in enumerate(cluster.nodes.values()):
        plugin = rail(0)
        plugin["ipam"]["ranges"] = [[{"subnet": "10.60.0.0/24", "rangeStart": f"10.60.0.{number * 100 + 1}"}]]
        conf = {"cniVersion": "1.0.0", "name": "own-range", "plugins": [plugin]}
        file = node.path("/etc/cni/multus/net.d/own-range.conflist")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(conf))
    network = manifests.network("own-range", {})
    del network["spec"]
    cluster.apply(
        network, *(manifests.pod(name, node=f"node{n}", networks="own-range") for n, name in ((1, "a"), (2, "b")))
    )
    cluster.wait("Ready", "pod/a", "pod/b")
    assert [status(cluster, pod)[1]["ips"] for pod in "ab"] == [["10.60.0.2"], ["10.60.0.101"]]
    assert " 0% packet loss" in cluster.execute("a", "ping", "-I", "net1", "-c", "1", "-w", "60", "10.60.0.101")


def test_eight_rails(cluster: Cluster) -> None:
    networks = [manifests.network(name, rail(number)) for number, name in enumerate(RAILS)]
    asked = ",".join(f"{name}@hpn{number}" for number, name in enumerate(RAILS))
    cluster.apply(*networks, manifests.pod("a", node="node1", networks=asked))
    cluster.wait("Ready", "pod/a")
    assert [s["interface"] for s in status(cluster, "a")] == ["eth0", *(f"hpn{n}" for n in range(8))]
    cluster.delete("pod", "a")
    assert cluster.nodes["node1"].attachments() == []
    assert cluster.nodes["node1"].leases() == []


def test_in_a_user_namespace(cluster: Cluster) -> None:
    """Sysctls and devices work for a pod with root mapped to an unprivileged user of the node."""
    asked = rail(0) | {"policyRouting": True, "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2"}}
    pods = [manifests.pod(name, node=f"node{n}", networks="rail0@hpn0") for n, name in ((1, "a"), (2, "b"))]
    for pod in pods:
        pod["spec"]["hostUsers"] = False
    asked["ipam"]["ranges"] = [[{"subnet": "10.60.0.0/24"}], [{"subnet": "fd00:60::/64"}]]
    cluster.apply(manifests.network("rail0", asked), pods[0])
    cluster.wait("Ready", "pod/a")
    pods[1]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = json.dumps(
        [{"name": "rail0", "interface": "hpn0", "ips": ["10.60.0.9/24", "fd00:60::9/64"]}]
    )
    cluster.apply(pods[1])
    cluster.wait("Ready", "pod/b")
    assert cluster.execute("a", "cat", "/proc/self/uid_map").split()[1] != "0"
    assert cluster.execute("a", "cat", "/proc/sys/net/ipv4/conf/hpn0/rp_filter").strip() == "2"
    for address in ("10.60.0.9", "fd00:60::9"):
        assert " 0% packet loss" in cluster.execute("a", "ping", "-I", "hpn0", "-c", "1", "-w", "60", address)
    node = cluster.nodes["node1"]
    checked = node.run("/opt/cni/bin/hpn", "check")
    assert checked.returncode == 0, checked.stdout
    cluster.delete("pod", "a", "b")
    assert (node.attachments(), node.leases()) == ([], [])


@pytest.fixture
def by_path(cluster: Cluster) -> Iterator[Host]:
    """A node that uses hpn as its cluster network, by path and with its own directory of leases."""
    node = cluster.nodes["node1"]
    file, multus = node.path("/etc/cni/multus/net.d/hpn.conflist"), node.path(MULTUS)
    plugin = rail(7)
    plugin["ipam"]["dataDir"] = "/run/own/data"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"cniVersion": "1.1.0", "name": "hpn", "plugins": [plugin]}))
    before = multus.read_text()
    other = json.loads(before) | {"clusterNetwork": "/etc/cni/multus/net.d/hpn.conflist", "cniVersion": "1.1.0"}
    multus.write_text(json.dumps({key: value for key, value in other.items() if key != "delegates"}))
    yield node
    multus.write_text(before)


def test_a_cluster_network_by_its_path(cluster: Cluster, by_path: Host) -> None:
    """Multus strips the configuration for STATUS and DEL; the node is still Ready, and no trace of a pod is left."""
    cluster.apply(manifests.pod("a", node="node1"))
    cluster.wait("Ready", "pod/a")
    assert cluster.get("pod", "a")["status"]["podIP"].startswith("10.67.0.")
    assert len(by_path.attachments()) == 1
    cluster.delete("pod", "a")
    assert by_path.attachments() == []
    cluster.wait_ready()
