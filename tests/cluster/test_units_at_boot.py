"""The way service on a node with a real systemd, kubelet and containerd: a power cut costs no pod its device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import manifests
from cluster.init import UNITS
from cluster.space import until
from cluster.two_nodes import Cluster
from support.bare_nodes import RESOURCE, address, bared, daemons, kubectl, made_tree, offered, typed
from support.systemd_nodes import under_systemd

# As a driver that takes this long to find its devices: only the order of the units lets kubelet wait.
SLOW = "[Service]\nExecStartPre=/bin/sleep 5\n"
PLUGIN = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}


@pytest.fixture
def booted(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, in which node1 runs systemd."""
    with under_systemd(cluster, cluster.nodes["node1"]):
        yield cluster


@pytest.fixture
def tree(booted: Cluster) -> Iterator[Path]:
    with made_tree(booted) as it:
        yield it


@pytest.fixture
def bare(booted: Cluster, tree: Path) -> Iterator[Cluster]:
    with bared(booted, tree) as it:
        yield it
        booted.delete("pods", "--all", "--namespace=default", "--grace-period=1")
        booted.nodes["node1"].run("hpn", "uninstall", "--force", check=False)


def test_a_pod_comes_back_with_its_device(bare: Cluster, tree: Path) -> None:
    apply, *_ = typed("As a DaemonSet")
    node = bare.nodes["node1"]
    kubectl(bare, tree, apply)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    name = daemons(bare)["node1"]["metadata"]["name"]
    chosen = bare.kubectl("--namespace=kube-system", "logs", name, "--container=install")
    assert chosen.startswith("this node runs hpn as units of systemd\n")
    bare.apply(manifests.network("rail0", PLUGIN, resource=RESOURCE))
    bare.apply(manifests.pod("a", node="node1", networks="rail0@hpn0", resources={RESOURCE: 1}))
    bare.wait("Ready", "pod/a")
    before, pod = bare.containers("a"), bare.get("pod", "a")["metadata"]["uid"]
    node.power_cut()
    slow = node.path(f"{UNITS}/hpn-node.service.d/slow.conf")
    slow.parent.mkdir()
    slow.write_text(SLOW)
    bare.boot(node)
    bare.wait_ready()
    bare.wait_restarted(before)
    assert bare.get("pod", "a")["metadata"]["uid"] == pod
    assert [one["pod"] for one in node.attachments()] == ["default/a"]
    assert address(bare, "a")
