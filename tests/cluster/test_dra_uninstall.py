"""`helm uninstall` while pods have claims, in chain mode and by Multus, in both modes of a node.

In the mode systemd the node's units end the pods.  In the mode container no part of hpn would, so Helm refuses.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import drawn
import pytest
from cluster import claims, manifests
from cluster.host import Host
from cluster.space import Failed, until
from cluster.two_nodes import Cluster
from support import helm
from support.bare_nodes import RESOURCE, daemons
from support.dra_by_chart import PATIENCE, PLUGIN, REACHED, await_end, device_file, end, shares
from support.systemd_nodes import under_systemd

INSTALL = "helm install hpn packaging/helm/hpn --namespace kube-system --values values.yaml"
UNINSTALL = "helm uninstall hpn --namespace kube-system --wait"
PODS = {"chained": "claim0", "by-multus": "hpn0"}


@pytest.fixture(params=drawn.share(["systemd", "container"], "modes of an uninstall"))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def booted(cluster: Cluster, mode: str) -> Iterator[Cluster]:
    """The cluster, in which node1 has hpn at the end of its own network, and runs systemd for the mode systemd."""
    node = cluster.nodes["node1"]
    (file,) = (one for one in node.path("/etc/cni/net.d").iterdir() if '"multus"' in one.read_text())
    before = file.read_text()
    network = json.loads(before)
    network["delegates"][0]["plugins"].append({"type": "hpn", "claims": True})
    try:
        with under_systemd(cluster, node) if mode == "systemd" else nullcontext():
            file.write_text(json.dumps(network))
            restart_containerd(cluster, node)
            yield cluster
    finally:
        file.write_text(before)
        restart_containerd(cluster, node)


def restart_containerd(cluster: Cluster, node: Host) -> None:
    """containerd reads the networks when it starts."""
    if node.systemd:
        node.run("systemctl", "restart", "containerd")
    else:
        node.service("containerd").stop()
        node.service("containerd").start()
    cluster.restore()


def start(cluster: Cluster) -> None:
    """Start a pod with a claim in each way, and wait for their interfaces."""
    for name in PODS:
        networks = "rail0@hpn0" if name == "by-multus" else ""
        cluster.apply(claims.pod(name, node="node1", networks=networks, template=name))
    cluster.wait("Ready", *(f"pod/{name}" for name in PODS), timeout=PATIENCE)
    assert are_attached(cluster)


def are_attached(cluster: Cluster) -> bool:
    return all(interface in cluster.execute(name, "ls", "/sys/class/net") for name, interface in PODS.items())


def left(cluster: Cluster) -> list[str]:
    """What an ended pod must not leave: on node1, and of claims at the API server."""
    node = cluster.nodes["node1"]
    files = node.run("sh", "-c", "ls -d /run/hpn/claims/* /var/run/cdi/hpn-claim-* 2>/dev/null", check=False).stdout
    objects = cluster.kubectl("get", "resourceclaims", "--namespace=default", "--output=name")
    return [*files.split(), *objects.split(), *map(str, node.attachments()), *map(str, node.leases())]


def await_nothing(cluster: Cluster) -> None:
    """A controller removes the claims of ended pods."""
    until(lambda: left(cluster) == [], "nothing to be left", PATIENCE, 0.2)


def of_chart(cluster: Cluster) -> list[str]:
    """The names of the chart's objects."""
    kinds = "daemonsets,pods,serviceaccounts,clusterroles,clusterrolebindings,validatingadmissionpolicies"
    found = cluster.kubectl("get", kinds, "--namespace=kube-system", "--output=name").split()
    return [one for one in found if "/hpn" in one]


def test_helm_uninstall(bare: Cluster, tree: Path, shell: Callable[[str], str], mode: str) -> None:
    only = {"mode": mode, "nodeSelector": {"kubernetes.io/hostname": "node1"}, "networks": [], "env": REACHED}
    helm.write(tree, devices=device_file("dra"), claims={"enabled": True}, **only)
    shell(INSTALL)
    until(lambda: shares(bare) == "2", "the slice", PATIENCE, 0.2)
    bare.apply(
        claims.device_class("by-multus", RESOURCE),
        claims.device_class("chained", RESOURCE, attach="chain", ipam=PLUGIN["ipam"]),
        manifests.network("rail0", {"type": "hpn", "ipam": PLUGIN["ipam"]}, resource=RESOURCE),
        *(claims.template(name, claims.spec(name)) for name in PODS),
    )
    try:
        start(bare)
        if mode == "container":
            refused_until_the_pods_end(bare, shell)
            start(bare)
            ended_by_the_next_install(bare, shell)
        else:
            shell(UNINSTALL)
            until(lambda: not daemons(bare), "the DaemonSet's pods to end", PATIENCE, 0.2)
            assert are_attached(bare)
            end(bare, *PODS)
            await_end(bare, *PODS)
            await_nothing(bare)
            bare.nodes["node1"].run("hpn", "uninstall")
        until(lambda: shares(bare) == "", "the slice to go", PATIENCE, 0.2)
        assert of_chart(bare) == []

        shell(INSTALL)
        until(lambda: shares(bare) == "2", "the slice of the next install", PATIENCE, 0.2)
        start(bare)
        end(bare, *PODS)
        await_end(bare, *PODS)
        await_nothing(bare)
    finally:
        bare.delete("resourceclaimtemplates", *PODS)
        bare.delete("deviceclasses", *PODS)


def refused_until_the_pods_end(cluster: Cluster, shell: Callable[[str], str]) -> None:
    """Helm names the pods, and changes no object of the chart; after a rollback it upgrades again."""
    before, objects = daemons(cluster), of_chart(cluster)
    for pods in ([*PODS], [*PODS][1:]):
        with pytest.raises(Failed) as refused:
            shell(UNINSTALL)
        assert [name for name in PODS if f"default/{name}" in str(refused.value)] == pods
        assert {*of_chart(cluster)} - {*objects} <= {"pod/hpn-uninstall"}
        assert {one["metadata"]["uid"] for one in daemons(cluster).values()} == {
            one["metadata"]["uid"] for one in before.values()
        }
        end(cluster, pods[0])
        await_end(cluster, pods[0])
    await_nothing(cluster)
    shell("helm rollback hpn 1 --namespace kube-system")
    shell(INSTALL.replace("install", "upgrade", 1))


def ended_by_the_next_install(cluster: Cluster, shell: Callable[[str], str]) -> None:
    """Without the hook, pods with claims keep their interfaces and cannot end, until hpn is there again."""
    shell(f"{UNINSTALL} --no-hooks")
    until(lambda: not daemons(cluster), "the DaemonSet's pods to end", PATIENCE, 0.2)
    assert are_attached(cluster)
    end(cluster, *PODS)
    shell(INSTALL)
    await_end(cluster, *PODS)
    await_nothing(cluster)
    shell(UNINSTALL)
