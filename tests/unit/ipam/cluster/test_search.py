"""A search for blocks of dead nodes: which nodes it checks and suspects, and what it may reclaim."""

import pytest
from support.documents import Fault, Memory, every
from unit.ipam.cluster.test_heartbeat import Cluster

from base.protocol.errors import BackendRefused
from base.protocol.spec import Json
from ipam.cluster import Document, Machine
from ipam.cluster.node_blocks import GRACE
from ipam.cluster.reconcile import reclaim

NOW = 1_800_000_000


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_dead_nodes_blocks_are_found_after_the_grace(cluster: Cluster) -> None:
    cluster.make(3)
    cluster.make(4, "node2", "uid-2")
    cluster.make(5, "gone", "uid-5")
    assert cluster.search() == []
    assert (cluster.block(3).suspect, cluster.block(4).suspect) == (0, 0)
    assert cluster.block(5).suspect > NOW - 1
    assert "gone's, which seems dead (last alive: never" in cluster.said[0]
    cluster.store.clock += GRACE
    assert cluster.search() == []
    cluster.store.clock += 2
    assert cluster.search() == [5]
    assert len(cluster.said) == 1


def test_another_machine_of_our_name_is_given_time_to_answer(cluster: Cluster) -> None:
    cluster.make(3, machine="uid-0")
    assert cluster.search() == []
    cluster.store.clock += GRACE + 2
    assert cluster.search() == [3]


def test_another_machine_of_our_name_where_the_backend_knows_no_machines(cluster: Cluster) -> None:
    """It knows when the name was reported last, and this node did that."""
    cluster.make(3, machine="uid-0")
    cluster.store.machines["node1"] = Machine("node1", "", NOW)
    assert cluster.search() == []
    assert cluster.block(3).suspect


def test_one_answer_suffices_only_for_an_owner_without_a_suspicion(cluster: Cluster) -> None:
    """A Lease can name the former machine for a moment."""
    cluster.make(3, "node2", "uid-2")
    cluster.make(4, "gone", "uid-0")
    cluster.search()
    cluster.store.calls.clear()
    cluster.search()
    assert sorted(call for call in cluster.store.calls if call.startswith("machine")) == ["machine node2 uid-2"]
    cluster.store.clock += GRACE + 2
    cluster.store.calls.clear()
    assert cluster.search() == [4]
    assert "machine gone" in cluster.store.calls


def test_a_search_asks_about_few_nodes(cluster: Cluster) -> None:
    for i in range(20):
        cluster.make(2 * i, f"gone-{i}", "uid")
        cluster.make(2 * i + 1, f"gone-{i}", "uid")
    cluster.store.calls.clear()
    cluster.search()
    assert cluster.store.counted()["machine"] == reclaim.FEW


def test_the_dead_of_thousands_are_found_at_once(cluster: Cluster) -> None:
    for i in range(2000):
        cluster.make(i, f"node{i}", f"uid-{i}")
        cluster.store.machines[f"node{i}"] = Machine(f"node{i}", f"uid-{i}", cluster.store.clock)
    dead = (17, 400, 1999)
    for i in dead:
        del cluster.store.machines[f"node{i}"]
    cluster.store.calls.clear()
    cluster.search()
    assert all(cluster.block(i).suspect for i in dead)
    counted = cluster.store.counted()
    assert (counted["silent"], counted["machine"]) == (1, reclaim.FEW)


def test_all_that_a_suspected_node_has_is_found_together(cluster: Cluster) -> None:
    """Otherwise each block would wait for a random find, among those of a thousand nodes."""
    for i in range(300):
        cluster.make(i, f"node{i}", f"uid-{i}")
        cluster.store.machines[f"node{i}"] = Machine(f"node{i}", f"uid-{i}", cluster.store.clock)
    for i in (300, 301, 302):
        cluster.make(i, "gone", "uid", suspect=NOW if i == 301 else 0)
    cluster.store.silent = lambda owners: owners  # type: ignore[method-assign]  # as where nobody may list that
    found = 0
    for _ in range(40):
        cluster.search()
        found += all(cluster.block(i).suspect for i in (300, 302))
        for i in (300, 302):
            cluster.change(i, suspect=0)
    # Every other search begins with them.  A random find needs 38 searches; fewer than 8 come once in 50,000 times.
    assert found >= 8


def dead(cluster: Cluster, numbers: range, machine: str = "uid", **about: object) -> None:
    for i in numbers:
        cluster.make(i, f"gone-{i}", machine, **about)


def test_nodes_that_wait_for_their_grace_count_for_nothing(cluster: Cluster) -> None:
    """Each search suspects more of the dead, so that all of their blocks are available after one grace."""
    dead(cluster, range(10 * reclaim.FEW))
    for _ in range(10):
        assert cluster.search() == []
        cluster.store.clock += 30
    assert all(cluster.block(i).suspect for i in range(10 * reclaim.FEW))
    cluster.store.clock += GRACE
    cluster.store.calls.clear()
    assert len(cluster.search()) == reclaim.FEW
    assert cluster.store.counted()["machine"] == reclaim.FEW


@pytest.mark.parametrize("may_clear", [True, False])
def test_nodes_that_came_back_hide_no_dead_one(cluster: Cluster, may_clear: bool) -> None:
    """Nobody there refutes the suspicion: the node sends no heartbeat for this network any more."""
    dead(cluster, range(3 * reclaim.FEW), suspect=NOW)
    dead(cluster, range(100, 110))
    for i in range(3 * reclaim.FEW):
        cluster.store.machines[f"gone-{i}"] = Machine(f"gone-{i}", "uid", NOW + 4 * GRACE)
    if not may_clear:  # an older policy forbids that to nodes

        def replace(document: Document, body: Json) -> Document | None:
            if document.body["suspect"] and not body["suspect"]:
                raise BackendRefused("no")
            return Memory.replace(cluster.store, document, body)

        cluster.store.replace = replace  # type: ignore[method-assign]
    cluster.store.clock += 2 * GRACE
    for _ in range(8):
        assert cluster.search() == []
        cluster.store.clock += 60
    assert all(cluster.block(i).suspect for i in range(100, 110))
    assert any(cluster.block(i).suspect for i in range(3 * reclaim.FEW)) != may_clear
    cluster.store.clock += GRACE
    found = {*cluster.search(), *cluster.search(), *cluster.search()}
    assert {*found} <= {*range(100, 110)}
    assert found
    assert not any("failed" in said for said in cluster.said)


def test_a_name_that_another_machine_has_now(cluster: Cluster) -> None:
    """The earlier machine is dead to every node, among a thousand that live too."""
    for i in range(1000):
        cluster.make(i, f"node{i}", f"old-{i}" if i == 500 else f"uid-{i}")
        cluster.store.machines[f"node{i}"] = Machine(f"node{i}", f"uid-{i}", NOW + 10 * GRACE)
    us = Machine("node0", "uid-0")
    assert cluster.search(us) == []
    assert [i for i in range(1000) if cluster.block(i).suspect] == [500]
    cluster.store.clock += GRACE + 2
    assert cluster.search(us) == [500]


def test_who_may_not_see_other_nodes_says_so(cluster: Cluster) -> None:
    cluster.make(5, "gone", "uid-5")
    cluster.store.faults = every("machine", Fault.FORBIDDEN)
    assert cluster.search() == []
    assert "the search for blocks of dead nodes failed" in cluster.said[0]
