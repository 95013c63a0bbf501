"""The cluster tier's fixtures: one cluster for all tests, and its logs in the report of a failed test."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import require

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster import two_nodes
from cluster.space import Failed, inside, until
from cluster.two_nodes import Cluster
from support import api_server, bare_nodes, helm
from support.api_server import ADMIN, NODE1, NODE2, Opener, write_kubeconfig
from support.documents_contract import block, create
from support.pages import ROOT

from base.kernel import budget
from base.kubernetes import http
from base.protocol.errors import BackendRefused
from ipam.cluster import BLOCK, Document
from ipam.cluster.backends import kubernetes
from ipam.cluster.backends.kubernetes import Kubernetes


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that all tests share."""
    if lacking := two_nodes.missing():
        require("cluster", lacking)
    binary = Path(os.environ.get("HPN_BINARY", "unset"))
    if not binary.exists():
        require("cluster", "HPN_BINARY, which `make test` sets after building it")
    try:
        programs = two_nodes.built()
    except Failed as e:
        require("cluster", str(e))
    with Cluster(programs, binary) as it:
        yield it
        logs = tmp_path_factory.getbasetemp() / "logs"
        for name, host in it.hosts().items():
            shutil.copytree(host.path("/var/log"), logs / name, ignore=shutil.ignore_patterns("pods", "containers"))


@pytest.fixture
def cluster(whole: Cluster, nothing_left: None) -> Iterator[Cluster]:
    """The cluster with both nodes Ready; after the test its pods leave no attachment, lease or namespace."""

    def picture() -> dict[str, Any]:
        return {name: (n.attachments(), n.leases(), n.namespaces()) for name, n in whole.nodes.items()}

    whole.restore()
    before = picture()
    yield whole
    whole.restore()
    whole.delete("pods", "--all", "--namespace=default")
    whole.delete("network-attachment-definitions", "--all", "--namespace=default")
    assert picture() == before


@pytest.fixture(scope="module")
def pool(whole: Cluster) -> Iterator[Cluster]:
    """The cluster with an API server that stores blocks of addresses."""
    api_server.apply(whole)
    api_server.await_leases(whole)
    yield whole
    api_server.remove(whole)


@pytest.fixture
def opened(pool: Cluster, nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens the store with the given token, from the API server's network."""
    stores = list[Kubernetes]()

    def of(token: str) -> Kubernetes:
        file = write_kubeconfig(tmp_path / f"{len(stores)}.kubeconfig", pool, token)
        store, _ = kubernetes.opened({"kubeconfig": str(file)}, "")
        assert isinstance(store, Kubernetes)
        stores.append(store)
        return store

    # A server on a loaded machine may answer late.
    monkeypatch.setattr(http, "_TIMEOUT", 60.0)
    monkeypatch.setattr(budget, "REQUEST", 120.0)
    assert pool.control.space
    with inside(pool.control.space.pid):
        budget.begin()
        yield of
        for store in stores:
            store.close()


@pytest.fixture
def held(pool: Cluster, opened: Opener) -> Iterator[Document]:
    """A block of node1 in an API server that enforces the policy."""
    network = f"policy-{os.urandom(4).hex()}"
    another = block(network, 9, "node1")

    def sees() -> bool:
        """Report whether node2 may no longer make a block for node1."""
        store = opened(NODE2)
        try:
            made = store.create(BLOCK, another.name, network, another.to_json())
        except BackendRefused:
            return True
        return bool(made and store.remove(made)) and False

    until(sees, "the API server to see the policy", 120, 0.2)
    yield create(opened(NODE1), block(network, 0, "node1", "mine"))
    admin = opened(ADMIN)
    for one in admin.listed(BLOCK, network):
        admin.remove(one)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Any:
    """Add the state of the cluster and the ends of its logs to the report of a failure."""
    report = yield
    it: Cluster | None = getattr(item, "funcargs", {}).get("whole")
    if report.failed and it:
        for words in (("get", "pods,nodes", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            report.sections.append((f"kubectl {' '.join(words)}", it.kubectl(*words, check=False)))
        report.sections += it.said().items()
    return report


@pytest.fixture
def booted(cluster: Cluster) -> Cluster:
    """The cluster for ``bare``; a file may boot a node otherwise."""
    return cluster


@pytest.fixture
def tree(booted: Cluster) -> Iterator[Path]:
    """A writable source tree to build images from."""
    with bare_nodes.made_tree(booted) as it:
        yield it


@pytest.fixture
def bare(booted: Cluster, tree: Path) -> Iterator[Cluster]:
    """The cluster on nodes without any part of hpn."""
    with bare_nodes.bared(booted, tree) as it:
        yield it


@pytest.fixture
def shell(bare: Cluster, tree: Path) -> Iterator[Callable[[str], str]]:
    """Types commands in the tree, which has the chart, and values.yaml with the image of the nodes."""
    shutil.copytree(ROOT / "packaging" / "helm", tree / "packaging" / "helm", symlinks=True)
    (tree / "conf").symlink_to(ROOT / "conf")
    helm.write(tree)
    program = f'helm() {{ {helm.built("cluster")} --kubeconfig={two_nodes.ADMIN} "$@"; }}'
    yield lambda lines: "".join(bare.shell(f"cd {tree}\n{program}\n{line}") for line in lines.splitlines())
    bare.shell(f"{program}\nhelm uninstall hpn --namespace kube-system --ignore-not-found --wait")
    # What helm test leaves.
    bare.delete("pod", "hpn-test", "--namespace=kube-system")
    bare.delete("pods", "--selector=hpn-cni.io/test", "--namespace=kube-system")
