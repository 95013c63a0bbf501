"""Addresses where nobody on the link can be asked about them: first of a block that had no other owner."""

from functools import partial

import pytest
from documents import Fault, every
from unit.cluster_nodes import Cluster, Node

from cni.protocol.errors import StoreRefused
from cni.protocol.spec import Key
from ipam import leases
from ipam.cluster import BLOCK, Machine, held
from ipam.cluster.blocks import Block
from ipam.cluster.giving import Network
from ipam.config import load
from ipam.stores import Owner, open_in


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """A node with one block, that was another's."""
    one = cluster.node("node1")
    one.add("a")
    mine = one.mine
    held.write(one.dir, held.Held.of(mine.as_json() | {"blocks": [mine.blocks[0].as_json() | {"taken": True}]}))
    cluster.calls()
    return one


def block(node: Node, name: str) -> tuple[bool, list[str]]:
    """Whether the address is of the block that was another's, where the link cannot be asked; and what was logged."""
    node.enter()
    log, first = list[str](), node.mine.blocks[0].index
    pool = load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": node.ipam}, {})
    store, ranges = open_in(node.dir.parent, "net", log), tuple(s.all_spans for s in pool.sets)
    assert pool.cluster
    (ip,) = Network("net", str(node.dir), pool.cluster, pool).give(
        lambda pool, requested: partial(leases.choose, pool.sets, requested),
        lambda choose: store.reserve(Owner(Key(name, "net1")), choose, ranges),
        lambda reserve: reserve(()),
        lambda _reserve, _proven, unasked: unasked("net1 is InfiniBand", ()),
        log,
    )
    return int(ip.address.ip) % 256 // 16 == first, [line for line in log if "InfiniBand" in line]


def full(cluster: Cluster) -> None:
    """Another node, that lives, has all other blocks."""
    cluster.store.machines["node2"] = Machine("node2", "uid of node2", cluster.store.clock)
    for index in range(16):
        one = Block("net", index, 16, "node2", "uid of node2", "theirs")
        cluster.store.create(BLOCK, one.name, "net", one.as_json())
    cluster.calls()


def test_another_block_is_claimed(cluster: Cluster, node: Node) -> None:
    assert block(node, "b") == (False, [])
    assert sorted(one.taken for one in node.mine.blocks) == [False, True]
    cluster.calls()
    assert block(node, "c") == (False, [])
    assert cluster.calls() == []


@pytest.mark.parametrize("why", ["full", "silent"])
def test_there_is_no_other(cluster: Cluster, node: Node, why: str) -> None:
    full(cluster)
    if why == "silent":
        cluster.store.faults = every("", Fault.UNREACHABLE)
    mine, said = block(node, "b")
    assert mine
    assert said == [
        "net1 is InfiniBand, so nobody was asked whether others have its addresses, and no other block is to be had"
    ]


def test_the_store_refuses(cluster: Cluster, node: Node) -> None:
    cluster.store.faults = every("", Fault.FORBIDDEN)
    with pytest.raises(StoreRefused):
        block(node, "b")


def test_nothing_is_taken_from_the_dead_for_that(cluster: Cluster, node: Node) -> None:
    """It would be one more block that nothing is given from."""
    full(cluster)
    cluster.store.machines["node2"] = Machine("node2", "", 0.0)
    for name in ("b", "c"):
        assert block(node, name)[0]
        cluster.store.clock += 2 * held.GRACE
    assert len(node.mine.blocks) == 1
