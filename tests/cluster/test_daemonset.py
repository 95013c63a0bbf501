"""packaging/kubernetes on nodes that have nothing of hpn, by the commands of docs/kubernetes.md."""

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api_server
import pytest
from cluster import image, manifests
from cluster.space import until
from cluster.two_nodes import CONTROL, Cluster
from pages import ROOT, sections

from cni.protocol import report

PAGE = ROOT / "docs" / "kubernetes.md"
RECIPE = ROOT / "packaging" / "image" / "Dockerfile"
PLACEHOLDER = ("registry.example.com/hpn", "0.1.0")
NAME, TAGS = "localhost/hpn", ("1", "2")
PLUGINS = ("hpn", "hpn-ipam")
RESOURCE = "example.com/rail0"
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
OTHER = b"0123456789abcdef"
STAYING, COMING = 8, 6  # pods; the second number of each of two kinds
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}


def metrics() -> str:
    """What the section has to append to the kustomization."""
    (section,) = (one for one in sections(PAGE) if one.title == "As a DaemonSet")
    (block,) = (block for block in section.blocks if block.kind == "yaml")
    return block.text


def typed(title: str) -> list[str]:
    """What the section has for kubectl, block by block."""
    (section,) = (one for one in sections(PAGE) if one.title == title)
    return [block.text for block in section.blocks if block.kind == "sh kubectl"]


def kubectl(cluster: Cluster, tree: Path, lines: str) -> None:
    """Type these lines in the tree."""
    for line in lines.splitlines():
        program, *words = shlex.split(line)
        assert program == "kubectl"
        cluster.kubectl(*(str(tree / word) if word.startswith("packaging/") else word for word in words))


@pytest.fixture
def tree(cluster: Cluster) -> Iterator[Path]:
    """A tree after `make binary`, with a base of its own to write into; the first image is on the nodes."""
    with tempfile.TemporaryDirectory(prefix="hpn-test-") as folder:
        it = Path(folder)
        shutil.copytree(ROOT / "packaging" / "kubernetes", it / "packaging" / "kubernetes")
        (it / "dist").mkdir()
        shutil.copy(cluster.nodes["node1"].path("/opt/cni/bin/hpn"), it / "dist")
        put_image(cluster, it, "1")
        choose(it, *PLACEHOLDER, "1")
        yield it


def put_image(cluster: Cluster, tree: Path, tag: str) -> None:
    """Make the image of the program that is in dist, and let the nodes have it."""
    image.build(RECIPE, tree, f"{NAME}:{tag}", archive := tree / "image.tar")
    for node in cluster.nodes.values():
        cluster.load(node, archive)


def choose(tree: Path, name: str, before: str, tag: str) -> None:
    """Write another image into the kustomization."""
    file = tree / "packaging" / "kubernetes" / "kustomization.yaml"
    text = file.read_text()
    assert f"newName: {name}\n  newTag: {before}\n" in text
    file.write_text(text.replace(f"newName: {name}\n  newTag: {before}\n", f'newName: {NAME}\n  newTag: "{tag}"\n'))


@pytest.fixture
def bare(cluster: Cluster, tree: Path) -> Iterator[Cluster]:
    """The cluster, whose nodes have nothing of hpn before the test; and as before after it."""
    program = (tree / "dist" / "hpn").read_bytes()
    for node in cluster.nodes.values():
        node.service("agent").stop()
        # A host sees the machine's own, which is not the test's to write to.
        node.run("mount", "-t", "tmpfs", "tmpfs", "/usr/local/sbin")
        node.run("rm", "-rf", *(f"/opt/cni/bin/{name}" for name in PLUGINS), "/run/hpn", "/var/lib/cni/hpn")
    yield cluster
    cluster.kubectl("uncordon", "--selector=kubernetes.io/os=linux")
    cluster.delete("deployments,jobs,pods", "--all", "--namespace=default")
    kubectl(cluster, tree, typed("As a DaemonSet")[-1].replace("delete", "delete --ignore-not-found"))
    until(lambda: not daemons(cluster), "the DaemonSet's pods to end", 120, 0.2)
    until(lambda: set(offered(cluster).values()) <= {"0"}, "its resource to go", 120, 0.2)
    for node in cluster.nodes.values():
        cluster.unload(node, *(f"{NAME}:{tag}" for tag in TAGS))
        node.run("umount", "/usr/local/sbin")
        for name in PLUGINS:
            node.path(f"/opt/cni/bin/{name}").unlink(missing_ok=True)
        node.path("/opt/cni/bin/hpn").write_bytes(program)
        node.path("/opt/cni/bin/hpn").chmod(0o755)
        node.path("/opt/cni/bin/hpn-ipam").hardlink_to(node.path("/opt/cni/bin/hpn"))
    cluster.restore()


