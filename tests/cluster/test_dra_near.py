"""GPU and NIC together: the scheduler places one claim for both on one PCIe root, or on one NUMA node.

The GPUs are slices of a stand-in driver.  The NICs are in a drawn tree in place of each node's /sys, where `hpn node`
finds their roots.  kubelet has no driver for the GPUs, so no pod starts: the tests read the allocations.
"""

import json
from collections.abc import Iterator, Sequence

import pytest
from cluster import claims, image
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import put_kubeconfig
from support.pages import ROOT
from support.sysfs_tree import Tree

FILE = "/etc/hpn/devices.yaml"
CREDENTIAL = "/etc/cni/net.d/hpn.kubeconfig"
RESOURCE = {"name": "nvidia.com/vf", "kind": "vf", "by": "dra", "selectors": {"pfNames": ["rail0", "rail1"]}}
OURS, GPUS = "hpn-cni.io", "gpu.example.com"
ROOTS = ("pci0000:10", "pci0000:90")  # of NUMA node 0 and 1
PCIE_ROOT, NUMA_NODE = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
# A device's name in its slice, and the place in ROOTS.
NICS = {f"0000-{bus}-00-{number}": place for place, bus in enumerate(("11", "91")) for number in (1, 2)}
PLACES = {**NICS, **{f"gpu{place}-{number}": place for place in (0, 1) for number in range(len(NICS))}}


@pytest.fixture(scope="module")
def nodes(whole: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Both nodes with `hpn node`, which offers two PFs' VFs on two PCIe roots."""
    tree = Tree(tmp_path_factory.mktemp("near") / "sys")
    for place, bus in enumerate(("11", "91")):
        pf, above = f"0000:{bus}:00.0", f"{ROOTS[place]}/0000:{ROOTS[place][-2:]}:00.0"
        tree.netdev(f"rail{place}", tree.pci(pf, above=above, numa_node=place))
        for number in (1, 2):
            tree.pci(f"0000:{bus}:00.{number}", pf=pf, above=above, numa_node=place)
    for name, node in whole.nodes.items():
        put_kubeconfig(whole, name, CREDENTIAL, f"token-system:node:{name}")
        node.run("sh", "-ec", f"mkdir -p /etc/hpn; cat >{FILE}", stdin=json.dumps({"resources": [RESOURCE]}))
        script = f"mount --bind {tree.root} /sys && exec /opt/cni/bin/hpn node"
        node.add_service("near", ["unshare", "--mount", "sh", "-ec", script]).start()
    yield whole
    for node in whole.nodes.values():
        node.service("near").stop()
        del node.services["near"]
        node.run("rm", "-rf", FILE, CREDENTIAL, "/var/lib/kubelet/plugins_registry/.hpn-dra.json")
    whole.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={OURS}")


@pytest.fixture
def cluster(nodes: Cluster, cluster: Cluster) -> Iterator[Cluster]:
    """After a test no claim and no GPU is left."""
    until(lambda: published(nodes) == len(NICS) * len(nodes.nodes), "the slices of both nodes", 120, 0.2)
    yield cluster
    end(cluster)
    cluster.delete("resourceclaimtemplates,deviceclasses", "--all")
    cluster.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={GPUS}")


def published(cluster: Cluster) -> int:
    found = cluster.get("resourceslices", f"--field-selector=spec.driver={OURS}")["items"]
    return sum(len(one["spec"]["devices"]) for one in found)


def end(cluster: Cluster) -> None:
    """End all pods, and wait until their claims are gone."""
    cluster.delete("pods", "--all", "--namespace=default")
    cluster.delete("resourceclaims", "--all", "--namespace=default")


def publish_gpus(cluster: Cluster, places: Sequence[int], *, roots: bool = True) -> None:
    """Publish on each node a GPU for each of these places in ROOTS, with its PCIe root or only with its NUMA node."""
    numbered = [(place, f"gpu{place}-{places[:at].count(place)}") for at, place in enumerate(places)]
    devices = [
        {"name": name, "attributes": {PCIE_ROOT: {"string": ROOTS[place]}} if roots else {NUMA_NODE: {"int": place}}}
        for place, name in numbered
    ]
    for name in cluster.nodes:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": GPUS, "nodeName": name, "pool": pool, "devices": devices}
        one = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"gpus-{name}"}}
        cluster.apply({**one, "spec": spec})


