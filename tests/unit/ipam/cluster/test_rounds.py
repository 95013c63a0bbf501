"""Rounds of all networks: which process runs them and when, and that an ADD reports little room."""

import shutil
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from support import sticky_nodes
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, every

from agent import idle
from base.protocol import report
from ipam import sandboxes
from ipam.cluster import Machine, copies
from ipam.cluster.backends import backend
from ipam.cluster.node_blocks import GRACE, HEARTBEAT
from ipam.cluster.reconcile import reconcile
from ipam.cluster.reconcile.reconcile import RoundReport
from ipam.stores import Sandbox, none_gone


@pytest.fixture
def hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in place of hpn node's."""
    monkeypatch.setattr(report, "ROOM", f"{tmp_path}/room.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(report.ROOM)
        sock.setblocking(False)
        yield sock


def kept(node: Node, *, due_only: bool = False) -> list[RoundReport]:
    """Run a round of all networks of that node."""
    node.enter()
    return list(reconcile.rounds(copies.networks([node.dir.parent])[0], none_gone, due_only=due_only))


def test_an_add_tells_when_there_is_little_room(cluster: Cluster, hears: socket.socket) -> None:
    node = cluster.node("a")
    node.add("pod0")
    assert hears.recv(100) == report.LOW  # the only notice of a first block
    for number in range(1, 13):
        node.add(f"pod{number}")
    with pytest.raises(BlockingIOError):
        hears.recv(100)
    node.add("pod13")
    assert hears.recv(100) == report.LOW


def test_an_add_tells_of_a_first_number_for_a_name(cluster: Cluster, hears: socket.socket) -> None:
    """Until hpn node knows of it, an etcd gets no report of this node, and the number stays here for ever."""
    node = sticky_nodes.node(cluster, "a")
    node.add("c1", *sticky_nodes.WEB)
    assert node.mine.blocks == ()
    assert hears.recv(100) == report.LOW


def test_a_round_claims_what_the_next_add_needs(cluster: Cluster) -> None:
    node = cluster.node("a")
    for number in range(13):
        node.add(f"pod{number}")
    assert kept(node)[0].problem == ""
    assert list(cluster.owners().values()) == ["a", "a"]
    cluster.calls()
    for number in range(13, 20):
        node.add(f"pod{number}")
    assert cluster.calls() == []


def test_a_round_that_is_not_due(cluster: Cluster, clock: list[float]) -> None:
    node = cluster.node("a")
    node.add("pod")
    cluster.calls()
    assert kept(node, due_only=True) == []
    assert cluster.calls() == []
    clock[0] += HEARTBEAT
    assert [one.network for one in kept(node, due_only=True)] == ["net"]


def test_little_room_is_a_reason(cluster: Cluster) -> None:
    node = cluster.node("a")
    for number in range(13):
        node.add(f"pod{number}")
    assert len(kept(node, due_only=True)) == 1
    assert len(node.mine.giving) == 2


def test_a_store_that_is_silent_is_asked_once(cluster: Cluster) -> None:
    node = cluster.node("a")
    node.add("pod")
    for name in ("other", "third"):
        copy = node.dir.parent / name
        copy.mkdir()
        (copy / "blocks").write_bytes((node.dir / "blocks").read_bytes())
    cluster.calls()
    cluster.store.faults = every("", Fault.UNREACHABLE)
    found = kept(node)
    assert [one.network for one in found] == ["net", "other", "third"]
    assert all("does not answer" in one.problem for one in found)
    assert len(cluster.calls()) == 1


def test_a_file_that_nobody_can_read(cluster: Cluster) -> None:
    node = cluster.node("a")
    node.add("pod")
    (node.dir.parent / "damaged").mkdir()
    (node.dir.parent / "damaged" / "blocks").write_text("{")
    damaged, good = kept(node)
    assert "damaged/blocks is not a state file of hpn" in damaged.problem
    assert good.problem == ""


def test_a_node_object_deleted_while_pods_run(cluster: Cluster, clock: list[float]) -> None:
    """Another node needs a block and finds none free; the owner keeps its blocks, because its rounds are in time."""
    owner, other = cluster.node("a"), cluster.node("b")
    owner.add("pod")
    del cluster.store.machines["a"]
    for number in range(240):
        other.call("ADD", f"pod{number}")
    suspected = 0
    for _ in range(2 * GRACE // HEARTBEAT):
        assert other.refused("ADD", "more")[0] == 103
        clock[0] += HEARTBEAT
        cluster.store.clock += HEARTBEAT
        suspected += sum(one.suspected for one in kept(owner))
        del cluster.store.machines["a"]  # only kubelet could report it, and does not
    assert suspected > 1
    assert [name for name in cluster.owners().values() if name == "a"] == ["a"]


def test_a_node_that_is_cut_off_for_longer_than_the_grace(cluster: Cluster, clock: list[float]) -> None:
    """Its block is another node's then; it reports that, and allocates nothing from it."""
    owner, other = cluster.node("a"), cluster.node("b")
    owner.add("pod")
    (block,) = owner.mine.giving
    del cluster.store.machines["a"]
    for number in range(239):
        other.call("ADD", f"pod{number}")
    assert other.refused("ADD", "more")[0] == 103
    cluster.store.clock += GRACE + 2
    clock[0] += GRACE + 2
    other.call("ADD", "more")  # it cannot probe here
    assert cluster.owners()[block] == "b"
    (found,) = kept(owner)
    assert "is b's now" in " ".join(found.log)
    assert owner.mine.giving == ()


def made_anew(cluster: Cluster, node: Node) -> tuple[int, Node]:
    """Replace the machine by an empty one of the same name; return the former block, and the node."""
    node.add("pod")
    (old,) = node.mine.giving
    shutil.rmtree(node.dir.parent)
    shutil.rmtree(copies.FOLDER, ignore_errors=True)
    cluster.store.machines[node.name] = Machine(node.name, "uid of the next machine", cluster.store.clock)
    node.add("pod")
    assert old not in node.mine.giving
    return old, node


def hours_pass(cluster: Cluster, clock: list[float], node: Node, seconds: int) -> None:
    """The node is reported alive all the time, and runs its rounds."""
    for _ in range(0, seconds, HEARTBEAT):
        clock[0] += HEARTBEAT
        cluster.store.clock += HEARTBEAT
        assert [one.problem for one in kept(node)] == [""]


def test_blocks_of_a_machine_that_had_our_name(cluster: Cluster, clock: list[float]) -> None:
    """They are free an hour after the node's next heartbeat."""
    old, node = made_anew(cluster, cluster.node("a"))
    other = cluster.node("b")
    for number in range(240):
        other.call("ADD", f"pod{number}")
    assert other.refused("ADD", "more")[0] == 103
    hours_pass(cluster, clock, node, GRACE)
    assert cluster.owners()[old] == "a"
    hours_pass(cluster, clock, node, 2 * HEARTBEAT)
    assert old not in cluster.owners()
    assert other.add("more")
    assert cluster.owners()[old] == "b"


def test_another_machine_of_our_name_that_lives(
    cluster: Cluster, clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts have one name by mistake: each answers for its own blocks, and takes none from the other."""
    one, other = cluster.node("same"), cluster.node("other")
    del cluster.store.machines["same"]
    other.node_file.write_bytes(one.node_file.read_bytes())
    files = {node.dir: tmp_path / f"machine-id {node.state.name}" for node in (one, other)}

    def on(node: Node) -> Node:
        files[node.dir].write_text(f"{node.state.name}\n")
        monkeypatch.setattr(backend, "MACHINE_ID", str(files[node.dir]))
        return node

    given = {*on(one).add("pod"), *on(other).add("pod")}
    for _ in range(0, 3 * GRACE, HEARTBEAT):
        clock[0] += HEARTBEAT
        cluster.store.clock += HEARTBEAT
        for node in (one, other):
            kept(on(node))
    assert {*cluster.owners()} == {*one.mine.giving, *other.mine.giving}
    assert {int(address.rpartition(".")[2]) // 16 for address in given} == {*cluster.owners()}


def test_who_does_not_know_which_machine_it_is(
    cluster: Cluster, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Node object is gone: then every block of its name would seem another machine's."""
    monkeypatch.setattr(backend, "MACHINE_ID", "/nonexistent")
    old, node = made_anew(cluster, cluster.node("a"))
    del cluster.store.machines["a"]
    hours_pass(cluster, clock, node, 2 * GRACE)
    assert cluster.owners()[old] == "a"


def test_the_agent_looks_though_nobody_asks(
    cluster: Cluster, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent schedules the next call if this node has blocks, and only then."""
    node = cluster.node("a")
    monkeypatch.setenv("HPN_STATE_DIR", f"{node.state}")
    last = bytearray(8)
    monkeypatch.setattr(idle, "_last", last)
    assert not idle.reclaim()
    node.add("pod")
    cluster.calls()
    clock[0] += HEARTBEAT
    assert idle.reclaim(), "it has just worked"
    assert cluster.calls() == []
    last[:] = bytes(8)
    assert idle.reclaim()
    assert "listed net" in cluster.calls()


def test_the_agent_does_it_when_it_is_due(cluster: Cluster, clock: list[float]) -> None:
    node = cluster.node("a")
    node.add("pod")
    cluster.calls()
    assert list(idle.keep_blocks([node.dir.parent])) == []
    assert cluster.calls() == []
    clock[0] += HEARTBEAT
    assert list(idle.keep_blocks([node.dir.parent])) == []
    assert "listed net" in cluster.calls()
    clock[0] += HEARTBEAT
    cluster.store.faults = every("", Fault.UNREACHABLE)
    (said,) = idle.keep_blocks([node.dir.parent])
    assert "could not be reconciled" in said


def test_a_round_searches_for_dead_namespaces_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at every process of the node, once for each network."""
    box, searched = Sandbox(1, 2, 3, 4), list[set[Sandbox]]()
    monkeypatch.setattr(sandboxes, "of", lambda _: box)
    node = cluster.node("a")
    node.add("pod")

    def gone(boxes: Collection[Sandbox]) -> Collection[Sandbox]:
        searched.append({*boxes})
        return ()

    node.enter()
    for due_only in (False, True):
        searched.clear()
        list(reconcile.rounds(copies.networks([node.dir.parent])[0], gone, due_only=due_only))
        assert searched == [{box}] * (not due_only)
