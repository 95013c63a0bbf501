"""A claim's VF with exclusive RDMA, by a grpc-go client: slice, Prepare, ADD, an unhealthy link, and back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from guest.gid_tables import PATIENT, V2, gid, table
from guest.node import NAME, PF, RDMA, Node, netdev, pci, rdma_devs
from lab.test_node import VFS, pull
from lab.test_rdma_numbers import moving, uverbs, wanting
from support import chained
from support.dra_api import DraApi, serving
from support.go_kubelet import GoKubelet, go_kubelet
from support.node_process import NodeProcess
from support.pod_resources import listing
from support.topology import Pod, until

from base.kubelet import drahealth_pb2 as health
from base.state import claims

__all__ = ["moving"]  # a fixture

UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
POD = "a1b2c3d4-0000-4000-8000-000000000001"
ARGS = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID={POD}"
ASKED = ("default", "rails", UID)
CDI = Path(f"/var/run/cdi/hpn-claim-{UID}.json")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[DraApi, Path]]:
    with serving(tmp_path) as found:
        yield found


@contextmanager
def offering(resource: dict[str, Any], kubeconfig: Path) -> Iterator[Path]:
    """The socket of hpn node's driver.  It offers the resource by DRA."""
    # A socket's path has at most 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder, listing(Path(folder)):
        process = NodeProcess(Path(folder), [], "--kubeconfig", str(kubeconfig))
        process.kubelet, process.registry = Path(folder), Path(folder, "plugins_registry")
        process.registry.mkdir()
        process.write([resource | {"by": "dra"}], health={"downAfter": 1, "upAfter": 1})
        process.mounts.clear()  # /sys and /run are the guest's own
        with process:
            socket = process.registry / "hpn-hpn-cni.io.sock"
            until(socket.is_socket, 120)
            yield socket


@pytest.fixture
def kubelet(node: Node, api: tuple[DraApi, Path]) -> Iterator[GoKubelet]:
    """A kubelet connected to hpn node, which offers the VFs by DRA."""
    with offering(VFS, api[1]) as socket, go_kubelet("lab", socket) as one:
        yield one


def claim(*allocated: tuple[str, str], **of_class: Any) -> dict[str, Any]:
    """A claim with these devices of pools, and the parameters of their class."""
    results = [{"request": "rails", "driver": "hpn-cni.io", "pool": p, "device": d} for p, d in allocated]
    parameters = {"apiVersion": "hpn-cni.io/v1", "kind": "Attachment", **of_class}
    config = {"source": "FromClass", "opaque": {"driver": "hpn-cni.io", "parameters": parameters}}
    return {
        "metadata": {"name": "rails", "namespace": "default", "uid": UID},
        "status": {
            "allocation": {"devices": {"results": results, "config": [config]}},
            "reservedFor": [{"resource": "pods", "name": "a", "uid": POD}],
        },
    }


def agrees(kubelet: GoKubelet, node: Node, server: DraApi) -> None:
    """Assert that the health stream and the taints agree while the PF has no link, and when it has one again."""
    stream = kubelet.health()
    assert {one.health for one in next(stream).devices} == {health.HEALTHY}
    pull(up=False)
    try:
        while health.HEALTHY in {(told := one).health for one in next(stream).devices}:
            pass
        assert f"{PF} has no carrier" in told.message
        until(lambda: "taints" in server.devices()[node.device][1], 120)
        (taint,) = server.devices()[node.device][1]["taints"]
        assert taint == {"key": "hpn-cni.io/unhealthy", "value": "no-link", "effect": "NoSchedule"}
    finally:
        pull(up=True)
    while health.UNHEALTHY in {one.health for one in next(stream).devices}:
        pass
    until(lambda: "taints" not in server.devices()[node.device][1], 120)
    stream.cancel()


