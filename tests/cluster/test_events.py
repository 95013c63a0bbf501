"""docs/user/kubernetes.md: each fault in the table causes the row's event in `kubectl describe`.

A row's pattern is the quoted text of the page, with "..." and capitalized words as wildcards.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.space import Failed, until
from cluster.two_nodes import Cluster
from support.pages import ROOT

HPN = "/opt/cni/bin/hpn"
MULTUS = "/etc/cni/net.d/00-multus.conf"
PREFIX = "example.com"
OFFERED: dict[str, Any] = {
    "resources": [
        {"name": f"{PREFIX}/rail0", "kind": "master", "selectors": {"ifNames": ["rail0"]}},
        {"name": f"{PREFIX}/rail1", "kind": "master", "selectors": {"ifNames": ["rail1"]}},
        {"name": f"{PREFIX}/vhost", "kind": "master", "vhostNet": True, "selectors": {"ifNames": ["rail2"]}},
    ],
    "health": {"downAfter": 0, "upAfter": 0},
}


def rows(title: str) -> dict[str, re.Pattern[str]]:
    """The first cell of each row in the table below this heading, and the pattern of its event."""
    _, _, section = (ROOT / "docs" / "user" / "kubernetes.md").read_text().partition(f" {title}\n")
    section, _, _ = section.partition("\n#")
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]
    return {cell: pattern(*re.findall(r"`([^`]+)`", cell)) for cell in cells}


def pattern(*quoted: str) -> re.Pattern[str]:
    texts = (re.sub(r"\\\.\\\.\\\.|\b[A-Z]{3,}\b", ".*", re.escape(text)) for text in quoted)
    return re.compile(".*".join(texts), re.DOTALL)


def rail(number: int, **keys: Any) -> dict[str, Any]:
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": f"10.{60 + number}.0.0/24"}]]}
    return {"type": "hpn", "master": f"rail{number}", "ipam": ipam, **keys}


def network(name: str, plugin: dict[str, Any], version: str = "1.0.0", resource: str = "") -> dict[str, Any]:
    it = manifests.network(name, plugin, resource=resource)
    it["spec"]["config"] = json.dumps({"cniVersion": version, "name": name, "plugins": [plugin]})
    return it


def events(cluster: Cluster, pod: str) -> list[str]:
    """The reason and message of each event of an existing pod, without those of earlier pods of that name."""
    uid = cluster.get("pod", pod)["metadata"]["uid"]
    found = cluster.get("events", f"--field-selector=involvedObject.uid={uid}")["items"]
    return [f"{event['reason']} {event['message']}" for event in found]


@pytest.fixture
def offering(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with nodes that offer rail0, rail1 and vhost."""
    for node in cluster.nodes.values():
        node.run("sh", "-ec", "mkdir -p /etc/hpn; umask 022; cat >/etc/hpn/devices.yaml", stdin=json.dumps(OFFERED))
        node.service("node").start()
    await_offer(cluster, "100")
    yield cluster
    cluster.delete("pods", "--all", "--namespace=default")
    for node in cluster.nodes.values():
        node.service("node").stop()
        node.run("rm", "-rf", "/etc/hpn")
    await_offer(cluster, "0")  # otherwise the next test reads stale amounts from the API server


def await_offer(cluster: Cluster, allocatable: str) -> None:
    """Wait until the API server shows this allocatable amount of the last resource on both nodes."""
    for name in cluster.nodes:
        until(lambda name=name: amounts(cluster, name, "vhost")[1] == allocatable, f"{name} to tell", 120, 0.2)


def amounts(cluster: Cluster, node: str, resource: str) -> tuple[str, str]:
    """Capacity and allocatable amount of a node's resource; empty without that resource."""
    status = cluster.get("node", node)["status"]
    name = f"{PREFIX}/{resource}"
    return status["capacity"].get(name, ""), status["allocatable"].get(name, "")


@contextmanager
def something_wrong(ill: Host, bare: Host) -> Iterator[None]:
    """Take the carrier of rail1 and /dev/net/tun, which vhost needs, from one node, and hpn from the other."""
    ill.switch.run("ip", "link", "set", f"{ill.name}-rail1", "down")
    ill.run("mount", "-t", "tmpfs", "tmpfs", "/dev/net")
    try:
        with without_hpn(bare):
            yield
    finally:
        ill.run("umount", "/dev/net")
        ill.switch.run("ip", "link", "set", f"{ill.name}-rail1", "up")


@contextmanager
def without_hpn(node: Host) -> Iterator[None]:
    node.run("mv", HPN, f"{HPN}.away")
    try:
        yield
    finally:
        node.run("mv", f"{HPN}.away", HPN)


