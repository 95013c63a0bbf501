"""packaging/kubernetes on nodes without any part of hpn, with the commands of docs/user/kubernetes.md."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import image, manifests
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster
from support.bare_nodes import (
    NAME,
    PAGE,
    RESOURCE,
    choose,
    daemons,
    kubectl,
    offered,
    pings,
    put_image,
    typed,
)
from support.pages import sections

FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
OTHER = b"0123456789abcdef"
STAYING, COMING = 8, 6  # pods; the second number applies to each of two kinds
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}


def metrics() -> str:
    """The lines that the section appends to the kustomization."""
    (section,) = (one for one in sections(PAGE) if one.title == "As a DaemonSet")
    (block,) = (block for block in section.blocks if block.kind == "yaml")
    return block.text


def test_from_an_empty_node_to_two_pods_and_away(bare: Cluster, tree: Path) -> None:
    apply, *_, remove = typed("As a DaemonSet")
    with (tree / "packaging" / "kubernetes" / "kustomization.yaml").open("a") as kustomization:
        kustomization.write(metrics())
    kubectl(bare, tree, apply)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    for node in bare.nodes.values():
        until(lambda it=node: "agent.sock" in it.run("ls", "/run/hpn").stdout, "the agent to listen", 120, 0.2)
    (first,) = (one for one in sections(PAGE) if one.title == "From nothing to two pods with RDMA")
    for block in first.blocks:
        if block.kind.startswith("yaml "):
            own = f"image: {image.NAME}, imagePullPolicy: Never, "
            bare.kubectl("apply", "--filename=-", stdin=block.text.replace("image: busybox, ", own))
    bare.wait("Ready", "pod/a", "pod/b")
    pings(bare)
    for node in bare.nodes.values():
        assert_the_agent_answered(node)
        page = node.run(sys.executable, "-c", FETCH, "http://127.0.0.1:9617/metrics").stdout
        shown = {line.partition("{")[0]: line.rpartition(" ")[2] for line in page.splitlines()}
        assert (shown["hpn_attachments"], shown["hpn_pool_leases"]) == ("1.0", "1.0")
    containers = bare.containers("a", "b")

    a_file_that_is_refused(bare, tree)
    kubectl(bare, tree, remove)
    until(lambda: not daemons(bare), "the DaemonSet's pods to end", 120, 0.2)
    until(lambda: set(offered(bare).values()) == {"0"}, "kubelet to have nothing to give", 120, 0.2)
    assert bare.containers("a", "b") == containers
    pings(bare)
    bare.delete("pod", "a", "b", "--grace-period=1")
    for node in bare.nodes.values():
        assert (node.attachments(), node.leases(), node.namespaces()) == ([], [], [])
        assert node.run("sh", "-c", "ls /var/lib/kubelet/plugins_registry").stdout == ""


def a_file_that_is_refused(cluster: Cluster, tree: Path) -> None:
    """A refused file stops the rollout at the first node.  The page's command shows the reason, whichever pod is
    well."""
    apply, _, rollback, explain, _ = typed("As a DaemonSet")
    file = tree / "packaging" / "kubernetes" / "devices.yaml"
    file.write_text(file.read_text().replace("kind: master", "kind: mistake"))
    kubectl(cluster, tree, apply.splitlines()[0])
    _, *words = shlex.split(explain)
    # The command fails until the container exists.
    until(lambda: "mistake" in cluster.kubectl(*words, check=False), "the reason", 120, 0.5)
    kubectl(cluster, tree, rollback)


def assert_the_agent_answered(node: Host) -> None:
    """Assert that the agent served the commands: without it, a command unpacks its program on the node."""
    assert node.run("ls", "-A", "/var/lib/cni/hpn").stdout.split() == ["ipam"]
    # The agent worked in the host's mounts, so a program there can prove that the pod is dead.
    seen = json.loads(node.run("sh", "-c", "cat /run/hpn/attachments/rail0/*").stdout)["body"]["identity"]
    first = node.run("stat", "-L", "-c", "%i", "/proc/1/ns/mnt", "/proc/1/ns/pid").stdout.split()
    assert [f"{seen['mounts']}", f"{seen['processes']}"] == first


@pytest.fixture
def crowd(bare: Cluster, tree: Path) -> Cluster:
    """The DaemonSet, and a Deployment of pods that stay."""
    kubectl(bare, tree, typed("As a DaemonSet")[0])
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    plugin = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}
    networks = [manifests.network("device", plugin, resource=RESOURCE), manifests.network("plain", plugin)]
    bare.apply(*networks, staying())
    bare.kubectl("rollout", "status", "deployment/stay", "--timeout=60s")
    return bare


def template(name: str, network: str, resources: dict[str, int]) -> dict[str, Any]:
    pod = manifests.pod(name, networks=f"{network}@hpn0", resources=resources)
    return {"metadata": {"labels": {"app": name}, "annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}


def staying() -> dict[str, Any]:
    spec = {"replicas": STAYING, "selector": {"matchLabels": {"app": "stay"}}}
    whole = spec | {"template": template("stay", "device", {RESOURCE: 1})}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "stay"}, "spec": whole}


def coming(name: str, network: str, resources: dict[str, int]) -> dict[str, Any]:
    """A Job whose pods read hpn0 and end.  A pod that kubelet refuses counts as failed."""
    one = template(name, network, resources)
    one["spec"] |= {"restartPolicy": "Never", "tolerations": [] if resources else [UNSCHEDULABLE]}
    one["spec"]["containers"][0]["command"] = ["/bin/sh", "-ec", "ip address show hpn0 | grep inet"]
    spec = {"completions": 1000, "parallelism": COMING, "backoffLimit": 1000, "template": one}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def counts(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """The numbers of succeeded and failed pods of each Job."""
    jobs = cluster.get("jobs")["items"]
    return {
        job["metadata"]["name"]: (job["status"].get("succeeded", 0), job["status"].get("failed", 0)) for job in jobs
    }


def interfaces(cluster: Cluster) -> set[str]:
    """The lines of `ip` for every hpn0 on the nodes, with index, MAC and address."""
    script = """
        for pod in /run/netns/*; do
            for what in link "-4 address"; do nsenter --net="$pod" ip -oneline $what show hpn0; done
        done
        true"""
    shown = {name: node.run("sh", "-c", script).stdout for name, node in cluster.nodes.items()}
    return {f"{name}: {line}" for name, text in shown.items() for line in text.splitlines()}


def programs(cluster: Cluster) -> set[bytes]:
    return {node.path("/opt/cni/bin/hpn").read_bytes() for node in cluster.nodes.values()}


def test_another_version_and_back(crowd: Cluster, tree: Path) -> None:
    """Existing pods survive an upgrade and its rollback.  Other pods come and go: some with a device, some also on
    cordoned nodes."""
    _, upgrade, rollback, *_ = typed("As a DaemonSet")
    containers, there = crowd.containers(), interfaces(crowd)
    assert len(containers) == STAYING
    crowd.apply(coming("devices", "device", {RESOURCE: 1}), coming("plain", "plain", {}))
    original = (tree / "dist" / "hpn").read_bytes()
    make_another(crowd, tree)
    put_image(crowd, tree, "2")
    choose(tree, NAME, '"1"', "2")
    kubectl(crowd, tree, upgrade)
    assert programs(crowd) == {(tree / "dist" / "hpn").read_bytes()} != {original}
    cordon, *_, uncordon = upgrade.splitlines()
    kubectl(crowd, tree, f"{cordon}\n{rollback}{uncordon}")
    assert programs(crowd) == {original}
    await_more(crowd)
    assert [failed for _, failed in counts(crowd).values()] == [0, 0]
    assert crowd.containers().items() >= containers.items()
    assert interfaces(crowd) >= there


def make_another(cluster: Cluster, tree: Path) -> None:
    """Put a program of another version into dist.  It unpacks into a directory named after that version."""
    cluster.nodes["node1"].run("/opt/cni/bin/hpn", "version")
    (version,) = (
        one.name.encode()
        for one in cluster.nodes["node1"].path("/var/lib/cni/hpn/program").iterdir()
        if len(one.name) == len(OTHER)
    )
    file = tree / "dist" / "hpn"
    data = file.read_bytes()
    assert data.count(version) == 1
    file.write_bytes(data.replace(version, OTHER))


def await_more(cluster: Cluster) -> None:
    """Wait until more pods of each kind succeed than run at a time."""
    before = counts(cluster)
    until(
        lambda: all(now - before[name][0] > COMING for name, (now, _) in counts(cluster).items()),
        "pods of each kind to come and go", 60, 0.2,
    )  # fmt: skip
