"""The mode systemd on a node with a real systemd, kubelet and containerd: nothing costs a pod its device."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.init import UNITS
from cluster.space import until
from cluster.two_nodes import Cluster
from support.bare_nodes import (
    NAME,
    RESOURCE,
    address,
    choose,
    daemons,
    kubectl,
    make_another,
    offered,
    put_image,
    typed,
)
from support.installed import SHORT
from support.systemd_nodes import under_systemd

# As a driver that takes this long to find its devices: only the order of the units lets kubelet wait.
SLOW = "[Service]\nExecStartPre=/bin/sleep 5\n"
NODE, LEAVE = "hpn-node.service", "hpn-daemonset.service"
STAYS = "hpn stays until these pods end: hpn0 of default/a, "
# Files of hpn, without this test's own.
LEFT = """
for at in /opt/cni/bin /usr/local/sbin /etc/systemd/system /var/lib/cni /var/lib/kubelet/plugins_registry /run/hpn; do
    [ ! -e $at ] || find $at -name '*hpn*' ! -path '*.service.d*'
done
ls /etc/hpn
"""
PLUGIN = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}


@pytest.fixture
def booted(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, in which node1 runs systemd."""
    with under_systemd(cluster, cluster.nodes["node1"]):
        yield cluster


@pytest.fixture
def bare(bare: Cluster) -> Iterator[Cluster]:
    """Nothing is left after a failure either."""
    yield bare
    bare.delete("pods", "--all", "--namespace=default", "--grace-period=1")
    bare.nodes["node1"].run("hpn", "uninstall", "--force", check=False)


def test_a_pod_keeps_its_device_until_hpn_leaves(bare: Cluster, tree: Path) -> None:
    """While the unit stops, hpn changes, and the power is cut.  Then the units remove hpn."""
    apply, _, rollback, *_, remove = typed("As a DaemonSet")
    node = bare.nodes["node1"]
    daemonset = tree / "packaging" / "kubernetes" / "daemonset.yaml"
    daemonset.write_text(daemonset.read_text().replace("kubernetes.io/os: linux", "kubernetes.io/hostname: node1"))
    kubectl(bare, tree, apply)
    until(lambda: offered(bare)["node1"] == "100", "node1 to offer rail0", 120, 0.2)
    assert said(bare, "install").startswith("this node runs hpn as units of systemd\n")
    bare.apply(manifests.network("rail0", PLUGIN, resource=RESOURCE))
    bare.apply(manifests.pod("a", node="node1", networks="rail0@hpn0", resources={RESOURCE: 1}))
    bare.apply(manifests.pod("other", node="node1"))
    bare.wait("Ready", "pod/a", "pod/other")
    before, at = bare.containers("a", "other"), address(bare, "a")
    # This host has one of its own, as a container has under LXC.
    words = ("nsenter", f"--target={main(node).strip()}", "--mount", "cat", "/proc/sys/kernel/random/boot_id")
    assert node.run(*words).stdout.strip() == node.boot_id()

    a_unit_that_stops(bare, node)
    program, process = node.path("/opt/cni/bin/hpn"), main(node)
    original = program.read_bytes()
    make_another(bare, tree)
    put_image(bare, tree, "2")
    choose(tree, NAME, '"1"', "2")
    kubectl(bare, tree, apply)
    assert program.read_bytes() == (tree / "dist" / "hpn").read_bytes() != original
    another = main(node)
    kubectl(bare, tree, rollback)
    assert program.read_bytes() == original
    assert len({process, another, main(node)}) == 3
    assert (bare.containers("a", "other"), address(bare, "a")) == (before, at)

    a_power_cut(bare, node, before)
    it_leaves(bare, node, lambda: kubectl(bare, tree, remove))


def said(cluster: Cluster, container: str) -> str:
    """The log of that container of the DaemonSet's pod on node1."""
    name = daemons(cluster)["node1"]["metadata"]["name"]
    return cluster.kubectl("--namespace=kube-system", "logs", name, f"--container={container}")


def main(node: Host) -> str:
    """The process of hpn node."""
    return node.run("systemctl", "show", "--property=MainPID", "--value", NODE).stdout


def a_unit_that_stops(cluster: Cluster, node: Host) -> None:
    """The container agent shows the unit's log, and the pod is Ready only while the unit is active."""

    def is_ready() -> bool:
        conditions = daemons(cluster)["node1"]["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    until(lambda: f"offers {RESOURCE}" in said(cluster, "agent"), "the log of hpn node", 120, 0.2)
    assert is_ready()
    node.run("systemctl", "stop", NODE)
    until(lambda: not is_ready(), "the pod to be not Ready", 120, 0.2)
    status = daemons(cluster)["node1"]["status"]["containerStatuses"]
    assert f"{NODE} is inactive on this node; " in json.dumps(status)
    node.run("systemctl", "start", NODE)
    until(is_ready, "the pod to be Ready again", 120, 0.2)


def a_power_cut(cluster: Cluster, node: Host, before: dict[str, str]) -> None:
    """The pods come back, because kubelet waits for hpn node."""
    pod = cluster.get("pod", "a")["metadata"]["uid"]
    node.power_cut()
    slow = node.path(f"{UNITS}/{NODE}.d/slow.conf")
    slow.parent.mkdir()
    slow.write_text(SLOW)
    cluster.boot(node)
    cluster.wait_ready()
    cluster.wait_restarted(before)
    assert cluster.get("pod", "a")["metadata"]["uid"] == pod
    assert [one["pod"] for one in node.attachments()] == ["default/a"]
    assert address(cluster, "a")


def it_leaves(cluster: Cluster, node: Host, remove: Callable[[], None]) -> None:
    """hpn stays after the DaemonSet while a pod needs it, and then leaves the node by itself."""
    short = node.path(f"{UNITS}/{LEAVE}.d/short.conf")
    short.parent.mkdir()
    short.write_text(SHORT)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", LEAVE)
    remove()
    log, state = ("journalctl", f"--unit={LEAVE}", "--output=cat"), ("systemctl", "is-active", LEAVE)
    until(lambda: STAYS in node.run(*log).stdout, "hpn to stay", 120, 0.2)
    assert node.run("systemctl", "is-active", NODE).stdout == "active\n"
    # kubelet removes the pod's directory first.
    until(lambda: not daemons(cluster), "the DaemonSet's pod to end", 120, 0.2)
    cluster.delete("pod", "a")
    until(lambda: node.run(*state, check=False).stdout == "inactive\n", "hpn to leave", 120, 0.2)
    assert node.run("sh", "-c", LEFT).stdout == ""