def daemons(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The DaemonSet's pods, by their node."""
    found = cluster.get("pods", "--namespace=kube-system", "--selector=app.kubernetes.io/name=hpn")["items"]
    return {pod["spec"]["nodeName"]: pod for pod in found}


def offered(cluster: Cluster) -> dict[str, str]:
    """How much of the resource each node has to give, as the scheduler counts."""
    nodes = cluster.get("nodes")["items"]
    return {node["metadata"]["name"]: node["status"]["allocatable"].get(RESOURCE, "0") for node in nodes}


def address(cluster: Cluster, pod: str) -> str:
    return cluster.execute(pod, "ip", "-4", "address", "show", "hpn0").split("inet ")[1].split("/")[0]


def pings(cluster: Cluster) -> None:
    assert " 0% packet loss" in cluster.execute("a", "ping", "-I", "hpn0", "-c", "1", "-w", "10", address(cluster, "b"))


def test_from_an_empty_node_to_two_pods_and_away(bare: Cluster, tree: Path) -> None:
    apply, *_, remove = typed("As a DaemonSet")
    with (tree / "packaging" / "kubernetes" / "kustomization.yaml").open("a") as kustomization:
        kustomization.write(metrics())
    kubectl(bare, tree, apply)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    (first,) = (one for one in sections(PAGE) if one.title == "From nothing to two pods with RDMA")
    for block in first.blocks:
        if block.kind.startswith("yaml "):
            own = f"image: {image.NAME}, imagePullPolicy: Never, "
            bare.kubectl("apply", "--filename=-", stdin=block.text.replace("image: busybox, ", own))
    bare.wait("Ready", "pod/a", "pod/b")
    pings(bare)
    for node in bare.nodes.values():
        page = node.run(sys.executable, "-c", FETCH, "http://127.0.0.1:9617/metrics").stdout
        shown = {line.partition("{")[0]: line.rpartition(" ")[2] for line in page.splitlines()}
        assert (shown["hpn_attachments"], shown["hpn_pool_leases"]) == ("1.0", "1.0")
    containers = bare.containers("a", "b")

    kubectl(bare, tree, remove)
    until(lambda: not daemons(bare), "the DaemonSet's pods to end", 120, 0.2)
    until(lambda: set(offered(bare).values()) == {"0"}, "kubelet to have nothing to give", 120, 0.2)
    assert bare.containers("a", "b") == containers
    pings(bare)
    bare.delete("pod", "a", "b", "--grace-period=1")
    for node in bare.nodes.values():
        assert (node.attachments(), node.leases(), node.namespaces()) == ([], [], [])
        assert node.run("sh", "-c", "ls /var/lib/kubelet/plugins_registry").stdout == ""


@pytest.fixture
def crowd(bare: Cluster, tree: Path) -> Cluster:
    """The DaemonSet, and a dozen pods that stay."""
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
    """A Job whose pods look at hpn0 and end.  It counts a pod that kubelet refuses as failed."""
    one = template(name, network, resources)
    one["spec"] |= {"restartPolicy": "Never", "tolerations": [] if resources else [UNSCHEDULABLE]}
    one["spec"]["containers"][0]["command"] = ["/bin/sh", "-ec", "ip address show hpn0 | grep inet"]
    spec = {"completions": 1000, "parallelism": COMING, "backoffLimit": 1000, "template": one}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def counts(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Of each Job, how many of its pods have succeeded and failed."""
    jobs = cluster.get("jobs")["items"]
    return {
        job["metadata"]["name"]: (job["status"].get("succeeded", 0), job["status"].get("failed", 0)) for job in jobs
    }


def interfaces(cluster: Cluster) -> set[str]:
    """What `ip` shows of every hpn0 on the nodes, with its index, MAC and address."""
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
    """Pods stay, and others come and go: some want a device, and some come to nodes that are cordoned too."""
    _, upgrade, rollback, _ = typed("As a DaemonSet")
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
    """Let dist have a program of another version: it unpacks for itself, into a directory of that name."""
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
    """Until as many pods of each kind have succeeded from now on as are there at a time, and one more."""
    before = counts(cluster)
    until(
        lambda: all(now - before[name][0] > COMING for name, (now, _) in counts(cluster).items()),
        "pods of each kind to come and go", 60, 0.2,
    )  # fmt: skip


def test_a_credential_of_its_own(bare: Cluster, tree: Path) -> None:
    """The nodes ask the API server with the token of the DaemonSet's pod, and give their pods from one pool."""
    base = tree / "packaging" / "kubernetes"
    own = "components: [cluster/token]"
    assert own in PAGE.read_text()
    with (base / "kustomization.yaml").open("a") as kustomization:
        kustomization.write(f"{own}\n")
    token = base / "cluster" / "token" / "kustomization.yaml"
    # There is no kube-proxy here, so the service's address leads nowhere.
    named = {"KUBERNETES_SERVICE_HOST": CONTROL, "KUBERNETES_SERVICE_PORT": "6443"}
    server = [{"name": name, "value": value} for name, value in named.items()]
    patch = [
        {"op": "add", "path": "/spec/template/spec/containers/0/env", "value": server},
        *({"op": "add", "path": "/spec/template/spec/initContainers/0/env/-", "value": one} for one in server),
    ]
    target = {"target": {"kind": "DaemonSet", "name": "hpn"}, "patch": json.dumps(patch)}
    with token.open("a") as file:
        file.write(f"- {json.dumps(target)}\n")
    api_server.apply(bare)
    try:
        kubectl(bare, tree, typed("As a DaemonSet")[0])
        until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
        ipam = {"type": "hpn-ipam", "subnet": "10.57.0.0/24", "cluster": {"store": "kubernetes"}}
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
        # Somebody takes a node for dead.  Its hpn node looks when a command on the node tells of little room.
        block, tell = blocks[0], f"s.socket(s.AF_UNIX, s.SOCK_DGRAM).sendto({report.LOW!r}, {report.ROOM!r})"
        bare.kubectl("patch", "hpnblock", block["metadata"]["name"], "--type=merge", '--patch={"spec": {"suspect": 1}}')
        bare.nodes[block["spec"]["node"]].run(sys.executable, "-c", f"import socket as s; {tell}")
        until(
            lambda: not any(one["spec"]["suspect"] for one in bare.get("hpnblocks")["items"]), "hpn node to answer", 120
        )
    finally:
        bare.delete("pods", "--all", "--namespace=default", "--grace-period=1")
        for one in bare.nodes.values():
            one.run("rm", "-rf", "/var/lib/cni/hpn/pool")
        api_server.remove(bare)
