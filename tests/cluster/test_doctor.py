"""hpn doctor --kubeconfig on a real API server."""

from pathlib import Path

from cluster.space import inside
from cluster.two_nodes import Cluster
from support.api_server import ADMIN, write_kubeconfig

from ctl.doctor import cluster as doctor_cluster
from ctl.doctor.checks.node import resource_nobody_has
from ctl.doctor.model import Facts
from ctl.doctor.reading import Reader


def network(name: str, resource: str) -> dict[str, object]:
    annotations = {"k8s.v1.cni.cncf.io/resourceName": resource}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": {"config": "{}"},
    }  # fmt: skip


def test_a_network_whose_resource_no_node_has(cluster: Cluster, tmp_path: Path) -> None:
    """The check ignores cpu, which is no extended resource and exists on every node."""
    cluster.apply(network("right", "cpu"), network("wrong", "example.com/nobody"))
    read = Reader(Path("/"))
    with inside(cluster.control.space.pid):
        found = doctor_cluster.cluster(read, write_kubeconfig(tmp_path / "kubeconfig", cluster, ADMIN))
    assert read.unread == {}
    assert found is not None
    assert found.nodes == len(cluster.nodes)
    assert {"default/right", "default/wrong"} <= {one.name for one in found.definitions}
    (one,) = resource_nobody_has(Facts(cluster=found))
    assert "default/wrong names the resource example.com/nobody" in one.evidence
