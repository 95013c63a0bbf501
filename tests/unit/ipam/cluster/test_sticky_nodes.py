"""Numbers that names have on all nodes: how they are released when nodes die, forget, or are cut off."""

import shutil
import socket
import time
from pathlib import Path

import pytest
from support.cluster_nodes import Cluster
from support.documents import Fault, every, none
from support.ipam_calls import of
from support.sticky_nodes import WEB, keep, named, node, number, numbers

from agent import idle
from base.protocol import report
from ctl.ipam import release
from ipam.cluster import BLOCK, Machine, node_blocks
from ipam.cluster.node_blocks import GRACE, HEARTBEAT


def test_the_store_is_down(cluster: Cluster) -> None:
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    cluster.store.faults = every("", Fault.UNREACHABLE)
    one.call("DEL", "c1", *WEB)
    assert [bool(report.problem) for report in keep(one)] == [True, True]
    assert two.refused("ADD", "c2", *WEB)[0] == 11
    assert one.add("c3", *WEB) == first
    one.call("DEL", "c3", *WEB)
    cluster.store.faults = none
    keep(one)
    assert two.add("c2", *WEB) == first


def test_a_dead_nodes(cluster: Cluster) -> None:
    """By both conditions, and an hour after the suspicion, as for a block."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    cluster.store.machines["node1"] = Machine("node1", "", cluster.store.clock)
    assert two.refused("ADD", "c2", *WEB)[0] == 11
    cluster.store.clock += GRACE + 2
    assert two.refused("ADD", "c2", *WEB)[0] == 11
    assert two.refused("ADD", "c2", *WEB)[0] == 11
    cluster.store.clock += GRACE + 2
    # Its address is probed for, and this test has no link.
    assert "/run/netns/p" in two.refused("ADD", "c2", *WEB)[1]
    assert named(cluster)["ns/web-0:net1"] == ("node2", number(first[0]))
    assert [block.taken for block in numbers(two).blocks] == [True]
    keep(one)
    assert [block.state for block in numbers(one).blocks] == [node_blocks.LOST]


def test_a_node_that_lives_answers(cluster: Cluster) -> None:
    one, two = node(cluster, "node1"), node(cluster, "node2")
    one.add("c1", *WEB)
    cluster.store.machines["node1"] = Machine("node1", "", None)
    two.refused("ADD", "c2", *WEB)
    assert [body["suspect"] > 1 for body in cluster.store.bodies(BLOCK).values() if body.get("whose")] == [True]
    cluster.store.machines["node1"] = Machine("node1", "uid of node1", cluster.store.clock)
    keep(one)
    assert [body["suspect"] for body in cluster.store.bodies(BLOCK).values() if body.get("whose")] == [0]


def test_a_node_that_has_forgotten(cluster: Cluster) -> None:
    """It was wiped: the number is its own, and probed for."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    (one.dir / "sticky" / node_blocks.FILE).unlink()
    one.call("DEL", "c1", *WEB)
    assert "/run/netns/p" in one.refused("ADD", "c1", *WEB)[1]
    assert named(cluster)["ns/web-0:net1"] == ("node1", number(first[0]))
    assert [(block.taken, block.whose) for block in numbers(one).blocks] == [(True, "ns/web-0:net1")]
    # No probe proved it free, so the next node probes for it too.
    keep(one)
    assert "/run/netns/p" in two.refused("ADD", "c2", *WEB)[1]


def test_a_node_that_has_forgotten_answers_first(cluster: Cluster) -> None:
    """It was away and suspected for so long that others may reclaim its numbers and blocks any moment."""
    one = node(cluster, "node1")
    one.add("c1", *WEB)
    one.add("c2", *of("any"))
    for (kind, _), known in list(cluster.store.documents.items()):
        if kind == BLOCK:
            cluster.store.replace(known, known.body | {"suspect": int(cluster.store.clock) - GRACE - 60})
    shutil.rmtree(one.dir)
    for pod in ("web-0", "any"):
        assert "/run/netns/p" in one.refused("ADD", "c3", *of(pod))[1]
    assert [body["suspect"] for body in cluster.store.bodies(BLOCK).values()] == [0, 0]
    # If another node was faster, it is not ours.
    (document,) = cluster.store.listed(BLOCK, "net")
    cluster.store.replace(document, document.body | {"suspect": 5})
    shutil.rmtree(one.dir)
    cluster.store.faults = every("replace", Fault.CONFLICT)
    one.add("c4", *of("any"))
    assert document.body["index"] not in one.mine.giving


