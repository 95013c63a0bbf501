"""Addresses where the link cannot be probed: a block without a former owner comes first."""

from ipaddress import ip_interface

import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, every

from base.protocol.errors import BackendRefused
from base.protocol.result import Ip
from base.protocol.spec import Key
from ipam.allocation import Allocation
from ipam.cluster import BLOCK, Machine, allocate, node_blocks
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import Network
from ipam.cluster.view import AnyBlock, View
from ipam.config import load
from ipam.stores import Owner
from ipam.stores.access import open_in


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """A node with one block, which was another's."""
    one = cluster.node("node1")
    one.add("a")
    mine = one.mine
    node_blocks.write(
        one.dir,
        node_blocks.NodeBlocks.from_json(mine.to_json() | {"blocks": [mine.blocks[0].to_json() | {"taken": True}]}),
    )
    cluster.calls()
    return one


def block(node: Node, name: str) -> tuple[bool, list[str]]:
    """Return whether the address is in the block that was another's, on a link that cannot be probed; and the log."""
    node.enter()
    log, first = list[str](), node.mine.blocks[0].index
    pool = load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": node.ipam}, {})
    store, ranges = open_in(node.dir.parent, "net", log), tuple(s.all_spans for s in pool.sets)
    assert pool.cluster
    request = node.request("ADD", name)
    alone = Allocation(request, pool, None, Owner(Key(name, "net1")), ranges, store, log, "")
    shared = allocate.shared(alone, Network("net", str(node.dir), pool.cluster, pool), has_number=False)
    (ip,) = shared.hold_unprobed("net1 is InfiniBand", ())
    return int(ip.address.ip) % 256 // 16 == first, [line for line in log if "InfiniBand" in line]


def test_what_was_probed_waits_for_no_round(cluster: Cluster, node: Node) -> None:
    """A round can have the lock for as long as a slow store takes.  Without a former owner nothing is written."""
    node.enter()
    pool = load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": node.ipam}, {})
    assert pool.cluster
    policy = AnyBlock(Network("net", str(node.dir), pool.cluster, pool))
    view = View(policy, is_probed=True)
    ip = Ip(ip_interface(f"{node.leases()['a:net1'][0]}/24"), None)
    view.usable_pool(())
    with node_blocks.lock(node.dir, 1):
        view.note_probed([ip])
    assert node.mine.blocks[0].tried == frozenset()
    view.note_probed([ip])
    assert node.mine.blocks[0].tried == {str(ip.address.ip)}
    before = (node.dir / "blocks").stat().st_ino
    view.usable_pool(())
    view.note_probed([ip])
    assert (node.dir / "blocks").stat().st_ino == before


def full(cluster: Cluster) -> None:
    """Let another live node own all other blocks."""
    cluster.store.machines["node2"] = Machine("node2", "uid of node2", cluster.store.clock)
    for index in range(16):
        one = Block("net", index, 16, "node2", "uid of node2", "theirs")
        cluster.store.create(BLOCK, one.name, "net", one.to_json())
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
    assert said == ["net1 is InfiniBand, so the addresses were not probed for, and no other block is available"]


def test_the_store_refuses(cluster: Cluster, node: Node) -> None:
    cluster.store.faults = every("", Fault.FORBIDDEN)
    with pytest.raises(BackendRefused):
        block(node, "b")


def test_nothing_is_taken_from_the_dead_for_that(cluster: Cluster, node: Node) -> None:
    """That block would not be used either."""
    full(cluster)
    cluster.store.machines["node2"] = Machine("node2", "", 0.0)
    for name in ("b", "c"):
        assert block(node, name)[0]
        cluster.store.clock += 2 * node_blocks.GRACE
    assert len(node.mine.blocks) == 1
