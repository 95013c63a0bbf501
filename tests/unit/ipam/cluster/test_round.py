"""A node's round: it releases and claims blocks, and takes no address from a pod."""

from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import Fault, Killed, Memory, every

from base.protocol.result import Ip
from base.protocol.spec import Key
from base.state import durable
from ipam.cluster import BLOCK, Machine, node_blocks
from ipam.cluster.backends.backend import Backend
from ipam.cluster.node_blocks import HELD, LOST, RETURNING, NodeBlocks, OwnedBlock
from ipam.cluster.reconcile.reconcile import rounds
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import Block
from ipam.ranges import Span
from ipam.stores import Owner, Store, Terms, none_gone
from ipam.stores.access import open_in

NOW = 1_800_000_000
FIRST = int(ip_address("10.0.0.0"))
# Four blocks of four numbers each, on two rails.
RANGES = ((Span(4, FIRST, FIRST + 15),), (Span(4, FIRST + 256, FIRST + 256 + 15),))
FREE_AT_ONCE = Terms()
MINE = NodeBlocks("net", "kubernetes", "cluster-1", "node1", "uid-1", 4, ("10.0.0.0/24", "10.0.1.0/24"))


class Node:
    """node1, with blocks of four numbers."""

    def __init__(self, folder: Path, *blocks: int) -> None:
        self.folder, self.host = folder / "net", ""
        machines = {f"node{i}": Machine(f"node{i}", f"uid-{i}", NOW) for i in (1, 2)}
        self.documents, self.time, self.said = Memory(machines=machines, clock=NOW), NOW, list[str]()
        mine = MINE
        for index in blocks:
            mine = mine.having(OwnedBlock(index, self.make(index, "node1"), "node1"))
        node_blocks.write(self.folder, mine)
        self.reserve("first", 0)
        self.store.release(Key("first", "net1"))

    @property
    def store(self) -> Store:
        return open_in(self.folder.parent, "net", [])

    @property
    def mine(self) -> NodeBlocks:
        mine = node_blocks.read(self.folder)
        assert mine
        return mine

    @property
    def states(self) -> dict[int, str]:
        return {block.index: block.state for block in self.mine.blocks}

    @property
    def ours(self) -> set[int]:
        """Return this node's blocks in the backend."""
        return {body["index"] for body in self.documents.bodies(BLOCK).values() if body["node"] == "node1"}

    def make(self, index: int, node: str) -> str:
        block = Block("net", index, 4, node, f"uid-{node[-1]}", f"nonce-{index}")
        made = self.documents.create(BLOCK, block.name, "net", block.to_json())
        assert made
        return made.uid

    def reserve(self, name: str, number: int, terms: Terms = FREE_AT_ONCE) -> None:
        """Reserve the addresses with that host number, on both rails."""
        ips = tuple(Ip(ip_interface((FIRST + rail + number, 24)), None) for rail in (0, 256))
        self.store.reserve(Owner(Key(name, "net1"), terms=terms), lambda _: ips, RANGES)

    def round(self, later: int = 0, *, due_only: bool = False) -> str:
        """Run a round; return the reason of its failure, or nothing."""
        self.time += later
        self.documents.clock += later
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time", lambda: float(self.time))
            shared = Backend(self.documents, "node1", self.host)
            patch.setattr("ipam.cluster.backends.backend.opened", lambda _kind, _: shared)
            for one in rounds([self.folder], none_gone, due_only=due_only):
                self.said += one.log
                return one.problem
        return ""


