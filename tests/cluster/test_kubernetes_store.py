"""Documents on a real API server: the contract, kubectl's columns, and messages about missing parts."""

import json
import re

import pytest
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import ADMIN, MANIFESTS, NODE1, NODE2, Opener, allowed, apply, await_leases, refused, remove
from support.documents_contract import Contract, block, create, own
from support.pages import ROOT

from base.kernel import budget
from base.protocol.errors import BackendRefused, Unreachable
from ipam.cluster import BLOCK, POOL, Document, Machine
from ipam.cluster.backends.kubernetes import Kubernetes
from ipam.cluster.rules.documents import PoolLayout

PAGE = ROOT / "docs" / "user" / "install.md"


class TestContract(Contract):
    @pytest.fixture
    def store(self, opened: Opener) -> Kubernetes:
        return opened(ADMIN)


def test_what_a_person_sees(pool: Cluster, held: Document, opened: Opener) -> None:
    network = held.body["network"]
    layout = PoolLayout(network, 16, ("10.0.0.0/16", "fd00::/64")).to_json()
    made = opened(NODE1).create("pool", network, network, layout)
    assert made is not None
    lines = pool.kubectl("get", "hpnblocks", f"--field-selector=spec.network={network}").splitlines()
    assert re.split(r"\s{2,}", lines[0]) == ["NAME", "NETWORK", "NODE", "FIRST", "SIZE", "AGE"]
    assert lines[1].split()[:5] == [held.name, network, "node1", "0", "16"]
    shown = pool.kubectl("get", "hpnpools", network).splitlines()
    assert re.split(r"\s{2,}", shown[0]) == ["NAME", "NETWORK", "BLOCK SIZE", "SUBNETS", "AGE"]
    assert '["10.0.0.0/16","fd00::/64"]' in shown[1]
    store = opened(ADMIN)
    for wrong in ({"blockSize": 8}, {"subnets": ["fd00::/64"]}, {"network": "x"}):
        assert (
            "never change" in (why := refused(lambda wrong=wrong: store.replace(made, layout | wrong)))
            or "stays" in why
        )
    grown = store.replace(made, layout | {"subnets": ["10.0.0.0/15", "fd00::/64", "10.9.0.0/24"]})
    assert grown is not None
    assert store.remove(grown)


def test_layouts_under_their_former_name(pool: Cluster, opened: Opener) -> None:
    """The page's command copies them."""
    former = (MANIFESTS / "pools.yaml").read_text().replace("hpnpool", "hpngrid").replace("HpnPool", "HpnGrid")
    layout = PoolLayout("former", 16, ("10.0.0.0/16", "fd00::/64"), sticky="64-79").to_json()
    grid = {"apiVersion": "hpn-cni.io/v1", "kind": "HpnGrid", "metadata": {"name": "former"}, "spec": layout}
    (command,) = re.findall("^    (kubectl get hpngrids .*)$", PAGE.read_text(), re.MULTILINE)
    try:
        pool.kubectl("create", "--filename=-", stdin=former)
        pool.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd/hpngrids.hpn-cni.io")
        pool.kubectl("create", "--filename=-", stdin=json.dumps(grid))
        pool.shell(command)
        made = opened(NODE1).read(POOL, "former")
        assert made is not None
        assert made.body == layout
        assert opened(ADMIN).remove(made)
    finally:
        pool.kubectl("delete", "--ignore-not-found", "crd", "hpngrids.hpn-cni.io")


def test_from_nothing(pool: Cluster, opened: Opener) -> None:
    """Without the manifests, messages name the command that applies them; afterwards the store works."""
    remove(pool)
    try:
        admin, node1 = opened(ADMIN), opened(NODE1)
        why = until(lambda: absent(admin), "the API server to forget the CustomResourceDefinition", 120, 0.2)
        assert "no such CustomResourceDefinition; make it: kubectl apply -k packaging/kubernetes/cluster" in why
        budget.begin()
        why = refused(lambda: node1.listed(BLOCK))
        assert 'User "system:node:node1" cannot list resource "hpnblocks"' in why
        assert "allow it to all nodes: kubectl apply -k packaging/kubernetes/cluster" in why
    finally:
        apply(pool)
    until(lambda: allowed(node1), "the node to have its role", 120, 0.2)
    assert node1.identity() == pool.get("namespace", "kube-system")["metadata"]["uid"]
    machine = node1.machine("node2")
    assert machine.uid == pool.get("node", "node2")["metadata"]["uid"]
    assert machine.last_seen is not None


def absent(store: Kubernetes) -> str:
    budget.begin()
    try:
        store.listed(BLOCK)
    except BackendRefused as e:
        return e.msg
    return ""


def test_a_token_that_nobody_knows(opened: Opener) -> None:
    assert "does not know this node's credential" in refused(lambda: opened("wrong").identity())


def test_the_api_server_is_down(pool: Cluster, held: Document, opened: Opener) -> None:
    store = opened(NODE1)
    pool.control.service("kube-apiserver").kill()
    try:
        with pytest.raises(Unreachable, match="Connection refused"):
            store.read(BLOCK, held.name)
    finally:
        pool.control.service("kube-apiserver").start()

    def is_back() -> bool:
        budget.begin()
        try:
            return store.read(BLOCK, held.name) == held
        except (Unreachable, BackendRefused):
            return False

    until(is_back, "the API server", 120, 0.2)
    pool.restore()


def test_a_node_whose_object_is_deleted_is_heard_of(pool: Cluster, opened: Opener) -> None:
    """Without a Node object, hpn's own Lease shows that the node lives; it goes with the node's last block."""
    node2, admin = opened(NODE2), opened(ADMIN)
    made = create(admin, block("heard-of", 0, "node2"))
    assert own(node2, "node2", 1, "heard-of") == [made.name]
    pool.delete("node", "node2")
    try:
        until(lambda: node2.machine("node2") == Machine("node2"), "the Lease to go", 120, 0.2)
        budget.begin()
        node2.keep_alive("node2", 40)
        first = node2.machine("node2")
        assert first.uid == ""
        assert first.last_seen is not None
        assert abs(first.last_seen - node2.now()) < 60
        until(lambda: last_seen(node2) > first.last_seen, "it to be heard of again", 120, 0.5)
        lease = pool.get("lease", "node2", "--namespace=kube-node-lease")
        owners = [owner["name"] for owner in lease["metadata"]["ownerReferences"]]  # including those of earlier tests
        assert made.name in owners
        for name in owners:
            budget.begin()
            there = admin.read(BLOCK, name)
            assert there
            assert admin.remove(there)
        until(lambda: known(node2) == Machine("node2"), "the Lease to go with the blocks", 120, 0.5)
    finally:
        pool.nodes["node2"].service("kubelet").stop()  # kubelet creates its Node object when it starts
        pool.restore()
        await_leases(pool)
    assert opened(ADMIN).machine("node2").uid


def known(store: Kubernetes) -> Machine:
    budget.begin()
    return store.machine("node2")


def last_seen(store: Kubernetes) -> float:
    budget.begin()
    store.keep_alive("node2", 40)
    return store.machine("node2").last_seen or 0.0
