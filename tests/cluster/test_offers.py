"""The offers of a configuration file, as a real kubelet and scheduler count them."""

import json
from collections.abc import Iterator

import pytest
from cluster import manifests
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster

# The file of sriov-network-device-plugin, and the file of hpn, which takes precedence.
PEERS, OURS = "/etc/pcidp/config.json", "/etc/hpn/devices.yaml"
NOTHING = {"resourceList": [{"resourceName": "none", "selectors": {"drivers": ["nobodys"]}, "color": "red"}]}
RAIL = """\
resources:
- name: example.com/rail0
  kind: master
  count: 1
  selectors:
    ifNames: [rail0]
- name: example_com/rail1
  kind: master
  selectors: {ifNames: [rail1]}
"""
PLUGIN = {
    "type": "hpn",
    "master": "rail0",
    "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.60.0.0/24"}]]},
}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Host]:
    """node1 with hpn node not yet started; it gets no file as an argument and reads the default paths."""
    one = cluster.nodes["node1"]
    service = one.add_service("offers", ["/opt/cni/bin/hpn", "node"])
    yield one
    cluster.delete("pods", "--all", "--namespace=default")
    service.stop()
    del one.services["offers"]
    one.run("rm", "-f", PEERS, OURS)


def write(node: Host, file: str, text: str) -> None:
    node.run("sh", "-ec", 'mkdir -p "${1%/*}"; cat >"$1"; chmod 644 "$1"', "sh", file, stdin=text)


def allocatable(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = cluster.get("node", "node1")["status"]["allocatable"]
    return {name: count for name, count in found.items() if "/" in name}


def why_pending(cluster: Cluster, pod: str) -> str:
    conditions = cluster.get("pod", pod)["status"].get("conditions", [])
    return next(
        (str(c.get("message")) for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


def test_a_peers_file_where_that_program_has_it(cluster: Cluster, node: Host) -> None:
    """A resource without devices exists with amount 0, and only the log names the cause."""
    write(node, PEERS, json.dumps(NOTHING))
    node.service("offers").start()
    until(lambda: allocatable(cluster).get("intel.com/none") == "0", "the resource to be known", 120)
    log = node.service("offers").log.read_text()
    assert "resourceList[0].color is ignored, there and here" in log
    assert "intel.com/none (resourceList[0]) finds no device on this node" in log
    cluster.apply(manifests.pod("a", resources={"intel.com/none": 1}))
    until(lambda: "Insufficient intel.com/none" in why_pending(cluster, "a"), "the scheduler to say why", 120)


def test_ours_goes_before_it(cluster: Cluster, node: Host) -> None:
    """kubelet refuses the name of one resource, and hpn node still offers the other."""
    write(node, PEERS, json.dumps(NOTHING))
    write(node, OURS, RAIL)
    node.service("offers").start()
    until(lambda: allocatable(cluster).get("example.com/rail0") == "1", "the device to be allocatable", 120)
    assert not [name for name in allocatable(cluster) if name.startswith("example_com")]
    assert (
        'resources[1] "example_com/rail1": kubelet accepts a prefix only if' in node.service("offers").log.read_text()
    )
    cluster.apply(manifests.network("rail0", PLUGIN, resource="example.com/rail0"))
    for name in ("a", "b"):
        cluster.apply(manifests.pod(name, networks="rail0@hpn0", resources={"example.com/rail0": 1}))
        if name == "a":
            cluster.wait("Ready", "pod/a")
    assert "hpn0" in cluster.execute("a", "ip", "link", "show", "hpn0")
    until(lambda: "Insufficient example.com/rail0" in why_pending(cluster, "b"), "the scheduler to say why", 120)
    checked = node.run("/opt/cni/bin/hpn", "node", "--check", OURS, check=False)
    assert checked.returncode == 1
    assert ["example.com/rail0", "1", "rail0", "netdev"] in [line.split()[:4] for line in checked.stdout.splitlines()]
