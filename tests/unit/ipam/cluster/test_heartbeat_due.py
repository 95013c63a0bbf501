"""A node without commands for hours: others may own its blocks then, so ADD sends a heartbeat before it allocates."""

import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, every

from base.protocol.errors import BackendRefused
from ipam.cluster import BLOCK, node_blocks
from ipam.cluster.node_blocks import GRACE, HEARTBEAT, SILENT


@pytest.fixture
def quiet(cluster: Cluster) -> Node:
    """A node with one block, with room in it."""
    one = cluster.node("quiet")
    one.add("a")
    return one


def rob(cluster: Cluster, clock: list[float], owner: Node) -> set[str]:
    """Let hours pass without a command; then another node reclaims the block.

    Return the block's addresses.
    """
    (block,) = owner.mine.giving
    thief = cluster.node("thief")
    del cluster.store.machines[owner.name]
    for number in range(240):
        thief.call("ADD", f"pod{number}")
    for hours in (1.1, 1.2):
        clock[0] += hours * GRACE
        cluster.store.clock += hours * GRACE
        thief.call("ADD", "more")  # it cannot probe here
    assert cluster.owners()[block] == "thief"
    thief.call("DEL", "pod0")
    return {f"10.0.0.{number}" for number in range(16 * block, 16 * block + 16)}


def taken(cluster: Cluster, index: int) -> None:
    """Whether another node reclaimed the block."""
    found = cluster.store.read(BLOCK, f"net.{index}")
    assert found
    cluster.store.replace(found, {**found.body, "node": "thief", "claim": "theirs", "taken": True})
    cluster.calls()


def test_it_gives_nothing_that_another_has_by_now(cluster: Cluster, clock: list[float], quiet: Node) -> None:
    theirs = rob(cluster, clock, quiet)
    answer = quiet.call("ADD", "b")
    assert not theirs & {ip["address"].partition("/")[0] for ip in answer.get("ips", ())}
    assert answer["code"] == 103
    assert [block.state for block in quiet.mine.blocks] == [node_blocks.LOST]


def test_it_looks_before_it_gives(cluster: Cluster, clock: list[float], quiet: Node) -> None:
    (lost,) = quiet.mine.giving
    taken(cluster, lost)
    clock[0] += HEARTBEAT - 1
    assert int(quiet.add("b")[0].rpartition(".")[2]) // 16 == lost, "nobody can have taken it yet"
    assert cluster.calls() == []
    clock[0] += 1
    assert int(quiet.add("c")[0].rpartition(".")[2]) // 16 != lost
    assert "listed net" in cluster.calls()


def test_the_store_does_not_answer(cluster: Cluster, clock: list[float], quiet: Node) -> None:
    """ADD succeeds all the same.  The backend is asked again soon, but not by each ADD, because each would wait."""
    clock[0] += 5 * GRACE
    cluster.calls()
    cluster.store.faults = every("", Fault.UNREACHABLE)
    for name in ("b", "c"):
        reply = quiet.reply("ADD", name)
        assert reply.exit_code == 0
        assert any("heartbeat to the cluster's backend failed" in line for line in reply.log) == (name == "b")
    assert cluster.calls() == ["identity"]
    (lost,) = quiet.mine.giving
    cluster.store.faults = every("", None)  # type: ignore[arg-type]
    taken(cluster, lost)
    clock[0] += SILENT
    assert int(quiet.add("d")[0].rpartition(".")[2]) // 16 != lost


def test_a_pod_with_many_networks_waits_for_one_answer(cluster: Cluster, clock: list[float], quiet: Node) -> None:
    quiet.ipam = {**quiet.ipam, "overlaps": True}
    many = [quiet.more | {"name": f"net{number}"} for number in range(8)]
    for more in many:
        assert "ips" in quiet.call("ADD", "b", **more)
    clock[0] += 5 * GRACE
    cluster.calls()
    cluster.store.faults = every("", Fault.UNREACHABLE)
    for more in many:
        assert "ips" in quiet.call("ADD", "c", **more)
    assert cluster.calls() == ["identity"]
    clock[0] += SILENT
    assert "ips" in quiet.call("ADD", "d", **many[7])
    assert cluster.calls() == ["identity"]


@pytest.mark.parametrize("hours", [0.5, 5])
def test_the_store_refuses(cluster: Cluster, clock: list[float], quiet: Node, hours: float) -> None:
    """It answers, so others may own the blocks: after the grace every ADD fails."""
    clock[0] += hours * GRACE
    cluster.store.faults = every("machine_uid", Fault.FORBIDDEN)
    codes = {quiet.call("ADD", name).get("code") for name in ("b", "c", "d")}
    assert codes == ({None} if hours < 1 else {BackendRefused.code})
    cluster.store.faults = every("", None)  # type: ignore[arg-type]
    assert quiet.add("e")


def test_another_process_looks_just_now(
    cluster: Cluster, clock: list[float], quiet: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADD waits for its result if others may own the blocks."""
    monkeypatch.setattr("ipam.cluster.reconcile.sync.LOCK_TIMEOUT", 0.1)
    clock[0] += 5 * GRACE
    cluster.calls()
    with node_blocks.lock(quiet.dir, 1):
        assert quiet.refused("ADD", "b")[0] == 11
    assert quiet.add("b")
    assert "listed net" in cluster.calls()


def test_status_asks_nobody(cluster: Cluster, clock: list[float], quiet: Node) -> None:
    """A runtime calls STATUS every few seconds."""
    clock[0] += 5 * GRACE
    cluster.calls()
    assert quiet.call("STATUS") == {}
    assert cluster.calls() == []


def test_a_look_is_of_when_it_began(cluster: Cluster, clock: list[float], quiet: Node) -> None:
    """The process may stall between the backend's answer and writing its time."""
    clock[0] += HEARTBEAT
    began = clock[0]

    def late(_number: int, call: str, _name: str) -> None:
        if call == "listed":
            clock[0] += GRACE - 1

    cluster.store.faults = late
    quiet.add("b")
    assert quiet.mine.looked == began
