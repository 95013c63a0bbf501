"""Nodes without hpn, and the commands that docs/user/kubernetes.md gives for the DaemonSet."""

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.pages import ROOT, sections, shown

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster import image
from cluster.space import until
from cluster.two_nodes import Cluster

PAGE = ROOT / "docs" / "user" / "kubernetes.md"
RECIPE = ROOT / "packaging" / "image" / "Dockerfile"
PLACEHOLDER = ("registry.example.com/hpn", "0.1.0")
NAME, TAGS = "localhost/hpn", ("1", "2")
PLUGINS = ("hpn", "hpn-ipam")
RESOURCE = "example.com/rail0"
OWN = f"image: {image.NAME}, imagePullPolicy: Never, "
OTHER = b"0123456789abcdef"  # a version


def typed(title: str) -> list[str]:
    """Return the section's kubectl commands, by block."""
    (section,) = (one for one in sections(PAGE) if one.title == title)
    return [block.text for block in section.blocks if block.kind == "sh kubectl"]


def pair() -> str:
    """Return the two pods of docs/user/kubernetes.md, with the image of the nodes."""
    return shown(PAGE, "Quickstart", "yaml pods.yaml").replace("image: busybox, ", OWN)


def kubectl(cluster: Cluster, tree: Path, lines: str) -> None:
    """Run these lines in the tree."""
    for line in lines.splitlines():
        program, *words = shlex.split(line)
        assert program == "kubectl"
        cluster.kubectl(*(str(tree / word) if word.startswith("packaging/") else word for word in words))


@contextmanager
def made_tree(cluster: Cluster) -> Iterator[Path]:
    """Yield a tree after `make binary`, with its own writable base; the nodes have the first image."""
    with tempfile.TemporaryDirectory(prefix="hpn-test-") as folder:
        it = Path(folder)
        shutil.copytree(ROOT / "packaging" / "kubernetes", it / "packaging" / "kubernetes")
        (it / "dist").mkdir()
        shutil.copy(cluster.nodes["node1"].path("/opt/cni/bin/hpn"), it / "dist")
        put_image(cluster, it, "1")
        choose(it, *PLACEHOLDER, "1")
        yield it


def put_image(cluster: Cluster, tree: Path, tag: str) -> None:
    """Build the image of the program in dist, and load it on the nodes."""
    image.build(RECIPE, tree, f"{NAME}:{tag}", archive := tree / "image.tar")
    for node in cluster.nodes.values():
        cluster.load(node, archive)


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


def programs(cluster: Cluster) -> set[bytes]:
    return {node.path("/opt/cni/bin/hpn").read_bytes() for node in cluster.nodes.values()}


def choose(tree: Path, name: str, before: str, tag: str) -> None:
    """Write another image into the kustomization."""
    file = tree / "packaging" / "kubernetes" / "kustomization.yaml"
    text = file.read_text()
    assert f"newName: {name}\n  newTag: {before}\n" in text
    file.write_text(text.replace(f"newName: {name}\n  newTag: {before}\n", f'newName: {NAME}\n  newTag: "{tag}"\n'))


@contextmanager
def bared(cluster: Cluster, tree: Path) -> Iterator[Cluster]:
    """Yield the cluster with hpn removed from its nodes; restore them after the test."""
    program = (tree / "dist" / "hpn").read_bytes()
    for node in cluster.nodes.values():
        node.service("agent").stop()
        # A host sees the machine's own folder, which the test must not change.
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
    """Return the DaemonSet's pods by node; a pod without one yet is under ""."""
    found = cluster.get("pods", "--namespace=kube-system", "--selector=app.kubernetes.io/name=hpn")["items"]
    return {pod["spec"].get("nodeName", ""): pod for pod in found}


def status(cluster: Cluster, node: str) -> str:
    """The status of the node's pod of the DaemonSet, as text."""
    pod = daemons(cluster).get(node, {"status": {}})
    return json.dumps(pod["status"])


def offered(cluster: Cluster) -> dict[str, str]:
    """Return each node's allocatable count of the resource, as the scheduler counts it."""
    nodes = cluster.get("nodes")["items"]
    return {node["metadata"]["name"]: node["status"]["allocatable"].get(RESOURCE, "0") for node in nodes}


def address(cluster: Cluster, pod: str) -> str:
    return cluster.execute(pod, "ip", "-4", "address", "show", "hpn0").split("inet ")[1].split("/")[0]


def pings(cluster: Cluster) -> None:
    assert " 0% packet loss" in cluster.execute("a", "ping", "-I", "hpn0", "-c", "1", "-w", "60", address(cluster, "b"))


def pods_outlive_the_daemons(cluster: Cluster, containers: dict[str, str]) -> None:
    """Assert that the pods a and b, with these containers, stay attached without the DaemonSet, and then leave
    nothing."""
    until(lambda: not daemons(cluster), "the DaemonSet's pods to end", 120, 0.2)
    until(lambda: set(offered(cluster).values()) == {"0"}, "kubelet to have nothing to give", 120, 0.2)
    assert cluster.containers("a", "b") == containers
    pings(cluster)
    cluster.delete("pod", "a", "b", "--grace-period=1")
    for node in cluster.nodes.values():
        assert (node.attachments(), node.leases(), node.namespaces()) == ([], [], [])
        assert node.run("sh", "-c", "ls /var/lib/kubelet/plugins_registry").stdout == ""
