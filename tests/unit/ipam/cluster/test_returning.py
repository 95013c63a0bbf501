"""A block with an interrupted release: an ADD that needs it holds it again, if it is still this node's."""

from dataclasses import replace

import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, every, none

from ipam.cluster import BLOCK, Document, node_blocks
from ipam.cluster.node_blocks import GRACE, HELD, RETURNING
from ipam.cluster.rules.documents import Block


@pytest.fixture
def full(cluster: Cluster) -> Node:
    """A node with a full block, 12, and an empty one, 6, which it releases; another node owns all others."""
    node = cluster.node("node1")
    node.add("a", runtimeConfig={"ips": ["10.0.0.200"]})
    node.add("b", runtimeConfig={"ips": ["10.0.0.99"]})
    node.call("DEL", "b", runtimeConfig={"ips": ["10.0.0.99"]})
    (block,) = [one for one in node.mine.blocks if one.index == 6]
    node_blocks.write(node.dir, node.mine.having(replace(block, state=RETURNING)))
    cluster.node("other")
    for n in {*range(16)} - {6, 12}:
        others = Block("net", n, 16, "other", "uid of other", f"claim of {n}")
        cluster.store.create(BLOCK, others.name, "net", others.to_json())
    for n in range(15):
        node.add(f"more{n}")
    return node


def document(cluster: Cluster) -> Document:
    found = cluster.store.read(BLOCK, "net.6")
    assert found
    return found


def states(node: Node) -> dict[int, str]:
    return {block.index: block.state for block in node.mine.blocks}


@pytest.mark.parametrize("asked", [{}, {"ips": ["10.0.0.98"]}])
def test_it_is_held_again(cluster: Cluster, full: Node, asked: dict[str, list[str]]) -> None:
    before = document(cluster)
    assert full.call("STATUS") == {}
    (given,) = full.add("c", runtimeConfig=asked)
    assert int(given.rpartition(".")[2]) // 16 == 6
    assert states(full) == {6: HELD, 12: HELD}
    assert document(cluster).body["node"] == "node1"
    # A removal that was sent before, and arrives now.
    assert not cluster.store.remove(before)


def test_it_is_held_again_after_others_took_the_node_for_dead(cluster: Cluster, full: Node) -> None:
    """They may reclaim it any moment, and it was another machine's until then."""
    known = document(cluster)
    cluster.store.replace(known, known.body | {"suspect": int(cluster.store.clock) - GRACE - 60, "machine": "before"})
    assert full.add("c")
    assert (document(cluster).body["suspect"], document(cluster).body["machine"]) == (0, "uid of node1")


@pytest.mark.parametrize("there", [False, True])
def test_it_is_not_ours_any_more(cluster: Cluster, full: Node, *, there: bool) -> None:
    assert cluster.store.remove(document(cluster))
    if there:
        others = Block("net", 6, 16, "other", "uid of other", "their claim")
        cluster.store.create(BLOCK, others.name, "net", others.to_json())
        assert full.refused("ADD", "c")[0] == 103
        assert states(full) == {12: HELD}
        return
    full.add("c")
    assert states(full) == {6: HELD, 12: HELD}
    assert full.mine.block(6) == node_blocks.OwnedBlock(6, document(cluster).uid, "node1")


def test_the_store_says_nothing(cluster: Cluster, full: Node) -> None:
    """The release goes on, and no address comes from the block."""
    cluster.store.faults = every("replace", Fault.LOST)
    assert full.refused("ADD", "c")[0] == 11
    assert states(full) == {6: RETURNING, 12: HELD}
    cluster.store.faults = none
    assert full.add("c")


def test_a_claim_that_failed_is_not_asked_again(cluster: Cluster, full: Node) -> None:
    full.add("c")
    code, said = full.refused("ADD", "d", runtimeConfig={"ips": ["10.0.0.77"]})
    assert (code, "which node other owns; request another" in said) == (102, True)
    assert full.mine.claim is None
    for n in range(15):
        full.add(f"again{n}")
    assert full.refused("ADD", "e")[0] == 103
    assert full.mine.claim is None
