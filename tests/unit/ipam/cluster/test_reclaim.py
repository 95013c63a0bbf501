"""A claim without a free block: it reclaims a dead node's block if that node did not answer for the grace."""

import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, Killed, none

from ipam.cluster import BLOCK, Machine, node_blocks
from ipam.cluster.rules.documents import Block


@pytest.fixture
def full(cluster: Cluster, clock: list[float]) -> Node:  # the clock stands still
    """Return a node without a block, where a dead node owns all."""
    for n in range(16):
        block = Block("net", n, 16, "gone", "uid of gone", f"claim of {n}")
        cluster.store.create(BLOCK, block.name, "net", block.to_json())
    cluster.store.machines["gone"] = Machine("gone", "", cluster.store.clock - node_blocks.GRACE - 1)
    return cluster.node("node1")


def after_the_grace(cluster: Cluster, clock: list[float], node: Node) -> None:
    """Suspect the node twice, so that the suspicion has a time."""
    for _ in range(2):
        assert node.refused("ADD", "a")[0] == 103
    cluster.store.clock += node_blocks.GRACE + 2
    clock[0] += node_blocks.GRACE + 2


def test_nobody_is_robbed_at_once(cluster: Cluster, clock: list[float], full: Node) -> None:
    for seconds in (0, 100, node_blocks.GRACE - 200):
        cluster.store.clock += seconds
        clock[0] += seconds
        code, said = full.refused("ADD", "a")
        assert (code, "own all 16 usable blocks of network net" in said) == (103, True), said
    assert set(cluster.owners().values()) == {"gone"}


def test_a_refusal_names_the_dead_and_the_time(cluster: Cluster, clock: list[float], full: Node) -> None:
    said = "1 of them seem dead, and if that stays so, a block is available in about 60 min, as the backend"
    assert said in full.refused("ADD", "a")[1]
    clock[0] += 300  # the node remembers, by its own clock, and then asks again
    cluster.store.clock += 300
    assert said.replace("60", "55") in full.refused("ADD", "a")[1]


def test_one_block_is_taken(cluster: Cluster, clock: list[float], full: Node) -> None:
    after_the_grace(cluster, clock, full)
    # Its addresses are probed for, and this test has no link.
    assert "/run/netns/p" in full.refused("ADD", "a")[1]
    assert [(block.taken, block.state) for block in full.mine.blocks] == [(True, node_blocks.HELD)]
    assert sorted(cluster.owners().values()) == ["gone"] * 15 + ["node1"]
    assert full.mine.claim is None


def test_one_is_taken_beside_unreadable_ones(cluster: Cluster, clock: list[float], full: Node) -> None:
    for n in range(8):
        document = cluster.store.read(BLOCK, f"net.{n}")
        assert document
        cluster.store.replace(document, document.body | {"index": "?"})
    after_the_grace(cluster, clock, full)
    assert "/run/netns/p" in full.refused("ADD", "a")[1]
    assert full.mine.giving[0] >= 8


@pytest.mark.parametrize("fault", [Fault.KILLED, Fault.KILLED_AFTER, Fault.LOST, Fault.UNREACHABLE])
def test_killed_while_it_takes_one(cluster: Cluster, clock: list[float], full: Node, fault: Fault) -> None:
    after_the_grace(cluster, clock, full)
    calls = len(cluster.store.calls)
    cluster.store.faults = lambda number, call, _: fault if call == "replace" and number >= calls else None
    try:
        full.refused("ADD", "a")
    except Killed:
        assert fault in (Fault.KILLED, Fault.KILLED_AFTER)
    assert full.mine.claim is not None
    cluster.store.faults = none
    full.refused("ADD", "a")
    assert sorted(cluster.owners().values()) == ["gone"] * 15 + ["node1"]
    assert [block.taken for block in full.mine.blocks] == [True]
    assert full.mine.claim is None


def test_a_requested_address(cluster: Cluster, full: Node) -> None:
    """It is available when its block may be reclaimed, and the refusal names that time."""
    asked = {"runtimeConfig": {"ips": ["10.0.0.99"]}}
    assert (
        "seems dead: if that stays so, the address is available in about 60 minutes"
        in full.refused("ADD", "a", **asked)[1]
    )
    cluster.store.clock += node_blocks.GRACE - 100
    code, said = full.refused("ADD", "a", **asked)
    assert (code, "which node gone owns; that node seems dead" in said, "in about 2 minutes" in said) == (
        102,
        True,
        True,
    ), said
    cluster.store.clock += 110
    assert "/run/netns/p" in full.refused("ADD", "a", **asked)[1]  # the probe fails without a link
    assert [(block.index, block.taken) for block in full.mine.blocks] == [(6, True)]
    assert cluster.owners() == dict.fromkeys(range(16), "gone") | {6: "node1"}


def test_it_lives(cluster: Cluster, clock: list[float], full: Node) -> None:
    after_the_grace(cluster, clock, full)
    cluster.store.machines["gone"] = Machine("gone", "uid of gone", cluster.store.clock - 10)
    assert full.refused("ADD", "a")[0] == 103
    assert set(cluster.owners().values()) == {"gone"}


def test_only_a_block_that_has_what_is_needed(cluster: Cluster, clock: list[float], full: Node) -> None:
    node = cluster.node("node2", subnet="10.0.0.0/24", rangeStart="10.0.0.224", cluster={"backend": "etcd"})
    after_the_grace(cluster, clock, full)
    node.refused("ADD", "a")
    assert {n for n, owner in cluster.owners().items() if owner == "node2"} < {14, 15}
