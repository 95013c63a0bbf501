"""ADD killed while it claims a block: between any two calls to the backend, and any two steps on disk.

The next ADD finds the claimed block, claims no second one, and allocates no address twice.
"""

import shutil
from pathlib import Path

import drawn
import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, Killed, Memory, at, none
from support.ipam_calls import killed_at

from ipam.cluster import BLOCK, POOL
from ipam.cluster.node_blocks import GRACE

# More calls than the ADD makes, and more steps.
CALLS = 12


def all_is_well(cluster: Cluster, node: Node, blocks: int) -> None:
    given = [address for lease in node.leases().values() for address in lease]
    assert len(set(given)) == len(given)
    mine = node.mine
    assert set(mine.giving) == {index for index, owner in cluster.owners().items() if owner == node.name}
    assert len(mine.giving) == len(mine.blocks) == blocks
    assert mine.claim is None
    assert not any(block.taken for block in mine.blocks)


def filled(cluster: Cluster) -> Node:
    """Return a node with one full block."""
    node = cluster.node("node1")
    node.add("first")
    block = node.mine.giving
    count = sum(16 * block[0] + n not in (0, 1, 255) for n in range(16))
    for n in range(count - 1):
        node.add(f"{n}")
    assert node.mine.giving == block
    return node


@pytest.mark.parametrize("fault", [Fault.KILLED, Fault.KILLED_AFTER, Fault.LOST, Fault.UNREACHABLE])
@pytest.mark.parametrize("call", range(CALLS))
def test_first_use(cluster: Cluster, fault: Fault, call: int) -> None:
    node = cluster.node("node1")
    cluster.store.faults = at(call, fault)
    try:
        node.reply("ADD", "a")
    except Killed:
        assert fault in (Fault.KILLED, Fault.KILLED_AFTER)
    reached = len(cluster.store.calls) > call
    assert reached == (call < 10), "the ADD makes ten calls"
    cluster.store.faults = none
    assert node.add("a")
    all_is_well(cluster, node, 1)
    assert len(cluster.store.bodies(POOL)) == 1


@pytest.mark.parametrize("fault", [Fault.KILLED, Fault.KILLED_AFTER, Fault.LOST, Fault.UNREACHABLE])
def test_without_room(cluster: Cluster, fault: Fault) -> None:
    node = filled(cluster)
    cluster.store.faults = at(len(cluster.store.calls), fault)
    try:
        assert node.refused("ADD", "more")[0] == 11
    except Killed:
        assert fault in (Fault.KILLED, Fault.KILLED_AFTER)
    cluster.store.faults = none
    assert node.add("other")
    all_is_well(cluster, node, 2)


def test_another_takes_the_block_meanwhile(cluster: Cluster) -> None:
    """The claim failed; when the node retries, the block is another node's."""
    node, other = filled(cluster), cluster.node("node2")
    cluster.store.faults = at(len(cluster.store.calls), Fault.UNREACHABLE)
    node.refused("ADD", "more")
    claim = node.mine.claim
    assert claim is not None
    other.add("theirs", runtimeConfig={"ips": [f"10.0.0.{16 * claim.index + 5}"]})
    assert node.add("more")
    assert cluster.owners()[claim.index] == "node2"
    all_is_well(cluster, node, 2)


@pytest.mark.parametrize("first", [True, False], ids=["first use", "without room"])
def test_any_step(cluster: Cluster, tmp_path: Path, first: bool) -> None:
    cluster.store.file = tmp_path / "store"
    node = cluster.node("node1") if first else filled(cluster)
    documents, state = tmp_path / "documents", tmp_path / "before"
    shutil.copytree(node.state, state)
    if not first:
        shutil.copy(cluster.store.file, documents)
    for step in drawn.steps(1):
        shutil.rmtree(node.state)
        shutil.copytree(state, node.state)
        cluster.store.file.unlink(missing_ok=True)
        cluster.store.documents.clear()
        if not first:
            shutil.copy(documents, cluster.store.file)
        was_killed = killed_at(step, lambda: node.add("more"))
        # Only the file holds the child's claim.
        cluster.store = Memory(machines=cluster.store.machines, file=cluster.store.file)
        assert node.add("after")
        all_is_well(cluster, node, 1 if first else 2)
        if not was_killed:
            assert step > 40, "too few steps"
            return


def test_others_took_the_node_for_dead_meanwhile(cluster: Cluster) -> None:
    """For so long that they may reclaim the block any moment, and the Node object is a new one."""
    node = filled(cluster)
    cluster.store.faults = lambda _number, call, _name: Fault.KILLED_AFTER if call == "create" else None
    with pytest.raises(Killed):
        node.reply("ADD", "last")
    cluster.store.faults = none
    (known,) = [one for one in cluster.store.listed(BLOCK) if one.body["index"] not in node.mine.giving]
    cluster.store.replace(known, known.body | {"suspect": int(cluster.store.clock) - GRACE - 60, "machine": "before"})
    assert node.add("last")
    all_is_well(cluster, node, 2)
    (known,) = [one for one in cluster.store.listed(BLOCK) if one.name == known.name]
    assert (known.body["suspect"], known.body["machine"]) == (0, "uid of node1")
