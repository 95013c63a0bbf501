"""A node whose disk fails while its pods run: it still reports itself alive, and refutes suspicions of its blocks."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.cluster_nodes import Cluster, Node
from support.sticky_nodes import keep

from agent import idle
from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import Record
from ipam.cluster import BLOCK, copies, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.node_blocks import HEARTBEAT, HELD
from node import blocks


def unreadable(path: Path) -> None:
    """Make every use of the file or directory fail, also root's."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(path)  # a loop


def suspect(cluster: Cluster) -> None:
    """Suspect the owners of all blocks."""
    for name in cluster.store.bodies(BLOCK):
        document = cluster.store.read(BLOCK, name)
        assert document
        assert cluster.store.replace(document, document.body | {"suspect": int(cluster.store.clock)})
    cluster.calls()


def suspected(cluster: Cluster) -> list[int]:
    return [body["index"] for body in cluster.store.bodies(BLOCK).values() if body["suspect"]]


@pytest.fixture
def one(cluster: Cluster, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with a pod that has an address of a block, and a round behind it."""
    node = cluster.node("a")
    node.add("pod")
    assert [report.problem for report in keep(node)] == [""]
    monkeypatch.setenv("HPN_STATE_DIR", f"{node.state}")
    monkeypatch.setattr(idle, "_last", bytearray(8))
    monkeypatch.setattr("signal.alarm", lambda _: 0)
    return node


@pytest.mark.parametrize("broken", ["net/blocks", "net/lock", "net/blocks.lock", "net", "."])
@pytest.mark.parametrize("by", ["hpn node", "the agent"])
def test_the_disk_fails(cluster: Cluster, clock: list[float], one: Node, broken: str, by: str) -> None:
    clock[0] += HEARTBEAT
    cluster.store.clock += HEARTBEAT
    suspect(cluster)
    unreadable(one.dir.parent / broken)
    if by == "hpn node":
        assert any(report.problem for report in blocks.rounds() or ())
    else:
        idle.reclaim()
    assert suspected(cluster) == []
    assert cluster.calls().count("keep_alive a") == 1


@pytest.mark.parametrize("by", ["hpn node", "the agent"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_the_disk_fails_before_hpn_node_reads_it(
    cluster: Cluster, one: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool, by: str
) -> None:
    """Only the backend's own list then has the node's blocks, also if another network's directory can be read."""
    monkeypatch.setattr(backend, "KINDS", {"etcd": backend.KINDS["etcd"]})
    other = cluster.node("b")
    other.add("pod")
    one.enter()
    if not is_alone:
        more = {**one.ipam, "subnet": "10.1.0.0/24", "dataDir": f"{tmp_path}/none"}
        one.add("pod", name="more", ipam=more)
        keep(one)
    shutil.rmtree(copies.FOLDER)
    unreadable(one.dir.parent)
    suspect(cluster)
    if by == "hpn node":
        found = [report for report in blocks.rounds() or () if report.problem]
        assert [report.network for report in found] == [f"{one.dir.parent}"]
        assert f"{2 - is_alone} blocks of this node are kept by the backend's own list" in found[0].log
    else:
        assert idle.reclaim()
    assert suspected(cluster) == list(other.mine.giving)
    assert "keep_alive a" in cluster.calls()


def in_its_own_directory(node: Node, path: Path) -> None:
    """Move the leases to a directory that only an attachment's configuration names."""
    node.dir.parent.rename(path)
    key = Key("pod", "net1")
    conf = {"name": "net", "ipam": {"type": "hpn-ipam", "dataDir": f"{path}"}}
    with journal.lock(node.state, "net", key) as entry:
        entry.save(Record("net", key, "/run/netns/x", Identity(1, 2), "macvlan", {}, conf))


@pytest.mark.parametrize("by", [lambda: list(blocks.rounds() or ()), idle.reclaim], ids=["hpn node", "the agent"])
def test_a_directory_of_its_own(
    cluster: Cluster, clock: list[float], one: Node, tmp_path: Path, by: Callable[[], object]
) -> None:
    """Also where no round was before, after a boot."""
    in_its_own_directory(one, tmp_path / "own")
    shutil.rmtree(copies.FOLDER)
    clock[0] += HEARTBEAT
    suspect(cluster)
    assert by()
    assert suspected(cluster) == []
    assert copies.networks([])[0] == [tmp_path / "own" / "net"]


def test_a_network_that_is_gone_leaves_no_copy(cluster: Cluster, one: Node) -> None:
    (one.dir / "blocks").unlink()
    assert [report.problem for report in keep(one)] == []
    assert copies.copied() == set()
    cluster.calls()
    assert keep(one) == []
    assert cluster.calls() == []


def test_a_release_by_another_process_between_the_answer_and_the_lock(cluster: Cluster, one: Node) -> None:
    """The round must not take back a block that its list still showed."""
    for number in range(20):
        one.add(f"pod{number}")
    index = one.mine.giving[-1]
    listed = cluster.store.listed

    def then_released(*args: object, **more: object) -> object:
        found = listed(*args, **more)  # type: ignore[arg-type]
        cluster.store.listed = listed  # type: ignore[method-assign]
        document = cluster.store.read(BLOCK, f"net.{index}")
        assert document
        assert cluster.store.remove(document)
        mine = one.mine.without(index)
        (one.dir / "blocks").unlink()
        node_blocks.write(one.dir, mine)
        return found

    cluster.store.listed = then_released  # type: ignore[method-assign,assignment]
    (report,) = keep(one)
    assert "was missing" not in f"{report.problem}{report.log}"
    assert {block.taken for block in one.mine.blocks} == {False}
    assert dict.fromkeys(one.mine.giving, "a") == cluster.owners()


def test_a_request_about_one_network_sends_no_heartbeat(cluster: Cluster, one: Node) -> None:
    """It claims the block that the next ADD needs, by one request besides the check of the cluster."""
    for number in range(13):
        one.add(f"pod{number}")
    cluster.calls()
    assert [report.problem for report in keep(one, due_only=True)] == [""]
    assert len(one.mine.giving) == 2
    assert [call.partition(" ")[0] for call in cluster.calls()] == ["machine_uid", "create"]
    assert keep(one, due_only=True) == []
    assert cluster.calls() == []
    assert {block.state for block in one.mine.blocks} == {HELD}


def test_the_disk_fails_below_a_network(cluster: Cluster, clock: list[float], one: Node) -> None:
    """What a failed disk answers about the directory of reserved numbers is no "absent"."""
    clock[0] += HEARTBEAT
    cluster.store.clock += HEARTBEAT
    suspect(cluster)
    (one.dir / "sticky").symlink_to("x" * 300)  # ENAMETOOLONG, as EIO an error that pathlib raises
    blocks.rounds()
    assert suspected(cluster) == []


def test_one_network_of_many_cannot_be_read(tmp_path: Path) -> None:
    """The others of its directory are found, whatever the order."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "blocks").touch()
        unreadable(tmp_path / name / "blocks")
        (tmp_path / f"well-{name}").mkdir()
        (tmp_path / f"well-{name}" / "blocks").touch()
    found, problems = copies.networks([tmp_path])
    assert {path.name for path in found} == {"well-a", "well-b", "well-c"}
    assert len(problems) == 3


@pytest.mark.parametrize("by", ["hpn node", "the agent"])
def test_the_disk_of_the_journal_fails(cluster: Cluster, clock: list[float], one: Node, by: str) -> None:
    """Records there name directories of leases, and cannot be listed."""
    clock[0] += HEARTBEAT
    cluster.store.clock += HEARTBEAT
    suspect(cluster)
    unreadable(one.state / "attachments")
    if by == "hpn node":
        blocks.rounds()
    else:
        with suppress(OSError):  # the search for dead pods, which follows
            idle.reclaim()
    assert suspected(cluster) == []


def test_a_network_with_the_name_of_the_numbers_directory(cluster: Cluster, clock: list[float]) -> None:
    """Its copy is not one of reserved numbers, so its used blocks are not released as unused numbers."""
    node = cluster.node("a")
    node.add("pod", name="sticky")
    for _ in range(3):
        clock[0] += HEARTBEAT
        assert [report.network for report in keep(node)] == ["sticky"]
    mine = node_blocks.read(node.dir.parent / "sticky")
    assert mine
    assert [block.state for block in mine.blocks] == [HELD]
    assert list(cluster.owners().values()) == ["a"]
