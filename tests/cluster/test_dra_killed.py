"""From the device plugin to claims and back by Helm, with pods alive, in both modes.

After each step one of kubelet, containerd and `hpn node` is killed.  A checker reads kubelet's list and the API
server's claims all the time: no share of rail0 belongs to two pods.  At the end both shares are available again.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import drawn
import pytest
from cluster import manifests
from cluster.host import Host
from cluster.multus.podresources import KubeletFailed, devices
from cluster.space import Failed, until
from cluster.two_nodes import Cluster
from support import helm
from support.bare_nodes import RESOURCE
from support.dra_by_chart import PATIENCE, PLUGIN, REACHED, SHARES, await_end, device_file, end, shares
from support.systemd_nodes import under_systemd

VICTIMS = ("kubelet", "containerd", "hpn-node")
LIST = "/var/lib/kubelet/pod-resources/kubelet.sock"


@pytest.fixture(params=drawn.share(["systemd", "container"], "modes"))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def booted(cluster: Cluster, mode: str) -> Iterator[Cluster]:
    """The cluster, in which node1 runs systemd for the mode systemd."""
    with under_systemd(cluster, cluster.nodes["node1"]) if mode == "systemd" else nullcontext():
        yield cluster


@pytest.fixture
def bare(bare: Cluster, mode: str) -> Iterator[Cluster]:
    """Nothing of the mode's is left either."""
    yield bare
    bare.delete("pods", "--all", "--namespace=default", "--grace-period=1")
    bare.kubectl("delete", "deviceclasses,resourceslices", "--all")
    if mode == "systemd":
        bare.nodes["node1"].run("hpn", "uninstall", "--force", check=False)
    bare.nodes["node1"].run("rm", "-f", "/var/lib/kubelet/plugins_registry/.hpn-dra.json")


class Node:
    """node1 with its daemons, whatever runs them."""

    def __init__(self, cluster: Cluster, host: Host, mode: str, chance: random.Random) -> None:
        self.cluster, self.host, self.mode, self._chance = cluster, host, mode, chance
        victims = list(VICTIMS)
        chance.shuffle(victims)
        self._victims = itertools.cycle(victims)

    def after(self, step: Callable[[], object]) -> None:
        """Do the step, and kill the next daemon at a random moment after it."""
        step()
        # time: when to kill, drawn
        time.sleep(self._chance.uniform(0, 3))
        victim = next(self._victims)
        print(f"{self.mode}: killing {victim}")
        if self.mode == "systemd":
            self.host.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", f"{victim}.service", check=False)
        elif victim == "hpn-node":
            # It may not run at this moment.
            self.host.run("pkill", "--exact", "--signal=KILL", victim, check=False)
        else:
            self._restart(victim)

    def _restart(self, victim: str) -> None:
        """kubelet exits unless containerd is ready."""
        service = self.host.service(victim)

        def count() -> int:
            return service.log.read_text(errors="replace").count("successfully booted")

        booted = count()
        service.kill()
        service.start()
        if victim == "containerd":
            until(lambda: count() > booted, victim, PATIENCE)
            # A containerd that ends takes kubelet with it.
            if not self.host.service("kubelet").pid:
                self.host.service("kubelet").start()


class Checker:
    """Compares the units that kubelet's list has with the claims of the API server."""

    def __init__(self, cluster: Cluster, host: Host) -> None:
        self._cluster, self._socket = cluster, str(host.path(LIST))
        self.count, self.faults, self._over = 0, list[str](), threading.Event()

    def run(self) -> None:
        # time: the pace of a loop that ends with the test
        while not self._over.wait(0.3):
            with suppress(Failed, OSError, KubeletFailed, KeyError):
                before = self._claims()
                given = {pod: devices("default", pod, self._socket).get(RESOURCE, []) for pod in self._pods()}
                self.count += 1
                # A claim in both lists was there while kubelet listed its units.
                self._compare({pod: ids for pod, ids in given.items() if ids}, before & self._claims())

    def _compare(self, given: dict[str, list[str]], claims: frozenset[str]) -> None:
        units = [one for ids in given.values() for one in ids]
        if len(units) != len({*units}) or len(units) + len(claims) > SHARES:
            self.faults.append(f"kubelet has {given}, and these claims are allocated: {sorted(claims)}")

    def _pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._cluster.get("pods", "--namespace=default")["items"]]

    def _claims(self) -> frozenset[str]:
        found = self._cluster.get("resourceclaims", "--namespace=default")["items"]
        return frozenset(one["metadata"]["uid"] for one in found if one.get("status", {}).get("allocation"))

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def allocatable(cluster: Cluster) -> str:
    return str(cluster.get("node", "node1")["status"]["allocatable"].get(RESOURCE, "0"))


