"""Claims from end to end: a real scheduler allocates, a real kubelet has them prepared, and Multus hands them on."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import drawn
import pytest
from cluster import claims, image, manifests
from cluster.host import Host
from cluster.services import OFFERED, offer, withdraw
from cluster.space import Failed, until
from cluster.two_nodes import Cluster, pod_network
from support.api_server import put_kubeconfig
from support.pages import ROOT

MANIFESTS = ROOT / "packaging" / "kubernetes" / "dra"
CREDENTIAL = "/etc/cni/net.d/hpn.kubeconfig"
API = "resource.k8s.io/v1"
DRIVER, GPUS = "hpn-cni.io", "gpu.example.com"
RAILS = [
    {"name": f"example.com/{rail}", "kind": "master", "count": 4, "by": "dra", "selectors": {"ifNames": [rail]}}
    for rail in ("rail0", "rail1")
]
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/rails/rails/hpn-cni.io-metadata.json"
IPAM = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.60.0.0/24"}]]}
LOG = "/var/log/hpn/chain.log"
CLAIMS, CDI = "/run/hpn/claims", "/var/run/cdi"


@pytest.fixture(scope="module")
def nodes(whole: Cluster) -> Iterator[Cluster]:
    """Both nodes with hpn node, which offers two rails by DRA and starts before kubelet; and its permissions."""
    whole.kubectl("apply", f"--filename={MANIFESTS}/nodes.yaml")
    for name, one in whole.nodes.items():
        put_kubeconfig(whole, name, CREDENTIAL, f"token-system:node:{name}")
        offer(one, *RAILS, health={"downAfter": 0.1, "upAfter": 0.1}).start()
    until(lambda: len(slices(whole)) == 2 * len(RAILS), "the slices of both nodes", 120)
    yield whole
    for one in whole.nodes.values():
        withdraw(one)
        one.run("rm", "-rf", CREDENTIAL, "/var/lib/kubelet/plugins_registry/.hpn-dra.json")
    whole.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={DRIVER}")
    whole.kubectl("delete", f"--filename={MANIFESTS}/nodes.yaml")


@pytest.fixture
def cluster(nodes: Cluster, cluster: Cluster) -> Iterator[Cluster]:
    """After a test no claim is left prepared."""
    nodes.apply(
        claims.device_class("rail0", "example.com/rail0", allow=["interface", "ips", "mac"]),
        manifests.network("rail0", {"type": "hpn", "ipam": IPAM}, resource="example.com/rail0"),
    )
    yield cluster
    cluster.delete("pods", "--all", "--namespace=default")
    cluster.delete("resourceclaims,resourceclaimtemplates", "--all", "--namespace=default")
    cluster.delete("deviceclasses", "--all")
    for node in nodes.nodes.values():
        assert left(node) == []


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("resourceslices")["items"]
    return [one for one in found if one["spec"]["driver"] == DRIVER]


def left(node: Host) -> list[str]:
    """The files of prepared claims on the node."""
    found = node.run("sh", "-c", f"ls -d {CLAIMS}/* {CDI}/hpn-claim-* 2>/dev/null", check=False)
    return list(found.stdout.split())


def shown_devices(cluster: Cluster, pod: str) -> list[dict[str, Any]]:
    """The devices in the status of the pod's claim."""
    (name,) = (one["resourceClaimName"] for one in cluster.get("pod", pod)["status"]["resourceClaimStatuses"])
    return list(cluster.get("resourceclaim", name)["status"].get("devices", ()))


def shown_health(cluster: Cluster, pod: str) -> tuple[str, str]:
    """The health of the claim's device in the pod's status, which kubelet has from the driver's stream; the reason."""
    (container,) = cluster.get("pod", pod)["status"]["containerStatuses"]
    ((device,),) = (one["resources"] for one in container["allocatedResourcesStatus"] if one["name"] == "claim:rails")
    return device["health"], device.get("message", "").partition(" since ")[0]


def why_not_prepared(cluster: Cluster, pod: str) -> str:
    """The messages of the pod's events from kubelet's Prepare."""
    events = cluster.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
    return "\n".join(one["message"] for one in events if one["reason"] == "FailedPrepareDynamicResources")