def test_a_node_with_room_asks_little(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.reserve("b", 5)
    node.documents.calls.clear()
    node.round()
    counted = node.documents.counted()
    assert counted.pop("read", 0) <= 1, "of the patrol, unless it draws a block of its own"
    assert counted == {"keep_alive": 1, "machine_uid": 1, "listed": 1}
    assert (node.states, node.said, node.mine.looked) == ({0: HELD, 1: HELD}, [], NOW)


def test_an_empty_block_is_given_back_after_two_looks(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.round()
    node.round(ownership.IDLE - 1)
    assert node.ours == {0, 1}
    node.round(1)
    assert (node.ours, node.states) == ({0}, {0: HELD})
    assert "released" in node.said[0]


@pytest.mark.parametrize("terms", [Terms(cooldown=10**8), Terms(sticky="ns/p", ttl=10**8)])
def test_a_block_with_what_is_kept_back_stays(tmp_path: Path, terms: Terms) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.reserve("b", 5, terms)
    node.store.release(Key("b", "net1"))
    for _ in range(3):
        node.round(ownership.IDLE)
    assert node.ours == {0, 1}


def test_a_block_that_was_used_in_between_has_to_be_seen_twice_again(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.round()
    node.reserve("b", 5)
    node.round(ownership.IDLE)
    node.store.release(Key("b", "net1"))
    node.round(ownership.IDLE)
    assert node.ours == {0, 1}
    node.round(ownership.IDLE)
    assert node.ours == {0}


def test_the_last_block_stays(tmp_path: Path) -> None:
    node = Node(tmp_path, 0)
    for _ in range(3):
        node.round(ownership.IDLE)
    assert node.ours == {0}


@pytest.mark.parametrize("fault", [Fault.KILLED, Fault.KILLED_AFTER, Fault.LOST, Fault.UNREACHABLE, Fault.CONFLICT])
def test_a_return_that_is_interrupted_goes_on(tmp_path: Path, fault: Fault) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.round()
    node.documents.faults = every("remove", fault)
    with suppress(Killed):
        node.round(ownership.IDLE)
    # No address comes from it, whatever the backend answers.
    assert (node.states, node.mine.giving) == ({0: HELD, 1: RETURNING}, (0,))
    node.documents.faults = every("", None)  # type: ignore[arg-type]
    node.round()
    assert (node.ours, node.states) == ({0}, {0: HELD})


def test_a_block_that_another_claims_meanwhile_is_not_removed(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1)
    node_blocks.write(node.folder, node.mine.having(OwnedBlock(1, "old", "node1", RETURNING)))
    node.documents.documents.pop((BLOCK, "net.1"))
    node.make(1, "node2")
    node.round()
    assert node.states == {0: HELD}
    assert node.documents.bodies(BLOCK)["net.1"]["node"] == "node2"


def test_a_block_that_a_host_of_our_name_claims_meanwhile_is_not_removed(tmp_path: Path) -> None:
    node = Node(tmp_path, 0)
    node_blocks.write(node.folder, node.mine.having(OwnedBlock(1, "old", "node1", RETURNING)))
    node.make(1, "node1")
    node.round()
    assert (node.ours, node.states) == ({0, 1}, {0: HELD})


def test_a_block_that_a_host_of_our_name_reclaimed_is_not_removed(tmp_path: Path) -> None:
    """Reclaiming keeps the document and its UID."""
    node = Node(tmp_path, 0, 1)
    node_blocks.write(node.folder, node.mine.having(replace(node.mine.blocks[1], state=RETURNING)))
    document = node.documents.read(BLOCK, "net.1")
    assert document
    assert node.documents.replace(document, document.body | {"machine": "uid-of-its-host", "taken": True})
    node.round()
    assert (node.ours, node.states) == ({0, 1}, {0: HELD})


def test_a_block_is_claimed_before_there_is_no_room(tmp_path: Path) -> None:
    node = Node(tmp_path, 0)
    for number in range(3):
        node.reserve(f"p{number}", number)
    node.round()
    assert node.ours == {0}
    node.reserve("p3", 3)
    node.round()
    assert len(node.ours) == 2
    assert set(node.states) == node.ours
    node.round()
    assert len(node.ours) == 2


def test_no_block_is_left_to_claim(tmp_path: Path) -> None:
    """An ADD that needs a block claims by itself; no command waits for a round."""
    node = Node(tmp_path, 0)
    for index in (1, 2, 3):
        node.make(index, "node2")
    for number in range(4):
        node.reserve(f"p{number}", number)
    node.round()
    assert node.ours == {0}
    node.documents.calls.clear()
    node.round(node_blocks.AHEAD // 2)
    asked = node.documents.counted()
    assert "create" not in asked, "a node of a full pool would ask for each of its blocks in each round"
    assert asked["listed"] == 1, "of the heartbeat"
    node.round(node_blocks.AHEAD)
    assert node.documents.counted()["create"] > 1


def test_a_dead_nodes_block_is_taken_when_none_is_left(tmp_path: Path) -> None:
    node = Node(tmp_path, 0)
    for index in (1, 2, 3):
        node.make(index, "node2")
    del node.documents.machines["node2"]
    for number in range(4):
        node.reserve(f"p{number}", number)
    node.round()
    node.round(node_blocks.GRACE)
    assert node.ours == {0}
    node.round(node_blocks.AHEAD)
    (taken,) = node.ours - {0}
    assert node.documents.bodies(BLOCK)[f"net.{taken}"]["taken"]
    assert node.mine.block(taken).taken  # type: ignore[union-attr]


def test_rounds_of_all_nodes_suspect_the_dead_before_a_node_needs_their_blocks(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.reserve("b", 5)
    node.make(2, "node2")
    node.make(3, "gone-3")
    for _ in range(60):  # all fail to draw block 3 once in 30 million times
        node.documents.calls.clear()
        node.round()
        assert node.documents.counted().get("machine", 0) <= 1
    found = {body["index"]: body["suspect"] for body in node.documents.bodies(BLOCK).values()}
    assert {index for index, suspect in found.items() if suspect} == {3}
    assert found[3] >= NOW
    node.documents.machines["gone-3"] = Machine("gone-3", "uid-3", NOW)
    node.documents.clock += node_blocks.GRACE + 10
    node.documents.machines["gone-3"] = Machine("gone-3", "uid-3", node.documents.clock)
    for _ in range(60):
        node.round()
    assert not any(body["suspect"] for body in node.documents.bodies(BLOCK).values())


def test_a_lost_block_is_forgotten_when_nobody_has_an_address_of_it(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1)
    node.reserve("a", 1)
    node.reserve("b", 5)
    document = node.documents.read(BLOCK, "net.1")
    assert document
    node.documents.replace(document, document.body | {"node": "node2", "machine": "uid-2"})
    node.round()
    assert node.states == {0: HELD, 1: LOST}
    node.store.release(Key("b", "net1"))
    node.round()
    assert node.states == {0: HELD}
    assert node.documents.bodies(BLOCK)["net.1"]["node"] == "node2"


@pytest.mark.parametrize("uid", ["uid of its node1", ""])
def test_another_clusters_store(tmp_path: Path, uid: str) -> None:
    node = Node(tmp_path, 0)
    node.documents.cluster, node.documents.machines["node1"] = "cluster-2", Machine("node1", uid, NOW)
    assert "to cluster cluster-1, and backend 'kubernetes' to cluster cluster-2" in node.round()
    assert node.ours == {0}


def test_another_clusters_etcd(tmp_path: Path) -> None:
    """A machine reports itself with one digest in each."""
    node = Node(tmp_path, 0)
    node.documents.cluster, node.host = "cluster-2", node.mine.machine
    assert "to cluster cluster-1, and backend 'kubernetes' to cluster cluster-2" in node.round()
    assert node.ours == {0}


@pytest.mark.parametrize(("fault", "why"), [(Fault.UNREACHABLE, "does not answer"), (Fault.FORBIDDEN, "forbids it")])
def test_a_store_that_does_not_answer_changes_nothing(tmp_path: Path, fault: Fault, why: str) -> None:
    node = Node(tmp_path, 0, 1)
    node.round()
    before = node.mine
    node.documents.faults = every("", fault)
    assert why in node.round(ownership.IDLE)
    assert node.mine == before


def test_a_node_without_blocks(tmp_path: Path) -> None:
    node = Node(tmp_path)
    durable.remove(node.folder / node_blocks.FILE)
    node.documents.calls.clear()
    node.round()
    assert node.documents.calls == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 15)),
        st.tuples(st.just("delete"), st.integers(0, 15)),
        st.tuples(st.just("round"), st.sampled_from([0, 600, ownership.IDLE, 2000])),
        st.tuples(st.just("fault"), st.sampled_from([None, *Fault])),
    ),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=25, deadline=None)
def test_no_address_of_a_pod_is_ever_in_a_block_that_others_may_have(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int | Fault | None]]
) -> None:
    """Pods come, on numbers of the node's blocks, and go; rounds run at any time, and any call fails."""
    node = Node(tmp_path_factory.mktemp("node"), 0, 1, 2)
    pods = set[int]()
    for what, value in steps:
        match what, value:
            case "add", int(number) if number // 4 in node.mine.giving:
                node.reserve(f"p{number}", number)
                pods.add(number)
            case "delete", int(number):
                node.store.release(Key(f"p{number}", "net1"))
                pods.discard(number)
            case "round", int(later):
                with suppress(Killed):
                    node.round(later)
            case "fault", fault:
                node.documents.faults = every("", fault) if isinstance(fault, Fault) else every("x", Fault.LOST)
        assert {number // 4 for number in pods} <= node.ours
        assert set(node.mine.giving) <= node.ours
