"""Locked memory of containers by kubelet, containerd and runc: with a device, by a claim and by the device plugin, and
without one.

Without CAP_SYS_RESOURCE a machine's root exceeds no hard limit, and changes none of a user namespace.  So the runtime
has a smaller soft limit here, and tests/lab/shared/test_memlock.py has the rest.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import claims, manifests
from cluster.host import Host
from cluster.services import offer, withdraw
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import put_kubeconfig
from support.pages import ROOT

NODE = "node1"
MANIFESTS = ROOT / "packaging" / "kubernetes" / "dra"
CREDENTIAL = "/etc/cni/net.d/hpn.kubeconfig"
LITTLE, MUCH, ENORMOUS = 64 << 10, 1 << 20, 1 << 59
USER = {"runAsUser": 1000, "runAsNonRoot": True}
# Without an RDMA device on this machine, /dev/vhost-net is the device's node: a copy of /dev/null.
PLUGIN = {"kind": "master", "count": 4, "cdi": True, "vhostNet": True}
BY_PLUGIN = [
    {**PLUGIN, "name": "example.com/raised", "memlock": MUCH, "selectors": {"ifNames": ["rail1"]}},
    {**PLUGIN, "name": "example.com/kept", "memlock": "keep", "selectors": {"ifNames": ["rail2"]}},
    {**PLUGIN, "name": "example.com/absent", "selectors": {"ifNames": ["rail3"]}},
]
BY_CLAIM = {"name": "example.com/rail0", "kind": "master", "count": 8, "by": "dra", "selectors": {"ifNames": ["rail0"]}}
DEV = """
mkdir -p /run/dev /run/written/dev /run/written/.dev
mount --rbind /dev /run/dev
mount -t overlay -o lowerdir=/run/dev,upperdir=/run/written/dev,workdir=/run/written/.dev overlay /dev
for one in pts shm mqueue; do [ ! -d /run/dev/$one ] || mount --bind /run/dev/$one /dev/$one; done
mknod /dev/vhost-net c 1 3
"""


@pytest.fixture(scope="module")
def node(whole: Cluster) -> Iterator[Host]:
    """A node whose containers may lock little, with hpn node for both ways."""
    whole.kubectl("apply", f"--filename={MANIFESTS}/nodes.yaml")
    one = whole.nodes[NODE]
    one.run("sh", "-ec", DEV)
    put_kubeconfig(whole, NODE, CREDENTIAL, f"token-system:node:{NODE}")
    offer(one, BY_CLAIM, *BY_PLUGIN).start()
    one.run("prlimit", f"--pid={one.service('containerd').pid}", f"--memlock={LITTLE}:")
    until(lambda: len(whole.get("resourceslices")["items"]) == 1, "the node's slice", 120)
    until(lambda: allocatable(whole, "example.com/raised") == "4", "the device plugin", 120)
    yield one
    withdraw(one)
    one.run("rm", "-rf", CREDENTIAL, "/var/lib/kubelet/plugins_registry/.hpn-dra.json")
    whole.kubectl("delete", "resourceslices", "--all")
    whole.kubectl("delete", f"--filename={MANIFESTS}/nodes.yaml")
    one.power_cut()
    whole.restore()


def allocatable(cluster: Cluster, name: str) -> str:
    return str(cluster.get("node", NODE)["status"]["allocatable"].get(name, ""))


@pytest.fixture
def cluster(node: Host, cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.delete("pods", "--all", "--namespace=default")
    cluster.delete("resourceclaims,resourceclaimtemplates", "--all", "--namespace=default")
    cluster.delete("deviceclasses", "--all")


def limit(cluster: Cluster, pod: str, container: str = "c") -> int:
    """The soft limit of the container's process, by its user."""
    text = cluster.kubectl("exec", pod, f"--container={container}", "--", "cat", "/proc/1/limits")
    found = re.search(r"Max locked memory +(\S+)", text)
    assert found
    return -1 if found[1] == "unlimited" else int(found[1])


def beside(pod: dict[str, Any], name: str, **more: Any) -> None:
    """Add a container without a device."""
    own = pod["spec"]["containers"][0]
    keys = ("image", "imagePullPolicy", "command")
    pod["spec"]["containers"].append({**{key: own[key] for key in keys}, "name": name, **more})


def test_a_claims_container(cluster: Cluster) -> None:
    """The class's limit, for a user that is not root; also after a restart of the container, which the container beside
    it without the claim does not have, and neither a process of kubectl exec."""
    cluster.apply(
        claims.device_class("rail0", "example.com/rail0", attach="none", memlock=MUCH),
        claims.template("a", claims.spec("rail0")),
    )
    pod = claims.pod("a", node=NODE, template="a")
    beside(pod, "other")
    pod["spec"]["securityContext"] = USER
    cluster.apply(pod)
    cluster.wait("Ready", "pod/a")
    assert (limit(cluster, "a"), limit(cluster, "a", "other")) == (MUCH, LITTLE)
    assert cluster.execute("a", "sh", "-c", "id -u; ulimit -l").split()[-2:] == ["1000", f"{LITTLE >> 10}"]
    before = cluster.get("pod", "a")["status"]["containerStatuses"][0]["containerID"]
    cluster.kubectl("exec", "a", "--container=c", "--", "kill", "1", check=False)

    def restarted() -> bool:
        (now,) = (one for one in cluster.get("pod", "a")["status"]["containerStatuses"] if one["name"] == "c")
        return bool(now["ready"] and now["containerID"] != before)

    until(restarted, "the container to restart", 180)
    assert (limit(cluster, "a"), limit(cluster, "a", "other")) == (MUCH, LITTLE)


def test_by_the_device_plugin(cluster: Cluster) -> None:
    """The device file's limit; none with keep, nor for a device without RDMA."""
    for name in ("raised", "kept", "absent"):
        pod = manifests.pod(name, node=NODE, resources={f"example.com/{name}": 1})
        beside(pod, "other")
        pod["spec"]["securityContext"] = USER
        cluster.apply(pod)
    cluster.wait("Ready", "pod/raised", "pod/kept", "pod/absent")
    assert [limit(cluster, name) for name in ("raised", "kept", "absent")] == [MUCH, LITTLE, LITTLE]
    assert limit(cluster, "raised", "other") == LITTLE


def test_a_limit_that_cannot_be_set(cluster: Cluster, node: Host) -> None:
    """The class states the limit, so no container starts without it; and one starts once hpn is uninstalled."""
    cluster.apply(
        claims.device_class("rail0", "example.com/rail0", attach="none", memlock=ENORMOUS),
        claims.template("b", claims.spec("rail0")),
        claims.pod("b", node=NODE, template="b"),
    )
    if node.run("sh", "-c", f"prlimit --memlock={ENORMOUS} true", check=False).returncode == 0:
        cluster.wait("Ready", "pod/b")  # this machine's root may set any limit
        assert limit(cluster, "b") == ENORMOUS
        return
    until(lambda: "the container's limit cannot be raised" in why(cluster, "b"), "the pod's event", 180)
    assert "hpn-claim-" in node.run("hpn", "uninstall", "--hooks").stdout
    cluster.wait("Ready", "pod/b")
    assert limit(cluster, "b") == LITTLE


def why(cluster: Cluster, pod: str) -> str:
    events = cluster.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
    return "\n".join(one["message"] for one in events)