def test_a_store_that_was_restored(cluster: Cluster) -> None:
    """To a state before this node had the number."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    keep(one)
    before = dict(cluster.store.documents)
    assert two.add("c2", *WEB) == first
    cluster.store.documents = before
    keep(two)
    assert named(cluster)["ns/web-0:net1"][0] == "node2"
    assert [block.state for block in numbers(two).blocks] == [node_blocks.HELD]
    assert one.refused("ADD", "c3", *WEB)[0] == 11


def test_answers_that_were_lost(cluster: Cluster) -> None:
    """This node claimed the number, then another one; the first answer is unknown, and no address was allocated."""
    one = node(cluster, "node1")
    one.add("c0", *of("web-9"))
    cluster.store.faults = every("create", Fault.LOST)
    assert one.refused("ADD", "c1", *WEB)[0] == 11
    cluster.store.faults = none
    assert one.add("c1", *WEB)
    cluster.store.faults = every("create", Fault.LOST)
    assert one.refused("ADD", "c2", *of("web-2"))[0] == 11
    cluster.store.faults = none
    one.add("c3", *of("web-3"))
    assert "/run/netns/p" in one.refused("ADD", "c2", *of("web-2"))[1]


def test_nobody_gives_it_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hpn node and agent, an ADD of a pod with a number releases it, when a heartbeat is due."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    one.add("c2", *of("web-1"))
    one.call("DEL", "c1", *WEB)
    one.add("c2", *of("web-1"))
    assert two.refused("ADD", "c3", *WEB)[0] == 11
    # time: what the clock is set to
    now = time.time() + HEARTBEAT + 1
    monkeypatch.setattr("time.time", lambda: now)
    one.add("c2", *of("web-1"))
    assert two.add("c3", *WEB) == first
    cluster.store.faults = every("", Fault.UNREACHABLE)
    one.call("DEL", "c2", *of("web-1"))
    now += HEARTBEAT + 1
    assert one.add("c4", *of("web-1")), "the store is away"


def test_del_tells_hpn_node(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ROOM", f"{tmp_path}/room.sock")
    one, other = node(cluster, "node1"), node(cluster, "node2")
    one.add("c1", *WEB)
    one.add("c2", *of("deployed-5bc9f"))
    other.add("c1", *of("deployed-7xq2z"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(report.ROOM)
        sock.setblocking(False)
        one.call("DEL", "c2", *of("deployed-5bc9f"))
        other.call("DEL", "c1", *WEB)
        one.call("DEL", "c3", "net1", "not=an;argument")
        with pytest.raises(BlockingIOError):
            sock.recv(100)
        one.call("DEL", "c1", *WEB)
        assert sock.recv(100) == report.FREED


def test_the_agent_gives_it_up(cluster: Cluster) -> None:
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    cluster.calls()
    assert list(idle.keep_blocks([one.dir.parent])) == []
    assert cluster.calls() == []
    one.call("DEL", "c1", *WEB)
    assert list(idle.keep_blocks([one.dir.parent])) == []
    assert two.add("c2", *WEB) == first


def test_a_node_that_is_released(cluster: Cluster) -> None:
    """An administrator declares it dead: its numbers stay their names', and are probed for."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    (address,) = one.add("c1", *WEB)
    one.add("c2", *of("other"))
    done = release.release(cluster.store, release.blocks_of(cluster.store, "node1", ()))
    assert sorted(outcome.what for outcome in done) == [release.FREED, release.REMOVED]
    assert named(cluster) == {"ns/web-0:net1": ("", number(address))}
    assert "/run/netns/p" in two.refused("ADD", "c3", *WEB)[1]
    assert named(cluster) == {"ns/web-0:net1": ("node2", number(address))}
    # It has no owner, so no owner can be dead.
    release.release(cluster.store, release.blocks_of(cluster.store, "node2", ()))
    cluster.store.clock += 10 * GRACE
    assert release.collect(cluster.store, dry_run=False) == []