def test_a_claims_vf(kubelet: GoKubelet, node: Node, pod: Pod, api: tuple[DraApi, Path]) -> None:
    server, _ = api
    until(lambda: node.device in server.devices(), 120)
    pool, device = server.devices()[node.device]
    assert device["attributes"]["pf"] == {"string": PF}
    assert device["attributes"]["rdma"] == {"bool": True}
    server.claim = claim((pool, device["name"]))
    until(lambda: not kubelet.prepare(ASKED)[UID].error, 120)
    uverbs = next(Path(f"/sys/bus/pci/devices/{node.device}/infiniband_verbs").iterdir()).name
    (one,) = json.loads(CDI.read_text())["devices"]
    paths = {entry["path"] for entry in one["containerEdits"]["deviceNodes"]}
    assert paths == {f"/dev/infiniband/{uverbs}", "/dev/infiniband/rdma_cm"}
    (mount,) = one["containerEdits"]["mounts"]
    gate = Path(mount["hostPath"])
    assert not gate.exists()

    conf = node.conf(rdma={"mode": "exclusive", "required": True})
    other = ARGS.replace(POD, POD.replace("1", "2"))
    assert node.refused("ADD", pod, conf, CNI_ARGS=other)["code"] == 109
    node.ok("ADD", pod, conf, CNI_ARGS=ARGS)
    assert rdma_devs(pod.name) == {RDMA}
    (attached,) = json.loads(gate.read_text().partition("\n")[0])["requests"][0]["devices"]
    assert attached["attributes"]["rdmaDevice"] == {"string": RDMA}
    assert attached["attributes"]["gidIndex"]["int"] >= 0
    assert (
        attached["attributes"]["resource.kubernetes.io/pcieRoot"]
        == device["attributes"]["resource.kubernetes.io/pcieRoot"]
    )
    assert attached["networkData"]["interfaceName"] == "hpn0"
    until(lambda: server.statuses and server.statuses[-1]["status"]["devices"], 120)
    (shown,) = server.statuses[-1]["status"]["devices"]
    assert shown["networkData"] == attached["networkData"]

    agrees(kubelet, node, server)

    # Kubernetes 1.36 may give up a claim in use.
    assert kubelet.unprepare(ASKED) == {UID: ""}
    assert gate.exists()
    assert CDI.exists()
    node.ok("DEL", pod, conf, CNI_ARGS=ARGS)
    assert not gate.exists()
    assert kubelet.unprepare(ASKED) == {UID: ""}
    assert not CDI.exists()
    assert claims.all_claims() == []
    assert node.is_home()


def nodes() -> set[str]:
    """The device nodes of the claim's container."""
    (one,) = json.loads(CDI.read_text())["devices"]
    return {entry["path"] for entry in one["containerEdits"]["deviceNodes"]}


def test_a_number_that_changes(moving: str, kubelet: GoKubelet, node: Node, pod: Pod, api: tuple[DraApi, Path]) -> None:
    """ADD moves the VF, which gets another uverbs.  The claim's container gets that one, and again after DEL."""
    server, _ = api
    until(lambda: moving in server.devices(), 120)
    pool, device = server.devices()[moving]
    server.claim = claim((pool, device["name"]))
    until(lambda: not kubelet.prepare(ASKED)[UID].error, 120)
    before = uverbs(moving)
    assert f"/dev/infiniband/{before}" in nodes()

    conf = wanting(node, moving, mode="exclusive", required=True)
    node.ok("ADD", pod, conf, CNI_ARGS=ARGS)
    assert before != uverbs(moving)
    assert nodes() == {f"/dev/infiniband/{uverbs(moving)}", "/dev/infiniband/rdma_cm"}
    node.ok("DEL", pod, conf, CNI_ARGS=ARGS)
    until(lambda: f"/dev/infiniband/{uverbs(moving)}" in nodes(), 120)
    assert kubelet.unprepare(ASKED) == {UID: ""}


def test_two_vfs_in_the_clusters_own_network(
    kubelet: GoKubelet, node: Node, pod: Pod, api: tuple[DraApi, Path]
) -> None:
    """Chain mode: one ADD attaches both VFs of a claim, and the gate describes each."""
    server, names = api[0], (NAME, "rail0v1")
    devices = [pci(name) for name in names]
    until(lambda: {*devices} <= server.devices().keys(), 120)
    offered, before = [server.devices()[one] for one in devices], [netdev(name) for name in names]
    server.claim = claim(
        *((pool, device["name"]) for pool, device in offered),
        attach="chain",
        ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24"},
        rdma=PATIENT | {"mode": "exclusive", "required": True},
    )
    until(lambda: not kubelet.prepare(ASKED)[UID].error, 120)

    conf = chained.conf(node)
    assert node.refused("CHECK", pod, conf, CNI_ARGS=ARGS)["code"] == 107
    assert node.ok("ADD", pod, conf, CNI_ARGS=ARGS) == chained.PREVIOUS
    gate = Path(claims.gate(UID, 0))
    described = json.loads(gate.read_text().partition("\n")[0])["requests"][0]["devices"]
    assert [one["name"] for one in described] == [device["name"] for _, device in offered]
    for number, one in enumerate(described):
        ifname, hca, data = f"claim{number}", f"hca0v{number}", one["networkData"]
        assert (data["interfaceName"], {*data["ips"]}) == (ifname, pod.addresses(ifname))
        assert (pod.link(ifname) or {})["parentdev"] == devices[number]
        assert one["attributes"]["rdmaDevice"] == {"string": hca}
        entry = table(hca, pod.name)[one["attributes"]["gidIndex"]["int"]]
        assert entry == (gid(*data["ips"]), V2, ifname)
    assert node.call("CHECK", pod, conf, CNI_ARGS=ARGS).exit_code == 0
    assert rdma_devs(pod.name) == {"hca0v0", "hca0v1"}

    node.ok("DEL", pod, conf, CNI_ARGS=ARGS)
    assert (pod.links(), rdma_devs(pod.name), gate.exists()) == (set(), set(), False)
    assert [netdev(name) for name in names] == before
    assert kubelet.unprepare(ASKED) == {UID: ""}
    assert claims.all_claims() == []
