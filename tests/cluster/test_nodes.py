"""The cluster meets the other tests' assumptions: two real nodes with a network, and no trace on the machine."""

from cluster import manifests
from cluster.two_nodes import Cluster


def test_both_nodes_are_ready(cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node["status"]["nodeInfo"] for node in cluster.get("nodes")["items"]}
    assert set(nodes) == {"node1", "node2"}
    for name, info in nodes.items():
        assert (info["kubeletVersion"], info["containerRuntimeVersion"]) == ("v1.36.3", "containerd://2.4.2")
        assert info["bootID"] == cluster.nodes[name].boot_id()
    assert len({info["bootID"] for info in nodes.values()}) == 2


def test_pods_reach_each_other_by_the_clusters_network(cluster: Cluster) -> None:
    cluster.apply(manifests.pod("a", node="node1"), manifests.pod("b", node="node2"))
    cluster.wait("Ready", "pod/a", "pod/b")
    assert " 0% packet loss" in cluster.execute("a", "ping", "-c", "1", "-w", "60", pod_ip(cluster, "b"))


def test_a_node_loses_its_power(cluster: Cluster) -> None:
    """The node's pods become Ready again with all their networks, and other nodes' pods are not affected."""
    ipam = {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "probe": True}
    cluster.apply(manifests.network("rail0", {"type": "hpn", "master": "rail0", "ipam": ipam}))
    pods = {"a": "node1", "b": "node2"}
    cluster.apply(*(manifests.pod(pod, node=node, networks="rail0@hpn0") for pod, node in pods.items()))
    cluster.wait("Ready", "pod/a", "pod/b")
    node, before = cluster.nodes["node1"], cluster.containers()
    boot_id = node.boot_id()
    node.power_cut()
    cluster.boot(node)
    cluster.wait_ready()
    cluster.wait_restarted({"a": before["a"]})
    assert node.boot_id() != boot_id
    assert cluster.containers("b") == {"b": before["b"]}
    assert len(node.attachments()) == len(node.leases()) == len(node.namespaces()) == 1
    address = cluster.execute("a", "ip", "-4", "addr", "show", "hpn0").split("inet ")[1].partition("/")[0]
    for reached in (pod_ip(cluster, "a"), address):
        assert " 0% packet loss" in cluster.execute("b", "ping", "-c", "1", "-w", "60", reached)


def pod_ip(cluster: Cluster, pod: str) -> str:
    return str(cluster.get("pod", pod)["status"]["podIP"])
