"""The blocks that a node may write: its own, and another node's after the grace of a suspicion."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster.space import Failed, until
from cluster.two_nodes import Cluster
from support.api_server import ADMIN, MANIFESTS, NODE1, NODE2, Opener, allowed, apply, refused, write_kubeconfig
from support.documents_contract import block, create

from base.kernel import budget
from base.kubernetes import credentials
from base.protocol.errors import BackendRefused
from ipam.cluster import BLOCK, Document
from ipam.cluster.backends.kubernetes import Kubernetes
from ipam.cluster.rules.documents import SAID

GRACE = "duration('3600s')"


def test_a_node_makes_and_removes_its_own_blocks_only(held: Document, opened: Opener) -> None:
    node1, node2 = opened(NODE1), opened(NODE2)
    network = held.body["network"]
    of_node1 = block(network, 5, "node1")
    assert "node node2 may not make a block for node node1; it may for itself" in refused(
        lambda: node2.create(BLOCK, of_node1.name, network, of_node1.to_json())
    )
    assert f"node node2 may not remove block {held.name} of node node1" in refused(lambda: node2.remove(held))
    mine = create(node2, block(network, 6, "node2"))
    assert node2.remove(mine)
    assert node1.remove(held)


@pytest.mark.parametrize(
    "change",
    [
        {"node": "node2", "taken": True},
        {"node": "node2", "taken": True, "suspect": 0, "claim": "x"},
        {"suspect": 1_700_000_000},
        {"machine": "another"},
        {"claim": "another", "suspect": SAID},
        {"taken": True},
    ],
    ids=str,
)
def test_a_node_changes_its_own_blocks_only(held: Document, opened: Opener, change: dict[str, Any]) -> None:
    why = refused(lambda: opened(NODE2).replace(held, held.body | change))
    assert f"node node2 may not change block {held.name} of node node1 so" in why
    assert opened(NODE1).read(BLOCK, held.name) == held


def test_an_owner_gives_its_block_to_nobody(held: Document, opened: Opener) -> None:
    node1 = opened(NODE1)
    assert "may not change block" in refused(lambda: node1.replace(held, held.body | {"node": "node2"}))
    changed = node1.replace(held, held.body | {"machine": "another", "claim": "another"})
    assert changed is not None
    # The schema keeps each block's place and size, even for an administrator.
    for wrong in ({"index": 3}, {"size": 8}, {"start": 5}, {"network": "other"}):
        assert refused(lambda wrong=wrong: opened(ADMIN).replace(changed, changed.body | wrong))


def test_a_node_gives_up_a_number_for_its_name(held: Document, opened: Opener) -> None:
    """Any node may then own the number: for that name at once, for another name after its time."""
    node1, node2 = opened(NODE1), opened(NODE2)
    named = replace(block(held.body["network"], 7, "node1"), size=1, index=7, whose="default/web-0:net1", keep=60)
    mine = create(node1, named)
    theirs = {"node": "node2", "claim": "theirs", "free": 0}
    for change in (theirs, {"free": 5}, {"node": "", "free": 5}, {"whose": "default/web-1:net1"}):
        assert "so; it may" in refused(lambda change=change: node2.replace(mine, mine.body | change))
    assert "does not say since when" in refused(lambda: node1.replace(mine, mine.body | {"node": ""}))
    free = node1.replace(mine, named.freed(int(node1.now())).to_json())
    assert free is not None
    assert "so; it may" in refused(lambda: node2.replace(free, free.body | theirs | {"node": "node1"}))
    assert "may not remove" in refused(lambda: node2.remove(free))
    had = node2.replace(free, free.body | theirs)
    assert had is not None
    assert "so; it may" in refused(lambda: node1.replace(had, had.body | {"node": "node1"}))


def test_a_block_is_never_nobodys(held: Document, opened: Opener) -> None:
    node1 = opened(NODE1)
    for change in ({"node": ""}, {"node": "", "free": 5}):
        assert refused(lambda change=change: node1.replace(held, held.body | change))


def suspected(store: Kubernetes, held: Document) -> Document:
    """Suspect the owner as a node does: first mark the block, then write the time."""
    said = store.replace(held, held.body | {"suspect": SAID})
    assert said is not None
    assert "so; it may" in refused(lambda: store.replace(said, said.body | {"suspect": int(store.now()) - 3700}))
    since = store.replace(said, said.body | {"suspect": int(store.now()) + 1})
    assert since is not None
    return since


def taken(document: Document) -> dict[str, Any]:
    return document.body | {"node": "node2", "machine": "m", "claim": "theirs", "suspect": 0, "taken": True}


def test_a_node_takes_over_after_the_grace(pool: Cluster, held: Document, opened: Opener) -> None:
    node2 = opened(NODE2)
    since = suspected(node2, held)
    assert "stood there for 3600s" in refused(lambda: node2.replace(since, taken(since)))
    manifest = pool.kubectl("kustomize", str(MANIFESTS))
    assert manifest.count(GRACE) == 1
    pool.kubectl("apply", "--filename=-", stdin=manifest.replace(GRACE, "duration('3s')"))

    def takes() -> Document | None:
        budget.begin()
        try:
            return node2.replace(since, taken(since))
        except BackendRefused:
            return None

    try:
        over = until(takes, "the policy to let node2 have it", 120, 0.2)
    finally:
        apply(pool)
    assert over is not None
    assert over.body["node"] == "node2"
    assert over.uid == held.uid
    assert opened(NODE1).replace(since, since.body | {"suspect": 0}) is None


def test_an_owner_that_lives_says_so(held: Document, opened: Opener) -> None:
    since = suspected(opened(NODE2), held)
    answered = opened(NODE1).replace(since, since.body | {"suspect": 0})
    assert answered is not None
    assert opened(NODE2).replace(since, taken(since)) is None


def test_a_node_removes_a_suspicion_that_a_report_refutes(held: Document, opened: Opener) -> None:
    """The owner may not use the network any more, and so not refute it."""
    since = suspected(opened(NODE2), held)
    cleared = opened(NODE2).replace(since, since.body | {"suspect": 0})
    assert cleared is not None
    assert cleared.body == held.body


def test_a_node_cannot_make_up_the_time(pool: Cluster, held: Document, opened: Opener) -> None:
    """The policy reads the time from managedFields, which the API server fills in but a writer may also set."""
    since = suspected(opened(NODE2), held)
    whole = pool.get("hpnblock", held.name, "--show-managed-fields")
    entries = whole["metadata"]["managedFields"]
    assert [(one["manager"], one["operation"]) for one in entries] == [("hpn", "Update")]
    whole["spec"] = taken(since)
    later = entries[0] | {"time": "2099-01-01T00:00:00Z"}
    forged = [
        [later], [later, later | {"manager": "other"}], [later | {"subresource": "status"}, entries[0]],
        [later, entries[0]], [later | {"operation": "Apply"}], [],
    ]  # fmt: skip
    for manager in ("hpn", "other"):
        for entries in forged:
            whole["metadata"]["managedFields"] = entries
            words = ("replace", f"--token={NODE2}", f"--field-manager={manager}", "--filename=-")
            with pytest.raises(Failed, match="may not change block"):
                pool.kubectl(*words, stdin=json.dumps(whole))
    assert opened(NODE1).read(BLOCK, held.name) == since


def test_a_service_account(pool: Cluster, held: Document, opened: Opener, tmp_path: Path) -> None:
    """An account's token names the node that uses it; a token without a node may write no node's blocks."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hpn", "namespace": "kube-system"}}
    pool.apply(account)
    try:
        words = ("create", "token", "hpn", "--namespace=kube-system")
        anywhere, on_node1 = (
            pool.kubectl(*words, *more).strip()
            for more in ((), ("--bound-object-kind=Node", "--bound-object-name=node1"))
        )
        store = opened(on_node1)
        write_kubeconfig(tmp_path / "x", pool, on_node1)
        until(lambda: allowed(store), "the account to have its role", 120, 0.2)
        assert credentials.read(str(tmp_path / "x")).node() == "node1"
        assert store.replace(held, held.body | {"claim": "another"}) is not None
        network = held.body["network"]
        of_node2 = block(network, 5, "node2")
        assert "node node1 may not make a block for node node2" in refused(
            lambda: opened(on_node1).create(BLOCK, of_node2.name, network, of_node2.to_json())
        )
        assert "the token does not say on which node" in refused(
            lambda: opened(anywhere).create(BLOCK, of_node2.name, network, of_node2.to_json())
        )
    finally:
        pool.delete("serviceaccount", "hpn", "--namespace=kube-system")
