"""A node's Lease on an API server: created, renewed and released by hpn where kubelet does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tls_server import Server, Told
from unit.ipam.cluster.test_kubernetes import ABSENT, BLOCKS, found, status

from ipam.cluster.backends import kubernetes
from ipam.cluster.backends.kubernetes import Kubernetes

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OWNER = {"apiVersion": "hpn-cni.io/v1", "kind": "HpnBlock", "name": "net.3", "uid": "u-1"}


@pytest.fixture
def store(asked: tuple[Server, Path]) -> Iterator[Kubernetes]:
    one, _ = kubernetes.opened({"kubeconfig": str(asked[1])}, "node1")
    assert isinstance(one, Kubernetes)
    yield one
    one.close()


def blocks(*items: dict[str, Any]) -> Told:
    return Told(200, {"metadata": {"resourceVersion": "9"}, "items": [*items]})


def test_a_lease_that_is_gone_is_made_again(server: Server, store: Kubernetes) -> None:
    theirs = found(body={"node": "another with that label"}, name="x.3")
    server.tell(ABSENT, blocks(found(), theirs, found(name="net.4", uid="u-2")), Told(201, {"metadata": {}}))
    store.keep_alive("node1", 3600)
    _, listed, made = server.asked
    assert listed.path == f"{BLOCKS}?limit=500&labelSelector=hpn-cni.io%2Fnode%3Dnode1&resourceVersion=0"
    assert (made.method, made.path) == ("POST", LEASES)
    # The owners are the node's blocks, not the Node object, which took the former Lease with it.
    owners = [OWNER, OWNER | {"name": "net.4", "uid": "u-2"}]
    assert made.body["metadata"] == {"name": "node1", "ownerReferences": owners}
    assert made.body["spec"] == {
        "holderIdentity": "node1", "leaseDurationSeconds": 40, "renewTime": "2026-11-23T06:00:00.000000Z",
    }  # fmt: skip


def test_a_node_without_blocks_needs_none(server: Server, store: Kubernetes) -> None:
    """Such a node can lose nothing, and garbage collection would never remove the Lease."""
    server.tell(ABSENT, blocks())
    store.keep_alive("node1", 3600)
    assert [asked.method for asked in server.asked] == ["GET", "GET"]


@pytest.mark.parametrize("is_back", [False, True])
def test_kubelet_has_its_lease_back_with_its_node_object(server: Server, store: Kubernetes, is_back: bool) -> None:
    """kubelet sets its Node object as the owner of a Lease without one, when it renews it."""
    metadata = {"name": "node1", "resourceVersion": "5", "managedFields": [{"time": "2026-11-23T05:59:50Z"}]}
    lease = {"metadata": metadata | {"ownerReferences": [OWNER]}, "spec": {"holderIdentity": "node1"}}
    node = Told(200, {"metadata": {"uid": "machine-1"}}) if is_back else ABSENT
    server.tell(Told(200, lease), node, *[Told(200, lease)] * is_back)
    store.keep_alive("node1", 3600)
    assert server.asked[1].path == "/api/v1/nodes/node1"
    assert [(asked.method, asked.body["metadata"]) for asked in server.asked[2:]] == [("PUT", metadata)] * is_back


@pytest.mark.parametrize(("written", "methods"), [("05:56:00", ["GET"]), ("05:54:00", ["GET", "PUT"])])
def test_a_lease_that_kubelet_does_not_renew(
    server: Server, store: Kubernetes, written: str, methods: list[str]
) -> None:
    """It is 6:00, and the node is reported alive for an hour."""
    metadata = {"name": "node1", "resourceVersion": "5", "managedFields": [{"time": f"2026-11-23T{written}Z"}]}
    spec = {"holderIdentity": "node1", "leaseDurationSeconds": 20, "renewTime": "2026-11-23T05:00:00.000000Z"}
    server.tell(Told(200, {"metadata": metadata, "spec": spec}), Told(200, {"metadata": metadata}))
    store.keep_alive("node1", 3600)
    assert [asked.method for asked in server.asked] == methods
    if "PUT" in methods:
        assert server.asked[-1].body["metadata"] == metadata
        # kubelet never writes the other fields again.
        assert server.asked[-1].body["spec"] == spec | {"renewTime": "2026-11-23T06:00:00.000000Z"}
        assert server.asked[-1].body["spec"]["renewTime"] == "2026-11-23T06:00:00.000000Z"


@pytest.mark.parametrize(
    "answer", [status(403, "Forbidden"), status(409, "AlreadyExists")], ids=["forbidden", "made by another"]
)
def test_a_lease_that_cannot_be_made(server: Server, store: Kubernetes, answer: Told) -> None:
    server.tell(ABSENT, blocks(found()), answer)
    store.keep_alive("node1", 3600)
    assert len(server.asked) == 3
