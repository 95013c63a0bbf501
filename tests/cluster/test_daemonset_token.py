"""packaging/kubernetes with its own credential, with the commands of docs/user/kubernetes.md."""

import json
from pathlib import Path
from typing import Any

from cluster import manifests
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import CONTROL, Cluster
from support import api_server
from support.bare_nodes import PAGE, address, kubectl, offered, pings, typed
from support.pages import sections, shown


def another_program(cluster: Cluster) -> None:
    """Restart hpn node on each node: it checks its blocks, and live pods keep their addresses."""
    leases = {name: node.leases() for name, node in cluster.nodes.items()}
    assert [len(some) for some in leases.values()] == [1, 1]
    before = {name: looked(node) for name, node in cluster.nodes.items()}
    cluster.kubectl("rollout", "restart", "daemonset/hpn", "--namespace=kube-system")
    cluster.kubectl("rollout", "status", "daemonset/hpn", "--namespace=kube-system", "--timeout=120s")
    until(
        lambda: all(looked(node) > before[name] for name, node in cluster.nodes.items()), "both nodes to look", 120, 0.2
    )
    assert {name: node.leases() for name, node in cluster.nodes.items()} == leases
    cluster.apply(manifests.pod("c", node="node1", networks="pool@hpn0"))
    cluster.wait("Ready", "pod/c")
    assert address(cluster, "c") not in (address(cluster, "a"), address(cluster, "b"))


def looked(node: Host) -> int:
    """The time of the node's last check of its blocks in the store."""
    body: dict[str, Any] = json.loads(node.path("/var/lib/cni/hpn/ipam/pool/blocks").read_text())["body"]
    return int(body["looked"])


def test_a_credential_of_its_own(bare: Cluster, tree: Path) -> None:
    """The nodes use the token of the DaemonSet's pod for the API server, and allocate from one pool."""
    base = tree / "packaging" / "kubernetes"
    (section,) = (one for one in sections(PAGE) if one.title == "One pool of addresses for all nodes")
    # This cluster has no kube-proxy, so the service's address leads nowhere.
    own, server = (block.text for block in section.blocks if block.kind == "yaml")
    assert f"value: {CONTROL}}}" in server
    metrics = shown(PAGE, "As a DaemonSet", "yaml").removeprefix("patches:\n")
    with (base / "kustomization.yaml").open("a") as kustomization:
        kustomization.write(own + server + metrics)
    api_server.apply(bare)
    try:
        kubectl(bare, tree, typed("As a DaemonSet")[0])
        until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
        ipam = {"type": "hpn-ipam", "subnet": "10.57.0.0/24", "cluster": {"backend": "kubernetes"}}
        bare.apply(manifests.network("pool", {"type": "hpn", "master": "rail0", "ipam": ipam}))
        for pod, node in (("a", "node1"), ("b", "node2")):
            bare.apply(manifests.pod(pod, node=node, networks="pool@hpn0"))
        bare.wait("Ready", "pod/a", "pod/b")
        pings(bare)
        blocks = bare.get("hpnblocks")["items"]
        assert {one["spec"]["node"] for one in blocks} == {"node1", "node2"}
        of = {one["spec"]["node"]: one["spec"]["start"] for one in blocks}
        for pod, node in (("a", "node1"), ("b", "node2")):
            assert 0 <= int(address(bare, pod).rpartition(".")[2]) - of[node] < 16
        another_program(bare)
        # Suspect a node.  Its hpn node checks when it starts.
        name = blocks[0]["metadata"]["name"]
        bare.kubectl("patch", "hpnblock", name, "--type=merge", '--patch={"spec": {"suspect": 1}}')
        bare.kubectl("rollout", "restart", "daemonset/hpn", "--namespace=kube-system")
        until(
            lambda: not any(one["spec"]["suspect"] for one in bare.get("hpnblocks")["items"]), "hpn node to answer", 120
        )
    finally:
        bare.delete("pods", "--all", "--namespace=default", "--grace-period=1")
        for one in bare.nodes.values():
            one.run("rm", "-rf", "/var/lib/cni/hpn/ipam/pool")
        api_server.remove(bare)
