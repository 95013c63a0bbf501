"""packaging/kubernetes on nodes without any part of hpn, with the commands of docs/user/kubernetes.md."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster
from support import crowd
from support.bare_nodes import (
    NAME,
    PAGE,
    choose,
    kubectl,
    make_another,
    offered,
    pair,
    pings,
    pods_outlive_the_daemons,
    programs,
    put_image,
    typed,
)
from support.pages import shown

FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"


@pytest.fixture
def read_only_usr(bare: Cluster) -> Iterator[None]:
    """node2 can write nothing below /usr, as Talos and Flatcar; there is no /usr/local/sbin either."""
    bare.nodes["node2"].run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/usr/local")
    yield
    bare.nodes["node2"].run("umount", "/usr/local")


@pytest.mark.usefixtures("read_only_usr")
def test_from_an_empty_node_to_two_pods_and_away(bare: Cluster, tree: Path) -> None:
    apply, *_, remove = typed("As a DaemonSet")
    with (tree / "packaging" / "kubernetes" / "kustomization.yaml").open("a") as kustomization:
        kustomization.write(shown(PAGE, "As a DaemonSet", "yaml"))
    kubectl(bare, tree, apply)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    chosen = bare.kubectl("--namespace=kube-system", "logs", "daemonset/hpn", "--container=install")
    assert chosen.startswith("this node runs hpn in containers: systemd does not run on this node\n")
    for node in bare.nodes.values():
        until(lambda it=node: "agent.sock" in it.run("ls", "/run/hpn").stdout, "the agent to listen", 120, 0.2)
    for objects in (shown(PAGE, "Without a DaemonSet", "yaml network.yaml"), pair()):
        bare.kubectl("apply", "--filename=-", stdin=objects)
    bare.wait("Ready", "pod/a", "pod/b")
    pings(bare)
    for node in bare.nodes.values():
        assert_the_agent_answered(node)
        page = node.run(sys.executable, "-c", FETCH, "http://127.0.0.1:9617/metrics").stdout
        measured = {line.partition("{")[0]: line.rpartition(" ")[2] for line in page.splitlines()}
        assert (measured["hpn_attachments"], measured["hpn_pool_leases"]) == ("1.0", "1.0")
    containers = bare.containers("a", "b")

    a_file_that_is_refused(bare, tree)
    kubectl(bare, tree, remove)
    pods_outlive_the_daemons(bare, containers)


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


def test_another_version_and_back(bare: Cluster, tree: Path) -> None:
    """Existing pods survive an upgrade and its rollback.  Other pods come and go: some with a device, some also on
    cordoned nodes."""
    apply, upgrade, rollback, *_ = typed("As a DaemonSet")
    kubectl(bare, tree, apply)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    with crowd.undisturbed(bare):
        original = (tree / "dist" / "hpn").read_bytes()
        make_another(bare, tree)
        put_image(bare, tree, "2")
        choose(tree, NAME, '"1"', "2")
        kubectl(bare, tree, upgrade)
        assert programs(bare) == {(tree / "dist" / "hpn").read_bytes()} != {original}
        cordon, *_, uncordon = upgrade.splitlines()
        kubectl(bare, tree, f"{cordon}\n{rollback}{uncordon}")
        assert programs(bare) == {original}
