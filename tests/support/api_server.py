"""The API server as a backend: manifests applied, and credentials."""

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.services import PKI
from cluster.space import until
from cluster.two_nodes import CONTROL, Cluster
from support.pages import ROOT

from base.protocol.errors import BackendRefused
from ipam.cluster import BLOCK
from ipam.cluster.backends.kubernetes import Kubernetes

MANIFESTS = ROOT / "packaging" / "kubernetes" / "cluster"
ADMIN, NODE1, NODE2 = "token-admin", "token-system:node:node1", "token-system:node:node2"
# Opens the store with this token.
Opener = Callable[[str], Kubernetes]


def apply(cluster: Cluster) -> None:
    """Apply the manifests of the tree, and wait until the API server knows the kinds."""
    cluster.kubectl("apply", f"--kustomize={MANIFESTS}")
    names = ("crd/hpnblocks.hpn-cni.io", "crd/hpnpools.hpn-cni.io")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=120s", *names)


def await_leases(cluster: Cluster) -> None:
    """Wait for each node's Lease: kubelet creates it up to ten seconds after its Node object."""
    until(
        lambda: len(cluster.get("leases", "--namespace=kube-node-lease")["items"]) == len(cluster.nodes),
        "the nodes' Leases", 120, 0.2,
    )  # fmt: skip


def remove(cluster: Cluster) -> None:
    """Remove what ``apply`` created, and all blocks."""
    cluster.kubectl("delete", f"--kustomize={MANIFESTS}", "--ignore-not-found", "--timeout=120s")


def write_kubeconfig(file: Path, cluster: Cluster, token: str) -> Path:
    """Write a kubeconfig with the token."""
    file.write_text(_kubeconfig(cluster, token))
    return file


def put_kubeconfig(cluster: Cluster, node: str, file: str, token: str) -> None:
    """Write a kubeconfig on the node.  The cluster's kubelets use one that does not verify the server."""
    write = ["sh", "-c", "umask 077; cat >$0", file]
    cluster.nodes[node].run(*write, stdin=_kubeconfig(cluster, token))


def _kubeconfig(cluster: Cluster, token: str) -> str:
    authority = cluster.control.path(f"{PKI}/apiserver.crt").read_bytes()
    server = {"server": f"https://{CONTROL}:6443", "certificate-authority-data": b64encode(authority).decode()}
    document = {
        "current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": server}], "users": [{"name": "u", "user": {"token": token}}],
    }  # fmt: skip
    return json.dumps(document)


def refused(act: Callable[[], object]) -> str:
    """Return the API server's reason for a refusal."""
    with pytest.raises(BackendRefused) as why:
        act()
    return why.value.msg


def allowed(store: Kubernetes) -> bool:
    try:
        store.listed(BLOCK, "none")
    except BackendRefused:
        return False
    return True