def type_the_page(cluster: Cluster) -> None:
    """docs/user/claims.md: the GPUs' class is their driver's, and the image is the cluster's."""
    expression = f'device.driver == "{GPUS}"'
    gpus = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    cluster.apply({**gpus, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    page = (ROOT / "docs/user/claims.md").read_text()
    text = page.partition("## GPU and NIC together")[2].partition("```yaml\n")[2].partition("```")[0]
    text = text.replace("image: example.com/trainer", f"image: {image.NAME}\n    command: {json.dumps(image.COMMAND)}")
    cluster.kubectl("apply", "--filename=-", stdin=text)


def template(cluster: Cluster, name: str, **constraint: str) -> None:
    """The page's template by another name, with this constraint or none."""
    spec = cluster.get("resourceclaimtemplate", "gpu-and-nic")["spec"]["spec"]
    spec["devices"].pop("constraints")
    if constraint:
        spec["devices"]["constraints"] = [constraint]
    cluster.apply(claims.template(name, spec))


def start(cluster: Cluster, of: str, number: int) -> None:
    """Start so many pods with claims from a template, on any node."""
    pods = [claims.pod(f"p{n}", node="", template=of) for n in range(number)]
    for one in pods:
        one["spec"].pop("nodeSelector")
    cluster.apply(*pods)


def pairs(cluster: Cluster) -> list[tuple[int, int]]:
    """The places in ROOTS of each allocated claim's GPU and NIC, which are on one node."""
    found = list[tuple[int, int]]()
    for claim in cluster.get("resourceclaims")["items"]:
        if allocation := claim.get("status", {}).get("allocation"):
            gpu, nic = sorted(allocation["devices"]["results"], key=lambda one: one["request"])
            assert (gpu["driver"], nic["driver"]) == (GPUS, OURS)
            assert gpu["pool"] == nic["pool"].partition("/")[0]
            found.append((PLACES[gpu["device"]], PLACES[nic["device"]]))
    return found


def unschedulable(cluster: Cluster) -> int:
    """The number of pods that the scheduler has tried, and placed nowhere."""
    conditions = [one for pod in cluster.get("pods")["items"] for one in pod["status"].get("conditions", ())]
    return sum((one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable") for one in conditions)


def await_pairs(cluster: Cluster, placed: int, *, waiting: int = 0) -> list[tuple[int, int]]:
    """The pairs, when so many claims are allocated and so many pods wait."""
    until(lambda: (len(pairs(cluster)), unschedulable(cluster)) == (placed, waiting), "the scheduler", 120, 0.2)
    return sorted(pairs(cluster))


def test_one_pcie_root(cluster: Cluster) -> None:
    """The page's pod and seven more take all NICs: a pair has one root each time.  With all GPUs at one root, half of
    the pods wait; without the constraint they start, and half of the NICs are not their GPU's."""
    publish_gpus(cluster, (1, 0, 1, 0))
    type_the_page(cluster)
    start(cluster, "gpu-and-nic", 7)
    assert await_pairs(cluster, 8) == [(0, 0)] * 4 + [(1, 1)] * 4
    end(cluster)
    publish_gpus(cluster, (0, 0, 0, 0))
    start(cluster, "gpu-and-nic", 8)
    assert await_pairs(cluster, 4, waiting=4) == [(0, 0)] * 4
    end(cluster)
    template(cluster, "anywhere")
    start(cluster, "anywhere", 8)
    assert await_pairs(cluster, 8) == [(0, 0)] * 4 + [(0, 1)] * 4


def test_one_numa_node(cluster: Cluster) -> None:
    """GPUs of a driver that publishes no roots: no pod with the page's claim starts, and a NUMA node takes its
    place."""
    publish_gpus(cluster, (1, 1, 0, 1), roots=False)
    type_the_page(cluster)
    until(lambda: unschedulable(cluster) == 1, "the scheduler to try the page's pod", 120, 0.2)
    end(cluster)
    template(cluster, "numa", matchAttribute=NUMA_NODE)
    start(cluster, "numa", 8)
    assert await_pairs(cluster, 6, waiting=2) == [(0, 0)] * 2 + [(1, 1)] * 4
