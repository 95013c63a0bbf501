"""A node's heartbeat: what it finds about its blocks in the backend."""

from dataclasses import replace

import pytest
from support.documents import Fault, Memory, every

from base.protocol.errors import BackendRefused, Unreachable
from ipam.cluster import BLOCK, Document, Machine
from ipam.cluster.node_blocks import HELD, LOST, NodeBlocks, OwnedBlock, PendingClaim, place_of
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.heartbeat import Heartbeat, answer_all, readable
from ipam.cluster.rules.documents import SAID, Block

NOW = 1_800_000_000
NODE1, NODE2 = Machine("node1", "uid-1", NOW), Machine("node2", "uid-2", NOW)
EMPTY = NodeBlocks("net", "kubernetes", "cluster-1", "node1", "uid-1", 16, ("10.0.0.0/16",))


class Cluster:
    """Two nodes and their backend; this node is node1."""

    def __init__(self) -> None:
        self.store = Memory(machines={"node1": NODE1, "node2": NODE2}, clock=NOW)
        self.mine, self.said = EMPTY, list[str]()

    def make(self, index: int, node: str = "node1", machine: str = "uid-1", **about: object) -> Document:
        block = replace(Block("net", index, 16, node, machine, f"nonce-{index}"), **about)  # type: ignore[arg-type]
        made = self.store.create(BLOCK, block.name, "net", block.to_json())
        assert made
        return made

    def hold(self, index: int, **about: object) -> None:
        """Give node1 a block, recorded in its file."""
        self.mine = self.mine.having(OwnedBlock(index, self.make(index, **about).uid, self.mine.node))

    def change(self, index: int, **about: object) -> None:
        """Change a block as another node does."""
        document = self.store.read(BLOCK, f"net.{index}")
        assert document
        assert self.store.replace(document, replace(Block.of(document), **about).to_json())  # type: ignore[arg-type]

    def look(self, machine: Machine = NODE1) -> int:
        """Send a heartbeat; return how many blocks were suspected."""
        # Every block has a lease.
        heartbeat = Heartbeat(self.store, machine, self.said)
        self.store.calls.clear()
        self.mine = heartbeat.send(self.mine, lambda mine, _: mine)
        return heartbeat.suspected

    def block(self, index: int) -> Block:
        body = self.store.bodies(BLOCK)[f"net.{index}"]
        return Block.of(Document(BLOCK, "", body, "", ""))

    @property
    def states(self) -> dict[int, tuple[str, bool]]:
        return {block.index: (block.state, block.taken) for block in self.mine.blocks}

    def search(self, us: Machine = NODE1) -> list[int]:
        found = list(readable(self.store.listed(BLOCK, "net")))
        return [block.index for _, block in reclaim.search(self.store, us, found, self.said)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_all_is_well(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.hold(4)
    cluster.make(5, "node2", "uid-2")
    assert cluster.look() == 0
    assert cluster.store.counted() == {"listed": 1}
    assert cluster.states == {3: (HELD, False), 4: (HELD, False)}
    assert cluster.mine.looked > 0
    assert cluster.said == []


@pytest.mark.parametrize("suspect", [SAID, NOW - 60])
def test_an_owner_answers_who_takes_it_for_dead(cluster: Cluster, suspect: int) -> None:
    cluster.hold(3)
    cluster.change(3, suspect=suspect)
    assert cluster.look() == 1
    assert cluster.block(3).suspect == 0
    assert "it lives" in cluster.said[0]


def test_an_answer_is_given_though_others_write_at_the_same_time(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.change(3, suspect=SAID)
    faults = iter([Fault.CONFLICT, Fault.CONFLICT])
    cluster.store.faults = lambda _number, call, _name: next(faults, None) if call == "replace" else None
    cluster.look()
    assert cluster.block(3).suspect == 0


def test_a_block_that_another_has_is_lost(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.change(3, node="node2", machine="uid-2", taken=True)
    cluster.look()
    assert cluster.states == {3: (LOST, False)}
    assert cluster.mine.giving == ()
    assert "node2's now" in cluster.said[0]
    assert cluster.block(3).node == "node2"


def test_a_document_that_was_removed_is_made_again(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.store.documents.clear()
    cluster.look()
    assert (cluster.block(3).node, cluster.states) == ("node1", {3: (HELD, False)})


def test_a_document_that_was_removed_and_another_has_made(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.store.documents.clear()
    cluster.make(3, "node2", "uid-2")
    cluster.look()
    assert cluster.states == {3: (LOST, False)}


def test_the_answer_to_that_is_lost(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.store.documents.clear()
    cluster.store.faults = every("create", Fault.LOST)
    with pytest.raises(Unreachable):
        cluster.look()
    cluster.store.faults = every("", Fault.UNREACHABLE)
    with pytest.raises(Unreachable):
        cluster.look()
    cluster.store.faults = every("create", Fault.FORBIDDEN)
    cluster.look()
    assert cluster.states == {3: (HELD, False)}
    assert cluster.mine.block(3).uid == cluster.store.documents[BLOCK, "net.3"].uid  # type: ignore[union-attr]


def test_a_node_object_that_was_deleted_while_pods_run(cluster: Cluster) -> None:
    """The new object has another UID, and the blocks then name that."""
    cluster.hold(3)
    cluster.look(Machine("node1"))
    assert cluster.block(3).machine == "uid-1"
    cluster.look(Machine("node1", "uid-9", NOW))
    assert (cluster.block(3).machine, cluster.mine.machine) == ("uid-9", "uid-9")
    assert cluster.states == {3: (HELD, False)}


def test_a_wiped_node_has_its_blocks_again(cluster: Cluster) -> None:
    cluster.make(3, claim=cluster.mine.nonce())
    cluster.make(4, machine="uid-0", claim=cluster.mine.nonce())  # another machine's, of the same name
    cluster.look()
    assert cluster.states == {3: (HELD, True)}


def test_an_answer_by_an_old_copy_of_the_file(cluster: Cluster) -> None:
    """A block that the copy lacks is answered for, if this machine claimed it from the same directory."""
    claims = cluster.mine.nonce(), replace(EMPTY, place="elsewhere").nonce()
    for index, (machine, claim) in enumerate([("uid-1", claims[0]), ("uid-1", claims[1]), ("uid-0", claims[0])]):
        cluster.make(index, machine=machine, claim=claim, suspect=NOW)
    Heartbeat(cluster.store, NODE1, cluster.said).answer(EMPTY)
    assert [cluster.block(index).suspect for index in range(3)] == [0, NOW, NOW]


def test_an_answer_without_any_file(cluster: Cluster) -> None:
    """All blocks of this machine are answered for, and none of another one of its name."""
    for index, machine in enumerate(["uid-1", "uid-0", ""]):
        cluster.make(index, machine=machine, suspect=NOW)
    for us in (Machine("node1"), NODE1):
        answer_all(cluster.store, us, cluster.said)
    assert [cluster.block(index).suspect for index in range(3)] == [0, NOW, NOW]


def test_two_directories_of_a_node_are_two_owners(cluster: Cluster) -> None:
    """Two networks of one name, each with its own dataDir, must not use each other's blocks."""
    here, there = place_of("/var/lib/cni/hpn/ipam/net"), place_of("/srv/ipam/net")
    assert place_of("/var/lib/cni//hpn/ipam/net/") == here
    cluster.mine = replace(cluster.mine, place=here)
    cluster.make(3, claim=replace(EMPTY, place=there).nonce())
    cluster.make(4, claim=replace(EMPTY, place=here).nonce())
    cluster.look()
    assert cluster.states == {4: (HELD, True)}


@pytest.mark.parametrize(("uid", "is_suspected"), [("", False), ("uid-2", True)])
def test_a_node_that_does_not_know_its_machine(cluster: Cluster, uid: str, is_suspected: bool) -> None:
    """Its Node object and Lease are gone: then every block of its name would seem another machine's."""
    cluster.make(4)
    us = Machine("node1", uid)
    heartbeat = Heartbeat(cluster.store, us, cluster.said)
    heartbeat.send(EMPTY, lambda mine, _: mine)
    reclaim.release_left(cluster.store, us, heartbeat.left, cluster.said)
    assert bool(cluster.block(4).suspect) == is_suspected


@pytest.mark.parametrize(("machine", "suspect"), [("uid-1", 0), ("uid-0", NOW - 60)])
def test_a_claim_whose_answer_was_lost(cluster: Cluster, machine: str, suspect: int) -> None:
    """With a new Node object, others suspect the node until the document names its machine."""
    cluster.make(3, machine=machine, suspect=suspect)
    cluster.mine = replace(cluster.mine, claim=PendingClaim(3, "nonce-3"))
    cluster.look()
    assert (cluster.states, cluster.mine.claim) == ({3: (HELD, False)}, None)
    assert (cluster.block(3).machine, cluster.block(3).suspect) == ("uid-1", 0)


def test_a_renamed_node_drains_the_blocks_of_its_old_name(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.change(3, suspect=SAID)
    cluster.look(Machine("new-name", "uid-9", NOW))
    assert (cluster.mine.node, cluster.mine.giving, cluster.mine.draining) == ("new-name", (), (3,))
    # It refutes under the old name, for its pods, and changes nothing else: another node may have that name.
    assert cluster.block(3) == Block("net", 3, 16, "node1", "uid-1", "nonce-3")


def test_a_renamed_node_keeps_a_block_that_it_once_reclaimed(cluster: Cluster) -> None:
    """The document still names the machine of the old name, and the node's file the new one."""
    cluster.mine = cluster.mine.having(OwnedBlock(3, cluster.make(3, taken=True).uid, "node1", taken=True))
    for _ in range(2):
        cluster.look(Machine("new-name", "uid-9", NOW))
        assert cluster.states == {3: (HELD, True)}


def test_a_renamed_node_that_may_not_answer_under_its_old_name(cluster: Cluster) -> None:
    """The API server's policy forbids it."""
    cluster.hold(3)
    cluster.change(3, suspect=SAID)
    cluster.store.faults = every("replace", Fault.FORBIDDEN)
    with pytest.raises(BackendRefused):
        cluster.look()
    cluster.look(Machine("new-name", "uid-9", NOW))
    assert cluster.mine.draining == (3,)


def test_an_old_name_that_another_has_now(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.store.documents.clear()
    cluster.make(3)
    cluster.look(Machine("new-name", "uid-9", NOW))
    assert cluster.states == {3: (LOST, False)}


def test_a_copy_of_a_disk_takes_nothing_from_the_original(cluster: Cluster) -> None:
    cluster.hold(3)
    original = cluster.mine
    cluster.look(NODE2)
    assert cluster.mine.giving == ()
    cluster.mine = original
    cluster.look()
    assert cluster.mine.giving == (3,)


def test_a_document_that_nobody_can_read(cluster: Cluster) -> None:
    cluster.hold(3)
    cluster.store.create(BLOCK, "net.4", "net", {"node": "node1"})
    cluster.look()
    assert cluster.search() == []
    assert cluster.states == {3: (HELD, False)}


@pytest.mark.parametrize("machine", ["uid-of-its-host", "uid-1"])
def test_another_host_of_our_name_has_taken_it(cluster: Cluster, machine: str) -> None:
    """The document and the name in it are the same; one Node object stands for both hosts."""
    cluster.hold(1)
    cluster.change(1, taken=True, machine=machine)
    cluster.look()
    assert cluster.states == {1: (LOST, False)}
    assert cluster.block(1).machine == machine


def test_another_host_of_our_name_has_made_it_anew(cluster: Cluster) -> None:
    cluster.hold(1)
    document = cluster.store.read(BLOCK, "net.1")
    assert document
    assert cluster.store.remove(document)
    cluster.make(1, machine="uid-of-its-host")
    cluster.look()
    assert cluster.states == {1: (LOST, False)}


@pytest.mark.parametrize(
    ("place", "machine", "state"), [("here", "uid-1", HELD), ("elsewhere", "uid-1", LOST), ("here", "uid-9", LOST)]
)
def test_another_directory_or_host_has_made_it_anew(cluster: Cluster, place: str, machine: str, state: str) -> None:
    cluster.hold(1)
    cluster.store.documents.clear()
    cluster.mine = replace(cluster.mine, place="here")
    cluster.make(1, machine=machine, claim=replace(cluster.mine, place=place).nonce())
    cluster.look()
    assert cluster.states == {1: (state, False)}
