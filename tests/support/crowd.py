"""Pods that stay, and pods that come and go, while the DaemonSet of their nodes changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster import manifests
from cluster.space import until
from cluster.two_nodes import Cluster
from support.bare_nodes import RESOURCE

STAYING, COMING = 8, 6  # pods; the second number applies to each of two kinds
KINDS = ("devices", "plain")
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}


@contextmanager
def undisturbed(cluster: Cluster, last: tuple[str, ...] = KINDS) -> Iterator[None]:
    """Start pods on rail0 that stay, and Jobs of others; at the end no pod has failed, and the first are as before.

    ``last`` are the kinds that still come and go at the end.
    """
    plugin = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}
    networks = [manifests.network("device", plugin, resource=RESOURCE), manifests.network("plain", plugin)]
    cluster.apply(*networks, staying())
    cluster.kubectl("rollout", "status", "deployment/stay", "--timeout=60s")
    containers, there = cluster.containers(), interfaces(cluster)
    assert len(containers) == STAYING
    cluster.apply(coming("devices", "device", {RESOURCE: 1}), coming("plain", "plain", {}))
    yield
    await_more(cluster, last)
    assert [failed for _, failed in counts(cluster).values()] == [0, 0]
    assert cluster.containers().items() >= containers.items()
    assert interfaces(cluster) >= there


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


def await_more(cluster: Cluster, kinds: tuple[str, ...] = KINDS) -> None:
    """Wait until more pods of each of these kinds succeed than run at a time."""
    before = counts(cluster)
    until(
        lambda: all(now - before[name][0] > COMING for name, (now, _) in counts(cluster).items() if name in kinds),
        f"pods to come and go: {', '.join(kinds)}", 120, 0.2,
    )  # fmt: skip


def await_end(cluster: Cluster, kind: str) -> None:
    """Wait until no pod of this kind is on a node, where no more can come."""

    def left() -> list[str]:
        found = cluster.get("pods", f"--selector=app={kind}")["items"]
        return [pod["metadata"]["name"] for pod in found
                if "nodeName" in pod["spec"] and pod["status"]["phase"] in ("Pending", "Running")]  # fmt: skip

    until(lambda: not left(), f"pods to end: {kind}", 120, 0.2)
