"""A backend restored to an older state: a newly claimed block may be another node's, so it is probed."""

from contextlib import suppress

import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, Killed, every, none
from support.ipam_calls import of
from support.sticky_nodes import WEB, keep, named, numbers
from support.sticky_nodes import node as with_names
from unit.ipam.cluster.test_unprobed import block as unasked

from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import GRACE, HEARTBEAT, NodeBlocks


@pytest.fixture
def node(cluster: Cluster, clock: list[float]) -> Node:
    """A node that sent a heartbeat after the backup."""
    one, two = cluster.node("one"), cluster.node("two")
    one.add("a")
    restore = cluster.store.backup()
    two.add("b")
    look(one, clock)
    restore()
    assert list(cluster.owners().values()) == ["one"]
    return one


def look(one: Node, clock: list[float]) -> str:
    """Send a heartbeat; return its log."""
    clock[0] += HEARTBEAT
    one.reply("DEL", "looks")
    return "\n".join(one.reply("ADD", "looks").log)


def claim(one: Node) -> tuple[bool, str]:
    """Fill the node's blocks until it claims another; return whether that is probed, and the log."""
    blocks, said = set(one.mine.giving), list[str]()
    for number in range(17):
        reply = one.reply("ADD", f"more{number}")
        said += reply.log
        if new := set(one.mine.giving) - blocks:
            (index,) = new
            taken = one.mine.block(index).taken  # type: ignore[union-attr]
            # The probe fails without a link.
            assert ("/run/netns/p" in reply.stdout) == taken
            return taken, "\n".join(said)
    raise AssertionError("it has claimed nothing")


def test_it_is_noticed_at_a_claim(node: Node) -> None:
    taken, said = claim(node)
    assert taken
    assert said.count("restored to an older state (it counts ") == 1
    node.call("ADD", "again")
    assert [block.taken for block in node.mine.blocks].count(True) == 1


def test_it_is_noticed_at_a_look(cluster: Cluster, clock: list[float], node: Node) -> None:
    """Also if the backend counted past the old revision before a claim."""
    cluster.calls()
    assert look(node, clock).count("restored to an older state") == 1
    assert cluster.calls() == ["identity", "machine_uid one", "read net", "listed net"], "nothing is asked for that"
    cluster.store.changes += 1000
    assert "restored" not in look(node, clock)
    cluster.store.clock += GRACE - 1
    taken, said = claim(node)
    assert (taken, "restored" in said) == (True, False)


def test_after_the_grace_it_is_over(cluster: Cluster, clock: list[float], node: Node) -> None:
    """Each running node created its documents again by then.  The hour is by the backend's clock."""
    look(node, clock)
    clock[0] += 2 * GRACE
    look(node, clock)
    cluster.store.clock += GRACE
    assert not claim(node)[0]


@pytest.mark.parametrize("fault", [Fault.KILLED_AFTER, Fault.LOST])
def test_the_answer_is_lost_and_the_store_counts_on(cluster: Cluster, node: Node, fault: Fault) -> None:
    had = node.mine.giving
    cluster.store.faults = every("create", fault)
    with suppress(Killed):
        for number in range(17):
            node.call("ADD", f"more{number}")
    assert node.mine.claim
    cluster.store.faults = none
    cluster.store.changes += 1000
    assert "/run/netns/p" in node.refused("ADD", "again")[1]
    assert [(block.index in had, block.taken) for block in node.mine.blocks] == [(True, False), (False, True)]


def test_documents_of_its_own_are_gone(cluster: Cluster, clock: list[float]) -> None:
    """Also if the restored etcd counts from a higher number (--bump-revision), or an operator removed keys."""
    one = cluster.node("one")
    restore = cluster.store.backup()
    one.add("a")
    restore()
    cluster.store.changes += 10**9
    said = look(one, clock)
    assert (said.count("is this node's again"), said.count("restored to an older state (documents")) == (1, 1)
    assert [block.taken for block in one.mine.blocks] == [False], "its own are given from as before"
    assert claim(one)[0]


def test_who_has_seen_nothing_since_the_backup_cannot_know(cluster: Cluster, clock: list[float]) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    one.add("a")
    restore = cluster.store.backup()
    two.add("b")
    restore()
    assert "restored" not in look(one, clock)
    assert not claim(one)[0]


def test_a_number_for_a_name(cluster: Cluster, clock: list[float]) -> None:
    """Another node's number may be missing too, and a kept number may be in use."""
    one, two = with_names(cluster, "node1"), with_names(cluster, "node2")
    kept = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    keep(one)
    restore = cluster.store.backup()
    assert two.add("c2", *WEB) == kept
    two.add("c3", *of("web-1"))
    clock[0] += HEARTBEAT
    keep(one)
    restore()
    assert named(cluster)["ns/web-0:net1"][0] == ""
    for number, name in enumerate(("web-0", "web-2")):
        assert "/run/netns/p" in one.refused("ADD", f"d{number}", *of(name))[1]
    assert [block.taken for block in numbers(one).blocks] == [True, True]


def test_where_nobody_can_be_asked(cluster: Cluster, node: Node) -> None:
    """The claimed block would not be used there, so the node claims no other."""
    claim(node)
    count = len(node.mine.blocks)
    for number in range(10):
        unasked(node, f"unasked{number}")
    assert len(node.mine.blocks) == count


def test_an_older_versions_file(node: Node) -> None:
    body = node.mine.to_json()
    del body["revision"]
    node_blocks.write(node.dir, NodeBlocks.from_json(body))
    assert (node.mine.revision, node.mine.restored, "restored" in body) == (0, 0, False)
    assert not claim(node)[0]
