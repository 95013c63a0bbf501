"""hpn doctor's questions to the shared store; doctor_blocks.py has its findings from files."""

from pathlib import Path

import pytest
from support.cluster_nodes import Cluster
from support.documents import Fault, every
from support.sticky_nodes import WEB, node

from ctl.doctor.checks.devices import clock_differs
from ctl.doctor.checks.state import blocks_full, blocks_unseen
from ctl.doctor.cluster import blocks, silence
from ctl.doctor.model import Blocks, Facts, Severity, State
from ctl.doctor.reading import Reader


def test_a_store_is_asked_whether_it_is_there(cluster: Cluster) -> None:
    one = cluster.node("a")
    one.add("pod")
    cluster.calls()
    assert silence("etcd") == ""
    assert cluster.calls() == ["identity"]
    cluster.store.faults = every("", Fault.FORBIDDEN)
    assert "forbids it" in silence("etcd")


@pytest.mark.parametrize(("wrong", "said"), [(3600, "60 minutes ahead of"), (-3600, "60 minutes behind"), (30, "")])
def test_a_clock_that_is_wrong(cluster: Cluster, clock: list[float], wrong: int, said: str) -> None:
    one = cluster.node("a")
    one.add("pod")
    clock[0] = cluster.store.clock + wrong
    state = State(blocks=tuple(blocks(Reader(Path("/")), [one.dir.parent])))
    found = list(clock_differs(Facts(state=state)))
    assert [said in one.evidence and "run an NTP client" in one.remedy for one in found] == [True] * bool(said)


def test_the_files_of_another_root_say_nothing_of_this_nodes_store(cluster: Cluster, tmp_path: Path) -> None:
    one = cluster.node("a")
    one.add("pod")
    cluster.calls()
    (found,) = blocks(Reader(tmp_path), [one.dir.parent])
    assert (found.states, found.silent, cluster.calls()) == ({"held": 1}, "", [])
    assert 0 < found.room < 16


def test_a_node_that_has_given_numbers_for_names_alone(cluster: Cluster, tmp_path: Path) -> None:
    """A node that allocates only reserved numbers owns no block and needs none, so nothing is found."""
    one = node(cluster, "a")
    one.add("c1", *WEB)
    assert one.mine.blocks == ()
    state = State(blocks=tuple(blocks(Reader(tmp_path), [one.dir.parent])))
    assert list(blocks_full(Facts(state=state))) == []


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "blocks").write_text("{")
    (tmp_path / "loop").symlink_to("loop")
    read = Reader(tmp_path)
    assert list(blocks(read, [tmp_path, tmp_path / "loop"])) == []
    kept = "keeps this node's blocks by a copy in memory or by the backend's list, until the next boot; repair the disk"
    assert {path.removeprefix(f"{tmp_path}/"): kept in why for path, why in read.unread.items()} == {
        "loop": True,
        "loop/blocks": True,
        "net/blocks": True,
    }


def test_a_store_that_refuses_is_an_error() -> None:
    facts = Facts(state=State(blocks=(Blocks("/x/blocks", {"held": 1}, 5, 10.0, "forbidden: get namespaces"),)))
    (found,) = blocks_unseen(facts)
    assert found.severity == Severity.ERROR
    assert "forbidden: get namespaces" in found.evidence
