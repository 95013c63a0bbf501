"""Daemons are killed and a node loses its power while pods attach: everything recovers, and nothing is left over.

Both nodes run their own rounds in parallel.  Each round creates two pods with four rails each on the node.  As soon as
Multus has begun with one of them, daemons are killed at a random moment and restarted.  A third pod exists before and
stays.  The first rail has three devices, one for each pod, so a lost device is missing in the next round.
"""

import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drawn
import pytest
from cluster import manifests
from cluster.host import Host
from cluster.multus import podresources
from cluster.services import offer, withdraw
from cluster.space import Failed, until
from cluster.two_nodes import Cluster

RAILS = 4
RESOURCE = "hpn.test/rail0"
OFFERED = {"name": RESOURCE, "kind": "master", "count": 3, "selectors": {"ifNames": ["rail0"]}}
KILLED = (("kubelet",), ("containerd",), ("agent", "containerd"), ("node",), ("agent", "kubelet", "node"))
POWER = ("power",)
# The rounds of each node.
ROUNDS = 3 * KILLED + 5 * (POWER,)
# About the time that Multus takes for two pods.
WINDOW = 0.4
PATIENCE = 90


@pytest.fixture
def offering(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with nodes that offer devices from boot on."""
    for node in cluster.nodes.values():
        offer(node, OFFERED).start()
    yield cluster
    cluster.delete("pods", "--all", "--namespace=default")
    for node in cluster.nodes.values():
        withdraw(node)


def test_killed_while_pods_are_attached(offering: Cluster) -> None:
    seed = drawn.seed()
    for n in range(RAILS):
        ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": f"10.{60 + n}.0.0/24"}]]}
        resource = "" if n else RESOURCE
        plugin = {"type": "hpn", "master": f"rail{n}", "ipam": ipam}
        offering.apply(manifests.network(f"rail{n}", plugin, resource=resource))
    with ThreadPoolExecutor() as both:
        rounds = [Rounds(offering, node, random.Random(f"{seed}{name}")) for name, node in offering.nodes.items()]
        for done in [both.submit(each.run) for each in rounds]:
            done.result()


@dataclass(frozen=True)
class Rounds:
    """The rounds of one node."""

    cluster: Cluster
    node: Host
    chance: random.Random

    def run(self) -> None:
        rounds = drawn.share(ROUNDS, self.node.name)
        drawn.noted("rounds of kills and power cuts", len(rounds))
        self.chance.shuffle(rounds)
        self.make("stays")
        self.await_attached("stays")
        for number, victims in enumerate(rounds):
            print(f"{self.node.name}: round {number}: {', '.join(victims)}")
            new = [f"{number}-x", f"{number}-y"]
            self.make(*new)
            until(lambda: len(self.attached()) > 1, "Multus to begin", PATIENCE, 0.01)
            # time: when to kill, drawn
            time.sleep(self.chance.uniform(0, WINDOW))
            self.strike(victims)
            self.await_attached("stays", *new)
            self.cluster.delete("pod", *map(self.pod, new))
            self.await_attached("stays")

    def pod(self, name: str) -> str:
        return f"{self.node.name}-{name}"

    def make(self, *names: str) -> None:
        asked = ",".join(f"rail{n}@hpn{n}" for n in range(RAILS))
        options: Any = {"node": self.node.name, "networks": asked, "resources": {RESOURCE: 1}}
        self.cluster.apply(*(manifests.pod(self.pod(name), **options) for name in names))

    def attached(self) -> list[Path]:
        """Multus's files of containers with an unfinished or complete attachment."""
        return [file for file in self.node.path("/var/lib/cni/multus").glob("*") if file.is_file()]

    def strike(self, victims: tuple[str, ...]) -> None:
        if victims == POWER:
            self.node.power_cut()
            self.cluster.boot(self.node)
            return
        for name in victims:
            self.node.service(name).kill()
        for name in self.node.at_boot:
            if name in victims:
                self.start(name)

    def start(self, name: str) -> None:
        """Start the service.  kubelet exits unless containerd is ready, so wait for containerd, which comes first."""
        service = self.node.service(name)
        booted = service.log.read_text(errors="replace").count("successfully booted")
        service.start()
        if name == "containerd":
            until(lambda: service.log.read_text(errors="replace").count("successfully booted") > booted, name, PATIENCE)

    def await_attached(self, *names: str) -> None:
        """Wait until these pods are Ready with all their networks, and the node holds nothing of any other pod."""
        pods = {f"default/{self.pod(name)}" for name in names}
        self.cluster.wait("Ready", *(f"pod/{self.pod(name)}" for name in names), timeout=PATIENCE)
        try:
            until(lambda: self.has(pods), f"{self.node.name} to have {', '.join(names)} and no more", PATIENCE, 0.2)
        except Failed as e:
            raise Failed(f"{e}; it has {self.found()}") from e
        addresses = [address for each in self.node.attachments() for address in each["addresses"]]
        assert len(set(addresses)) == len(addresses), "an address was given twice"
        until(lambda: all(self.given(names)), "kubelet to know again which pod has which device", PATIENCE, 0.2)
        given = self.given(names)
        assert len({*itertools.chain(*given)}) == len(names), f"a device was given twice: {given}"

    def given(self, names: tuple[str, ...]) -> list[list[str]]:
        """The devices of each pod according to kubelet; none while it does not answer or has just started."""
        kubelet = str(self.node.path("/var/lib/kubelet/pod-resources/kubelet.sock"))
        try:
            return [list(podresources.devices("default", self.pod(n), kubelet).get(RESOURCE, ())) for n in names]
        except OSError:
            return [[]]

    def has(self, pods: set[str]) -> bool:
        attached, leases, sandboxes = self.found()
        wanted = {(pod, f"hpn{n}", True, True) for pod in pods for n in range(RAILS)}
        return attached == wanted and leases == {each[:2] for each in wanted} and sandboxes == len(pods)

    def found(self) -> tuple[set[Any], set[Any], int]:
        """The attachments, the leases, and the greater of two counts: pod namespaces, and pods in Multus's files."""
        attached = {(each["pod"], each["ifname"], each["alive"], each["complete"]) for each in self.node.attachments()}
        leases = {(lease["pod"], lease["ifname"]) for lease in self.node.leases()}
        namespaces = self.node.run("ls", "/run/netns").stdout.split()
        return attached, leases, max(len(namespaces), len(self.attached()))
