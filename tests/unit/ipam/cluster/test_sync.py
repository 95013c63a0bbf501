"""When a node confirms its blocks with the backend, before an allocation or beside it, and the results."""

import json
from pathlib import Path

import pytest
from support.cluster_nodes import Cluster
from support.documents import Fault, every

from ipam.cluster import BLOCK, Machine, node_blocks
from ipam.cluster.backends import backend


def test_a_copy_of_another_hosts_disk(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same state on another host must not serve the first one's blocks."""
    one = cluster.node("node1")
    one.add("a")
    copy = cluster.node("node2")
    copy.dir.parent.mkdir(mode=0o700)
    one.dir.rename(copy.dir)
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"nodename": "elsewhere"}))
    cluster.store.faults = every("", Fault.UNREACHABLE)
    assert copy.refused("ADD", "b")[0] == 11
    cluster.store.faults = every("", None)  # type: ignore[arg-type]
    (given,) = copy.add("b")
    mine = copy.mine
    assert cluster.owners()[int(given.rpartition(".")[2]) // 16] == "node2"
    assert len(cluster.owners()) == 2
    assert (len(mine.giving), len(mine.draining)) == (1, 1)


def test_a_node_that_was_renamed(cluster: Cluster) -> None:
    """Attachments keep their addresses; new ones come from blocks claimed under the new name."""
    one = cluster.node("old")
    (kept,) = one.add("a")
    cluster.store.machines["new"] = Machine("new", "uid of new", cluster.store.clock)
    file = json.loads(one.node_file.read_text())
    one.node_file.write_text(json.dumps(file | {"backends": {"nodeName": "new"}}))
    given = list[str]()
    while len(cluster.owners()) == 1:
        given += one.add(f"b{len(given)}")
    old, new = one.mine.draining, one.mine.giving
    assert (len(old), len(new)) == (1, 1)
    assert (cluster.owners()[old[0]], cluster.owners()[new[0]]) == ("old", "new")
    assert one.add("a") == (kept,)
    one.call("DEL", "b0")
    assert {int(one.add(f"c{n}")[0].rpartition(".")[2]) // 16 for n in range(5)} == set(new)


def test_off_for_long(cluster: Cluster, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot ADD allocates nothing before a heartbeat, if others may own the blocks."""
    monkeypatch.setattr("base.kernel.syscalls.is_clock_synchronized", lambda: True)
    one = cluster.node("node1")
    one.add("a")
    node_blocks.write(one.dir, node_blocks.NodeBlocks.from_json(one.mine.to_json() | {"boot": "before"}))
    clock[0] += node_blocks.GRACE - 1
    cluster.store.faults = every("", Fault.UNREACHABLE)
    assert one.add("b"), "nobody can have taken it yet"
    clock[0] += 2
    assert one.add("b2"), "and while it is up it goes on"
    node_blocks.write(one.dir, node_blocks.NodeBlocks.from_json(one.mine.to_json() | {"boot": "before"}))
    code, said = one.refused("ADD", "c")
    assert code == 11
    assert "this host was off" in said
    cluster.store.faults = every("", None)  # type: ignore[arg-type]
    assert one.add("c")
    assert cluster.store.calls.count("listed net") == 3


@pytest.mark.parametrize(("seen", "now"), [(30, 40), (1_800_000_000, 40), (1_800_000_000, 1_800_000_010)])
def test_a_clock_that_nothing_keeps_right(
    cluster: Cluster, clock: list[float], monkeypatch: pytest.MonkeyPatch, seen: float, now: float
) -> None:
    """It starts each boot in 1970, or at the time of the shutdown, so the time off is unknown."""
    monkeypatch.setattr("base.kernel.syscalls.is_clock_synchronized", lambda: False)
    clock[0] = seen
    one = cluster.node("node1")
    one.add("a")
    node_blocks.write(one.dir, node_blocks.NodeBlocks.from_json(one.mine.to_json() | {"boot": "before"}))
    cluster.store.faults = every("", Fault.UNREACHABLE)
    clock[0] = now
    assert "this host was off" in one.refused("ADD", "b")[1]
    cluster.store.faults = every("", None)  # type: ignore[arg-type]
    assert one.add("b")
    cluster.store.faults = every("", Fault.UNREACHABLE)
    assert one.add("c"), "once in a boot is enough"


def test_a_block_that_another_has_by_now(cluster: Cluster, clock: list[float]) -> None:
    one = cluster.node("node1")
    one.add("a")
    found = cluster.store.read(BLOCK, f"net.{one.mine.giving[0]}")
    assert found
    cluster.store.replace(found, {**found.body, "node": "node2", "claim": "theirs", "taken": True})
    clock[0] += node_blocks.HEARTBEAT
    (given,) = one.add("b")
    assert {block.state for block in one.mine.blocks} == {node_blocks.LOST, node_blocks.HELD}
    assert cluster.owners()[int(given.rpartition(".")[2]) // 16] == "node1"


def test_an_add_looks_when_it_is_time(cluster: Cluster, clock: list[float]) -> None:
    one = cluster.node("node1")
    one.add("a")
    cluster.calls()
    clock[0] += node_blocks.HEARTBEAT
    assert one.add("b")
    assert cluster.calls() == ["identity", "machine_uid node1", "read net", "listed net"]
    clock[0] += node_blocks.HEARTBEAT
    cluster.store.faults = every("", Fault.UNREACHABLE)
    assert one.add("c")
    assert one.add("d")
    assert cluster.calls() == ["identity"], "one that failed is not tried again at once"


def test_a_clock_that_was_set_back(cluster: Cluster, clock: list[float]) -> None:
    one = cluster.node("node1")
    one.add("a")
    cluster.calls()
    clock[0] -= 86400
    assert one.add("b")
    assert "listed net" in cluster.calls()
    one.add("c")
    assert cluster.calls() == []


def test_a_broken_node_file(cluster: Cluster, clock: list[float]) -> None:
    """Its limits are unknown, so nothing is allocated until it is corrected; and nothing is lost."""
    one = cluster.node("node1")
    one.add("a")
    file = one.node_file.read_text()
    one.node_file.write_text("{")
    clock[0] += node_blocks.HEARTBEAT
    refused = one.call("ADD", "b")
    assert (refused["code"], "it is not JSON" in refused["msg"]) == (7, True)
    one.node_file.write_text(file)
    one.add("b")


def test_one_of_many_looks(cluster: Cluster, clock: list[float]) -> None:
    one = cluster.node("node1")
    one.add("a")
    cluster.calls()
    clock[0] += node_blocks.HEARTBEAT
    with node_blocks.lock(one.dir, 1):  # another process holds it
        reply = one.reply("ADD", "b")
    assert (reply.exit_code, list(reply.log)) == (0, [])
    assert cluster.calls() == []


def test_two_hosts_of_one_name(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the backend records no machines (etcd), each host identifies itself."""
    one, other = cluster.node("same"), cluster.node("other")
    del cluster.store.machines["same"]
    other.node_file.write_bytes(one.node_file.read_bytes())
    files = {node.dir: tmp_path / f"machine-id {node.state.name}" for node in (one, other)}
    given = set[str]()
    for number, (node, text) in enumerate([(one, "1" * 32), (other, "2" * 32), (one, "1" * 32), (other, "2" * 32)]):
        files[node.dir].write_text(f"{text}\n")
        monkeypatch.setattr(backend, "MACHINE_ID", str(files[node.dir]))
        given |= {address for n in range(14) for address in node.add(f"{number}-{n}")}
    assert len(given) == 56
    assert not set(one.mine.giving) & set(other.mine.giving)
    assert set(cluster.owners().values()) == {"same"}
    assert one.mine.machine != other.mine.machine != ""
    # After losing its file, each host finds its own blocks, and not the other's.
    owned = one.mine.giving
    (one.dir / node_blocks.FILE).unlink()
    monkeypatch.setattr(backend, "MACHINE_ID", str(files[one.dir]))
    one.reply("ADD", "again")
    assert one.mine.giving == owned