def test_two_pods_on_two_nodes(cluster: Cluster) -> None:
    """Each pod gets a share of its node's rail0, an interface by Multus, and the claim's own address.  The user of one
    is not root, in a user namespace."""
    for name, node, number in (("a", "node1", 11), ("b", "node2", 12)):
        asked = claims.spec("rail0", ips=[f"10.60.0.{number}/24"], mac=f"02:00:00:00:00:{number}")
        pod = claims.pod(name, node=node, networks="rail0@hpn0", template=name)
        if name == "b":
            pod["spec"] |= {"hostUsers": False, "securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}
        cluster.apply(claims.template(name, asked), pod)
    cluster.wait("Ready", "pod/a", "pod/b")
    assert " 0% packet loss" in cluster.execute("a", "ping", "-I", "hpn0", "-c", "1", "-w", "60", "10.60.0.12")
    shown = cluster.execute("a", "ip", "address", "show", "hpn0")
    assert "10.60.0.11/24" in shown
    assert "02:00:00:00:00:11" in shown
    metadata = json.loads(cluster.execute("a", "cat", METADATA).splitlines()[0])
    (device,) = metadata["requests"][0]["devices"]
    data = {"interfaceName": "hpn0", "ips": ["10.60.0.11/24"], "hardwareAddress": "02:00:00:00:00:11"}
    assert device["networkData"] == data
    until(lambda: [one["networkData"] for one in shown_devices(cluster, "a")] == [data], "the claim's status", 120)
    assert device["attributes"]["kind"] == {"string": "master"}
    assert cluster.execute("b", "cat", "/proc/self/uid_map").split()[1] != "0"
    assert "10.60.0.12/24" in cluster.execute("b", "cat", METADATA)
    node1 = cluster.nodes["node1"]
    assert len(left(node1)) == 3
    for state, health in (("down", ("Unhealthy", "rail0 is set down (ip link set rail0 up)")), ("up", ("Healthy", ""))):
        node1.run("ip", "link", "set", "rail0", state)
        until(lambda health=health: shown_health(cluster, "a") == health, f"the pod's status to be {health[0]}", 120)
    cluster.delete("pod", "a")
    until(lambda: left(node1) == [], "the claim to be given up", 120)


def test_the_pages_example(cluster: Cluster) -> None:
    """docs/user/claims.md, with a resource and an image that this cluster has."""
    text = (ROOT / "docs/user/claims.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    text = text.replace("nvidia.com/rail0_vf", "example.com/rail0")
    text = text.replace("image: example.com/trainer", f"image: {image.NAME}\n    command: {json.dumps(image.COMMAND)}")
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]}
    cluster.apply(manifests.network("rail0", {"type": "hpn", "ipam": ipam}, resource="example.com/rail0"))
    cluster.kubectl("apply", "--filename=-", stdin=text)
    cluster.wait("Ready", "pod/trainer")
    assert "10.56.0.7/24" in cluster.execute("trainer", "ip", "address", "show", "hpn0")
    assert '"interfaceName": "hpn0"' in cluster.execute("trainer", "cat", METADATA)


def test_a_pod_without_its_interface_does_not_start(cluster: Cluster) -> None:
    """The gate: the annotation for Multus was forgotten, so the container has a claim and no interface."""
    cluster.apply(claims.template("a", claims.spec("rail0")), claims.pod("a", node="node1", template="a"))

    def waits() -> bool:
        events = cluster.get("events", "--field-selector=involvedObject.name=a")["items"]
        return any(f"{CLAIMS}/" in one["message"] and "no such file" in one["message"] for one in events)

    until(waits, "kubelet to name the missing file", 120)
    (state,) = cluster.get("pod", "a")["status"]["containerStatuses"]
    assert "running" not in state["state"]
    # The runtime looks again at each try: the same pod starts when the file is there.
    (claim,) = (file for file in left(cluster.nodes["node1"]) if file.endswith(".d"))
    cluster.nodes["node1"].run("sh", "-c", f"echo {{}} >{claim}/0")
    cluster.wait("Ready", "pod/a")
    cluster.delete("pod", "a")
    cluster.apply(claims.pod("a", node="node1", networks="rail0@hpn0", template="a"))
    cluster.wait("Ready", "pod/a")