def pods() -> list[dict[str, Any]]:
    """One pod for each fault; "full" and "first" want the one address of a pool."""
    one_address = rail(4)
    one_address["ipam"]["ranges"] = [[{"subnet": "10.64.0.0/24", "rangeStart": "10.64.0.9", "rangeEnd": "10.64.0.9"}]]
    of_rail0 = {"resource": f"{PREFIX}/rail0"}
    networks = [
        network("rail0", rail(0), **of_rail0), network("full", one_address), network("misspelled", rail(0, mtuu=9000)),
        network("no-master", rail(9)), network("too-old", rail(0), "0.2.0"),
        network("not-asked", {"type": "hpn", "kind": "sriov", "ipam": rail(5)["ipam"]}, **of_rail0),
        network("not-all", {"type": "hpn", "rails": [f"{PREFIX}/rail0", f"{PREFIX}/vhost"], "ipam": rail(5)["ipam"]}),
    ]  # fmt: skip
    names = ("full", "first", "misspelled", "no-master", "too-old", "not-asked", "nowhere")
    on_node1 = [manifests.pod(name, node="node1", networks="full" if name == "first" else name) for name in names]
    late = manifests.pod("late", resources={f"{PREFIX}/rail1": 1})
    late["spec"] |= {"nodeName": "node1", "nodeSelector": {}}  # as if the link had failed after the scheduler's choice
    return [
        *networks, *on_node1, late,
        manifests.pod("unknown", resources={f"{PREFIX}/rail9": 1}),
        manifests.pod("vhost", node="node1", resources={f"{PREFIX}/vhost": 1}),
        manifests.pod("not-all", node="node1", networks="not-all", resources={f"{PREFIX}/rail0": 1}),
        manifests.pod("no-hpn", node="node2", networks="rail0", resources={f"{PREFIX}/rail0": 1}),
        manifests.pod("ends", node="node1", networks="rail0@hpn0", resources={f"{PREFIX}/rail0": 1}),
    ]  # fmt: skip


def test_events_of_pods(offering: Cluster) -> None:
    ill, bare = offering.nodes.values()
    wanted = rows("When a pod does not start or end")
    names = [it["metadata"]["name"] for it in pods() if it["kind"] == "Pod"]
    said = dict[str, list[str]]()

    def missing() -> list[str]:
        said.update((name, events(offering, name)) for name in names)
        everything = [event for each in said.values() for event in each]
        return [row for row, like in wanted.items() if not any(map(like.search, everything))]

    try:
        with something_wrong(ill, bare):
            until(lambda: amounts(offering, "node1", "rail1") == ("100", "0"), "rail1 to be unhealthy", 120, 0.2)
            offering.apply(*pods())
            offering.wait("Ready", "pod/ends")
            until(lambda: all("FailedKillPod" in row for row in missing()), "the events", 120, 1)
        with without_hpn(ill):
            offering.kubectl("delete", "pod", "ends", "--wait=false")
            until(lambda: not missing(), "the events", 120, 1)
    except Failed as e:
        e.add_note(
            "\n".join(["not seen:", *missing(), "seen:", *sorted({event for each in said.values() for event in each})])
        )
        raise
    likes = wanted.values()
    without_row = [name for name, each in said.items() if not any(like.search(e) for like in likes for e in each)]
    assert without_row in (["full"], ["first"]), "the one that got the address; every other pod has a fault"
    offering.kubectl("wait", "--for=delete", "pod/ends", "--timeout=60s")
    offering.wait("Ready", "pod/no-hpn")


@contextmanager
def own_network(node: Host, plugin: dict[str, Any]) -> Iterator[None]:
    """A node that uses hpn as its cluster network, without Multus."""
    multus, instead = node.path(MULTUS), node.path("/etc/cni/net.d/00-hpn.conflist")
    before = multus.read_text()
    multus.unlink()
    instead.write_text(json.dumps({"cniVersion": "1.1.0", "name": "cluster", "plugins": [plugin]}))
    try:
        yield
    finally:
        instead.unlink()
        multus.write_text(before)


def test_a_node_that_is_not_ready(cluster: Cluster) -> None:
    (like,) = rows("When a node is not ready").values()
    node = cluster.nodes["node2"]

    def message() -> str:
        (ready,) = (c for c in cluster.get("node", node.name)["status"]["conditions"] if c["type"] == "Ready")
        return "" if ready["status"] == "True" else str(ready["message"])

    with own_network(node, rail(9)):
        said = until(message, f"{node.name} to be NotReady", 120, 0.2)
        assert like.search(said)
    cluster.wait_ready()


def test_hpn_node_stops(offering: Cluster) -> None:
    """The allocatable amount becomes 0 at once.  The test does not wait the five minutes until kubelet forgets the
    resource."""
    node = offering.nodes["node1"]
    offering.apply(manifests.pod("has", node="node1", resources={f"{PREFIX}/rail0": 1}))
    offering.wait("Ready", "pod/has")
    second = node.run(HPN, "node", check=False)
    assert second.returncode
    assert "another hpn node (process " in second.stderr
    node.service("node").stop()
    until(lambda: amounts(offering, "node1", "rail0") == ("100", "0"), "nothing to give", 120, 0.2)
    assert offering.containers("has"), "who has it keeps it"
    node.service("node").start()
    until(lambda: amounts(offering, "node1", "rail0") == ("100", "100"), "all to give", 120, 0.2)


def test_a_reboot_without_hpn_node(offering: Cluster) -> None:
    """kubelet refuses the pod that had a device, with the reason of an unhealthy device."""
    row = next(like for cell, like in rows("When a pod does not start or end").items() if "unhealthy" in cell)
    offering.apply(manifests.pod("had", node="node2", resources={f"{PREFIX}/rail0": 1}))
    offering.wait("Ready", "pod/had")
    node = offering.nodes["node2"]
    node.power_cut()
    offering.boot(node)
    until(lambda: any(map(row.search, events(offering, "had"))), "the pod to be refused", 120, 0.5)