def start(cluster: Cluster, pod: str) -> None:
    cluster.apply(manifests.pod(pod, node="node1", networks="rail0@hpn0", resources={RESOURCE: 1}))


def by_claim(cluster: Cluster, pod: str) -> bool:
    """Whether the pod has its device by a claim.  It is Ready, and has its interface."""
    cluster.wait("Ready", f"pod/{pod}", timeout=PATIENCE)
    until(lambda: has_interface(cluster, pod), f"hpn0 in {pod}", PATIENCE, 0.2)
    return "extendedResourceClaimStatus" in cluster.get("pod", pod)["status"]


def has_interface(cluster: Cluster, pod: str) -> bool:
    with suppress(Failed):  # kubelet starts
        return "hpn0" in cluster.execute(pod, "ip", "link", "show", "hpn0")
    return False


def is_refused(cluster: Cluster, pod: str) -> bool:
    conditions = cluster.get("pod", pod)["status"].get("conditions", [])
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def test_there_and_back_with_kills(bare: Cluster, tree: Path, shell: Callable[[str], str], mode: str) -> None:
    host, install = bare.nodes["node1"], "helm {} hpn packaging/helm/hpn --namespace kube-system --values values.yaml"
    node = Node(bare, host, mode, random.Random(f"{drawn.seed()}{mode}"))
    only = {"mode": mode, "nodeSelector": {"kubernetes.io/hostname": "node1"}, "networks": [], "env": REACHED}
    helm.write(tree, devices=device_file("devicePlugin"), **only)
    shell(install.format("install"))
    until(lambda: allocatable(bare) == "2", "the plugin's devices", PATIENCE, 0.2)
    bare.apply(manifests.network("rail0", PLUGIN, resource=RESOURCE))
    checker = Checker(bare, host)
    with checker.watching():
        node.after(lambda: start(bare, "a"))
        assert not by_claim(bare, "a")

        to_claims(bare, node, tree, shell, only)
        node.after(lambda: start(bare, "c"))
        assert by_claim(bare, "c")
        # The NIC has no third share, although one pod has its share by the plugin.
        start(bare, "e")
        until(lambda: is_refused(bare, "e"), "the scheduler to find no device", PATIENCE, 0.2)
        node.after(lambda: end(bare, "a"))
        assert by_claim(bare, "e")

        # The rollback takes the credential away too, while two pods have claims.
        node.after(lambda: shell("helm rollback hpn --namespace kube-system"))
        assert by_claim(bare, "c")
        assert allocatable(bare) == "0"
        node.after(lambda: end(bare, "c", "e"))
        await_end(bare, "c", "e")
        until(lambda: allocatable(bare) == "2", "the plugin to have both shares again", PATIENCE, 0.2)
        assert shares(bare) == ""
        node.after(lambda: (start(bare, "f"), start(bare, "g")))
        assert (by_claim(bare, "f"), by_claim(bare, "g")) == (False, False)
        end(bare, "f", "g")
        await_end(bare, "f", "g")
    assert checker.faults == []
    assert checker.count > 20
    until(lambda: (host.attachments(), host.leases()) == ([], []), "nothing to be left", PATIENCE, 0.2)
    assert host.run("sh", "-c", "ls /run/hpn/claims", check=False).stdout == ""


def to_claims(cluster: Cluster, node: Node, tree: Path, shell: Callable[[str], str], only: dict[str, Any]) -> None:
    """The chart's values change, and the cluster gets the class of --classes."""
    node.host.run("sh", "-ec", 'cat >"$1"; chmod 644 "$1"', "sh", "/run/by-dra.json", stdin=device_file("dra"))
    printed = node.host.run("/opt/cni/bin/hpn", "node", "--classes", "/run/by-dra.json").stdout
    cluster.kubectl("apply", "--filename=-", stdin=printed)
    helm.write(tree, devices=device_file("dra"), claims={"enabled": True}, **only)
    upgrade = "helm upgrade hpn packaging/helm/hpn --namespace kube-system --values values.yaml"
    node.after(lambda: shell(upgrade))
    until(lambda: shares(cluster) == "1", "the share that no pod has", PATIENCE, 0.2)