@pytest.fixture
def policy(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the policy, once the API server enforces it."""
    cluster.kubectl("apply", f"--kustomize={MANIFESTS}")
    until(lambda: refusal(cluster, vlan=5), "the API server to see the policy", 120, 0.2)
    yield cluster
    # All of it but nodes.yaml, which is the module's.
    cluster.kubectl("delete", *(f"--filename={MANIFESTS}/{name}.yaml" for name in ("policy", "slices", "status")))
    until(lambda: not refusal(cluster, vlan=5), "the API server to forget the policy", 120, 0.2)


def refusal(cluster: Cluster, **keys: Any) -> str:
    """Why the API server refuses a claim with these keys; empty if it does not."""
    try:
        cluster.kubectl(
            "create",
            "--dry-run=server",
            "--filename=-",
            stdin=json.dumps(claims.claim("a", claims.spec("rail0", **keys))),
        )
    except Failed as e:
        return str(e)
    return ""


def test_refused_when_it_is_applied(policy: Cluster) -> None:
    """What the API server can see of a bad claim, a template or a class is refused before any pod has it."""
    for keys, words in (
        ({"vlan": 5}, "vlan: only a DeviceClass may set this, and not a claim"),
        ({"interfac": "a"}, "interfac: unknown in the parameters of driver hpn-cni.io"),
        ({"mac": "01:00:00:00:00:01"}, "mac is not a unicast MAC"),
        ({"mac": 5}, "mac is not a unicast MAC"),
        ({"interface": "longer-than-15-bytes"}, "interface cannot name an interface: 1 to 15 bytes"),
        ({"interface": 5}, "interface cannot name an interface"),
        ({"kind": "Other"}, "have apiVersion hpn-cni.io/v1 and kind Attachment"),
    ):
        assert words in refusal(policy, **keys), keys
    assert refusal(policy) == refusal(policy, interface="net1", ips=["10.0.0.1/24"], mac="02:00:00:00:00:01") == ""
    with pytest.raises(Failed, match="vlan: only a DeviceClass may set this"):
        policy.apply(claims.template("a", claims.spec("rail0", vlan=5)))
    with pytest.raises(Failed, match="vlam: unknown in the parameters"):
        policy.apply(claims.device_class("b", "example.com/rail0", vlam=5))
    policy.apply(claims.device_class("b", "example.com/rail0", vlan=5, attach="chain", allow=["ips"]))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"vlan": 5}, "vlan 5: only a DeviceClass may set vlan, and not a claim; remove vlan"),
        ({"interfac": "a"}, "interfac is an unknown key; did you mean interface?"),
        ({"rps": "numa"}, "the DeviceClass does not let a claim set rps"),
        ({"mac": "01:00:00:00:00:01"}, "is a multicast MAC; the first byte must be even"),
        ({"interface": "longer-than-15-bytes"}, "cannot name an interface: 1 to 15 bytes"),
    ],
)
def test_bad_input_is_in_the_pods_event(cluster: Cluster, keys: dict[str, Any], words: str) -> None:
    cluster.apply(
        claims.template("a", claims.spec("rail0", **keys)),
        claims.pod("a", node="node1", networks="rail0", template="a"),
    )
    until(lambda: words in why_not_prepared(cluster, "a"), "kubelet to report the reason", 120)
    assert left(cluster.nodes["node1"]) == []


@pytest.fixture
def attached(cluster: Cluster) -> Host:
    """node1 with a pod that has an interface by a claim."""
    cluster.apply(
        claims.template("a", claims.spec("rail0")),
        claims.pod("a", node="node1", networks="rail0@hpn0", template="a"),
    )
    cluster.wait("Ready", "pod/a")
    return cluster.nodes["node1"]


def test_the_driver_is_killed(cluster: Cluster, attached: Host) -> None:
    """The pod goes on.  It cannot end while the driver is away, and ends when it is back."""
    before = left(attached)
    attached.service("node").kill()
    cluster.kubectl("delete", "pod", "a", "--wait=false")
    until(lambda: attached.attachments() == [], "the pod's sandbox to end", 120)
    assert left(attached) == before
    attached.service("node").start()
    until(lambda: left(attached) == [], "the claim to be given up", 180)
    cluster.kubectl("wait", "--for=delete", "pod/a", "--timeout=120s")


def test_kubelet_is_killed(cluster: Cluster, attached: Host) -> None:
    """The pod and its claim stay; its end gives the claim up."""
    before, files = cluster.containers("a"), left(attached)
    attached.service("kubelet").kill()
    attached.service("kubelet").start()
    cluster.wait_ready()
    # kubelet removes the node's slices when it starts, and they come back.
    until(lambda: len(slices(cluster)) == 2 * len(RAILS), "the slices of both nodes", 180)
    cluster.apply(claims.pod("b", node="node1", networks="rail0@hpn0", template="a"))
    cluster.wait("Ready", "pod/b")
    assert cluster.containers("a") == before
    assert {*files} <= {*left(attached)}


def test_a_pod_over_a_power_cut(cluster: Cluster, attached: Host) -> None:
    """/run is empty after the boot, so the claim is prepared anew, and the pod comes back with its interface."""
    before = cluster.containers("a")
    attached.power_cut()
    cluster.boot(attached)
    cluster.wait_ready()
    cluster.wait_restarted(before)
    assert "hpn0" in cluster.execute("a", "ip", "link", "show", "hpn0")
    assert '"interfaceName": "hpn0"' in cluster.execute("a", "cat", METADATA)
    assert len(left(attached)) == 3


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[Path]:
    """node1 with a GPU of another driver, which refuses claims with the text of this file, and a template of a claim
    for a rail and the GPU."""
    node, refusal = cluster.nodes["node1"], "/var/log/gpu-refusal"
    pool = {"name": "gpus", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": GPUS, "nodeName": "node1", "pool": pool, "devices": [{"name": "gpu0"}]}
    selector = {"cel": {"expression": f'device.driver == "{GPUS}"'}}
    requests = [{"name": name, "exactly": {"deviceClassName": of}} for name, of in (("rails", "rail0"), ("gpu", "gpu"))]
    script = str(ROOT / "tests/support/other_driver.py")
    node.add_service("gpu", [sys.executable, script, "/var/lib/kubelet/plugins_registry/gpu.sock", GPUS, refusal])
    node.service("gpu").start()
    cluster.apply(
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},
        {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": "gpus"}, "spec": spec},
        claims.template("a", {"devices": {"requests": requests}}),
    )
    yield node.path(refusal)
    node.path(refusal).unlink(missing_ok=True)
    cluster.delete("pods", "--all", "--namespace=default")
    node.service("gpu").stop()
    del node.services["gpu"]
    cluster.delete("resourceslice", "gpus")


def test_a_rail_and_a_gpu(cluster: Cluster, gpus: Path) -> None:
    """Two drivers in one claim.  While the other one refuses it, the pod waits, and ours has nothing to repeat."""
    node = cluster.nodes["node1"]
    gpus.write_text("the GPU is being reset")
    cluster.apply(claims.pod("a", node="node1", networks="rail0@hpn0", template="a"))
    until(lambda: gpus.read_text() in why_not_prepared(cluster, "a"), "kubelet to report the other driver", 120)
    assert node.attachments() == []
    gpus.unlink()
    cluster.wait("Ready", "pod/a")
    assert '"interfaceName": "hpn0"' in cluster.execute("a", "cat", METADATA)
    gpus.write_text("the GPU is being drained")
    cluster.kubectl("delete", "pod", "a", "--wait=false")
    until(lambda: left(node) == [] == node.attachments(), "ours to be given up", 120)
    assert cluster.get("pod", "a")["metadata"]["deletionTimestamp"]
    gpus.unlink()
    cluster.kubectl("wait", "--for=delete", "pod/a", "--timeout=120s")


def test_a_pod_from_before_its_daemons(cluster: Cluster) -> None:
    """It is bound while kubelet is down, and kubelet comes back before hpn node."""
    node = cluster.nodes["node1"]
    node.service("kubelet").stop()
    node.service("node").stop()
    cluster.apply(
        claims.template("a", claims.spec("rail0")),
        claims.pod("a", node="node1", networks="rail0@hpn0", template="a"),
    )
    until(lambda: cluster.get("pod", "a")["spec"].get("nodeName"), "the scheduler", 120)
    node.service("kubelet").start()
    until(lambda: DRIVER in why_not_prepared(cluster, "a"), "kubelet to miss the driver", 120)
    node.service("node").start()
    cluster.wait("Ready", "pod/a", timeout=180)
    assert "hpn0" in links(cluster, "a")


KILLED = ("kubelet", "containerd", "node", "power")
MOMENTS = ("prepared", "attached", "ready", "ending", "given up")
CASES = [(moment, victim) for moment in MOMENTS for victim in KILLED]


def test_killed_at_any_moment(cluster: Cluster) -> None:
    """Whatever is killed at whatever moment of a pod with a claim: the pod becomes Ready, ends, and leaves nothing."""
    node, cases = cluster.nodes["node1"], drawn.share(CASES, "claims")
    drawn.noted("rounds of kills and power cuts", len(cases))
    for number, (moment, victim) in enumerate(cases):
        name = f"a{number}"
        pod = claims.pod(name, node="node1", networks="rail0@hpn0", template="a")
        cluster.apply(claims.template("a", claims.spec("rail0")), pod)
        if moment in ("prepared", "attached"):
            wanted = "*.json" if moment == "prepared" else "*.d/0"
            until(lambda wanted=wanted: glob(node, wanted), f"the claim to be {moment}", 120, 0.01)
            strike(cluster, node, victim)
        cluster.wait("Ready", f"pod/{name}", timeout=180)
        if moment == "ready":
            before = cluster.containers(name)
            strike(cluster, node, victim)
            if victim == "power":
                cluster.wait_restarted(before)
            cluster.wait("Ready", f"pod/{name}", timeout=180)
        until(lambda name=name: "hpn0" in links(cluster, name), f"the interface after {moment}, {victim}", 120)
        cluster.kubectl("delete", "pod", name, "--wait=false")
        if moment in ("ending", "given up"):
            until(lambda moment=moment: moment == "ending" or not glob(node, "*.d/0"), "the gate to close", 120, 0.01)
            strike(cluster, node, victim)
        cluster.kubectl("wait", "--for=delete", f"pod/{name}", "--timeout=180s")
        until(lambda: left(node) == [] == node.attachments(), f"nothing to be left after {moment}, {victim}", 180)
        if victim == "containerd":
            # It forgets the namespace of a sandbox that it had not stored yet.
            for namespace in node.namespaces():
                node.run("ip", "netns", "delete", namespace)


def links(cluster: Cluster, pod: str) -> str:
    """The pod's interfaces; empty while kubelet cannot be reached."""
    return cluster.kubectl("exec", pod, "--", "ip", "link", check=False)


def glob(node: Host, pattern: str) -> str:
    """The paths of a pattern in the directory of claims, which is in the host's memory."""
    return str(node.run("sh", "-c", f"ls -d {CLAIMS}/{pattern} 2>/dev/null", check=False).stdout)


def strike(cluster: Cluster, node: Host, victim: str) -> None:
    """Kill a daemon, or cut the power, and start again what ended."""
    if victim == "power":
        node.power_cut()
        cluster.boot(node)
        cluster.wait_ready()
        return
    node.service(victim).kill()
    if victim == "containerd":
        restart_containerd(cluster, node)
    else:
        node.service(victim).start()
        cluster.wait_ready()


@pytest.fixture
def chained(cluster: Cluster) -> Iterator[Host]:
    """node1 with hpn at the end of the cluster's own network, and without Multus."""
    node = cluster.nodes["node1"]
    network = pod_network(1)
    network["cniVersion"] = "1.1.0"  # from which on containerd sends STATUS
    network["plugins"].append({"type": "hpn", "claims": True, "logFile": LOG, "logLevel": "debug"})
    file = "/etc/cni/net.d/00-chain.conflist"
    node.run("mkdir", "-p", "/var/log/hpn")
    node.run("sh", "-c", f"cat >{file}", stdin=json.dumps(network))
    restart_containerd(cluster, node)
    yield node
    cluster.delete("pods", "--all", "--namespace=default")
    node.run("rm", file)
    restart_containerd(cluster, node)


def restart_containerd(cluster: Cluster, node: Host) -> None:
    """containerd reads the networks when it starts."""
    service = node.service("containerd")
    if service.pid:
        service.stop()
    booted = service.log.read_text(errors="replace").count("successfully booted")
    service.start()
    until(lambda: service.log.read_text(errors="replace").count("successfully booted") > booted, "containerd", 120)
    cluster.restore()


def test_two_rails_in_the_clusters_own_network(cluster: Cluster, chained: Host) -> None:
    """Chain mode: one claim of two requests, without Multus and without a definition of a network."""
    requests = []
    for number in (0, 1):
        ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": f"10.6{number}.0.0/24"}]]}
        keys = {"attach": "chain", "allow": ["interface"], "ipam": ipam}
        cluster.apply(claims.device_class(f"chain{number}", f"example.com/rail{number}", **keys))
        requests.append({"name": f"r{number}", "exactly": {"deviceClassName": f"chain{number}"}})
    named = {**claims.spec("chain0", interface="hpn0")["devices"]["config"][0], "requests": ["r0"]}
    cluster.apply(
        claims.template("a", {"devices": {"requests": requests, "config": [named]}}),
        claims.pod("a", node="node1", template="a"),
    )
    cluster.wait("Ready", "pod/a")
    assert "10.60.0.2/24" in cluster.execute("a", "ip", "address", "show", "hpn0")
    assert "10.61.0.2/24" in cluster.execute("a", "ip", "address", "show", "claim0")
    for request, name in (("r0", "hpn0"), ("r1", "claim0")):
        file = METADATA.replace("/rails/rails/", f"/rails/{request}/")
        assert f'"interfaceName": "{name}"' in cluster.execute("a", "cat", file)
    shown = {"hpn0", "claim0"}
    until(lambda: {one["networkData"]["interfaceName"] for one in shown_devices(cluster, "a")} == shown, "status", 120)
    with back_to_the_plugin(cluster, chained):
        # A kubelet that has started again has the claim prepared again, for the pod's next sandbox.
        chained.service("kubelet").kill()
        chained.service("kubelet").start()
        cluster.wait_ready()
        before, netns = cluster.containers("a"), Path(chained.attachments()[0]["netns"]).name
        # Some may have ended meanwhile.
        chained.run("kill", "-KILL", *chained.run("ip", "netns", "pids", netns).stdout.split(), check=False)
        cluster.wait_restarted(before)
        assert shown <= {*cluster.execute("a", "ls", "/sys/class/net").split()}
    cluster.delete("pod", "a")
    until(lambda: left(chained) == [], "the claim to be given up", 120)
    assert chained.attachments() == []
    assert chained.leases() == []
    # containerd sends STATUS when kubelet asks it for its own status, which a quick test does not see.
    until(lambda: commands(chained) >= {"ADD", "DEL", "STATUS"}, "containerd to send ADD, DEL and STATUS", 120)


@contextmanager
def back_to_the_plugin(cluster: Cluster, node: Host) -> Iterator[None]:
    """The node's rails leave the slices.  Afterwards they return, in some 10 s."""
    file = node.path(OFFERED)
    before = file.read_text()
    for text in (before.replace('"dra"', '"devicePlugin"'), before):
        file.write_text(text)
        node.run("kill", "-HUP", str(node.service("node").pid))
        if text != before:
            until(lambda: len(slices(cluster)) == len(RAILS), "the node's slices to go", 120)
            yield


def commands(node: Host) -> set[str]:
    """The commands in the log of the chain."""
    return {json.loads(line)["command"] for line in node.run("cat", LOG).stdout.splitlines()}
