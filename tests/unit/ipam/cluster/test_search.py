"""A search for blocks of dead nodes: which nodes it checks and suspects, and what it may reclaim."""

import pytest
from support.documents import Fault, every
from unit.ipam.cluster.test_heartbeat import Cluster

from ipam.cluster import Machine
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
    cluster.store.silent = lambda names: names  # type: ignore[method-assign]  # as where nobody may list that
    cluster.search()
    assert all(cluster.block(i).suspect for i in (300, 301, 302))


def test_who_may_not_see_other_nodes_says_so(cluster: Cluster) -> None:
    cluster.make(5, "gone", "uid-5")
    cluster.store.faults = every("machine", Fault.FORBIDDEN)
    assert cluster.search() == []
    assert "the search for blocks of dead nodes failed" in cluster.said[0]
