"""Rounds of two nodes on real servers: blocks that a node claims, returns, recovers and protects."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from cluster.space import until
from cluster.two_nodes import Cluster
from support.api_server import NODE1, NODE2, Opener
from support.shared_stores import etcds

from base.kernel import budget
from base.protocol.result import Ip
from base.protocol.spec import Key
from ipam.cluster import BLOCK, Documents, Machine, RoundReport, copies, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.backends.backend import Backend
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Gateway, Settings
from ipam.cluster.node_blocks import HELD, NodeBlocks, OwnedBlock
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.reconcile import rounds
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import Block
from ipam.ranges import Span
from ipam.stores import Owner, none_gone
from ipam.stores.access import open_in

FIRST = int(ip_address("10.0.0.0"))
# Four blocks of four numbers.
RANGES = ((Span(4, FIRST, FIRST + 15),),)
Opens = Callable[[str], Documents]
_ever = count()
T = TypeVar("T")


class Node:
    """A node of the cluster, and its part of a network."""

    def __init__(self, folder: Path, name: str, network: str, documents: Documents) -> None:
        self.folder, self.name, self.network, self.documents = folder / name / network, name, network, documents
        self.machine = self.asked(lambda: documents.machine(name))
        identity = self.asked(documents.identity)
        place = node_blocks.place_of(self.folder)
        mine = NodeBlocks(network, "any", identity, name, self.machine.uid, 4, ("10.0.0.0/24",), place=place)
        node_blocks.write(self.folder, mine)

    def asked(self, ask: Callable[[], T]) -> T:
        budget.begin()
        return ask()

    @property
    def mine(self) -> NodeBlocks:
        mine = node_blocks.read(self.folder)
        assert mine
        return mine

    def make(self, index: int) -> str:
        """Create a block of this node in the store; return its document's uid."""
        block = Block(self.network, index, 4, self.name, self.machine.uid, self.mine.nonce())
        made = self.asked(lambda: self.documents.create(BLOCK, block.name, self.network, block.to_json()))
        assert made
        return made.uid

    def hold(self, index: int, *numbers: int, idle: float = 0) -> None:
        """Create a block in the store and in the node's file, with leases of these host numbers."""
        block = OwnedBlock(index, self.make(index), self.name, idle=int(idle))
        node_blocks.write(self.folder, self.mine.having(block))
        for number in numbers:
            ips = (Ip(ip_interface((FIRST + number, 24)), None),)
            store = open_in(self.folder.parent, self.network, [])
            store.reserve(Owner(Key(f"c{number}", "net1")), lambda _, ips=ips: ips, RANGES)

    def round(self) -> RoundReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copies, "FOLDER", f"{self.folder}.copies")
            patch.setattr(backend, "opened", lambda _kind, _: Backend(self.documents, self.name))
            (one,) = rounds([self.folder], none_gone)
        assert not one.problem
        return one

    def blocks(self) -> dict[int, Block]:
        """The network's blocks of all nodes, from the store."""
        listed = self.asked(lambda: self.documents.listed(BLOCK, self.network))
        return {block.index: block for block in map(Block.of, listed)}

    def search(self) -> list[int]:
        """The blocks that the node may reclaim from dead nodes."""
        listed = self.asked(lambda: self.documents.listed(BLOCK, self.network))
        found = [(document, Block.of(document)) for document in listed]
        return [block.index for _, block in reclaim.search(self.documents, self.machine, found, [])]


class Rounds:
    @pytest.fixture
    def node1(self, opens: Opens, tmp_path: Path) -> Node:
        return Node(tmp_path, "node1", f"rounds-{next(_ever)}-{time.time_ns()}", opens("node1"))

    def test_a_block_is_claimed_before_there_is_no_room(self, node1: Node) -> None:
        node1.hold(0, 0, 1, 2, 3)
        node1.round()
        assert len(node1.mine.giving) == 2
        assert set(node1.blocks()) == set(node1.mine.giving)

    def test_an_empty_block_is_given_back(self, node1: Node) -> None:
        node1.hold(0, 1)
        node1.hold(1, idle=time.time() - ownership.IDLE - 1)
        assert "released" in " ".join(node1.round().log)
        assert (set(node1.blocks()), node1.mine.giving) == ({0}, (0,))

    def test_a_wiped_node_has_its_block_again(self, node1: Node) -> None:
        node1.make(2)
        node1.round()
        (block,) = node1.mine.blocks
        assert (block.index, block.state, block.taken) == (2, HELD, True)

    def test_a_block_that_somebody_removed_from_the_store(self, node1: Node) -> None:
        node1.hold(0, 1)
        (document,) = node1.asked(lambda: node1.documents.listed(BLOCK, node1.network))
        assert node1.asked(lambda: node1.documents.remove(document))
        node1.round()
        assert node1.blocks()[0].node == "node1"

    def test_a_renamed_node(self, node1: Node) -> None:
        """A renamed node keeps its pods' addresses, and allocates nothing more from their block."""
        node1.hold(0, 1)
        (block,) = node1.mine.blocks
        node_blocks.write(node1.folder, replace(node1.mine.having(replace(block, node="old")), node="old"))
        node1.round()
        assert 0 not in node1.mine.giving


class TestOnTheApiServer(Rounds):
    @pytest.fixture
    def opens(self, opened: Opener) -> Opens:
        return lambda name: opened({"node1": NODE1, "node2": NODE2}[name])

    def test_a_node_object_deleted_while_pods_run(
        self, pool: Cluster, node1: Node, opens: Opens, tmp_path: Path
    ) -> None:
        """Another node suspects the node, which refutes it.  Later the blocks name the node's new Node object."""
        node2 = Node(tmp_path, "node2", node1.network, opens("node2"))
        node2.hold(1, 5)
        pool.delete("node", "node2")
        try:
            gone = Machine("node2")
            until(lambda: node1.asked(lambda: node1.documents.machine("node2")) == gone, "it to be gone", 120, 0.2)
            assert node1.search() == []
            assert node1.blocks()[1].suspect > 1
            assert node2.round().suspected == 1
            assert node1.blocks()[1].suspect == 0
            assert node1.search() == []
            assert node1.blocks()[1].suspect == 0  # its Lease is recent
        finally:
            pool.nodes["node2"].service("kubelet").stop()  # kubelet creates its Node object when it starts
            pool.restore()
        node2.round()
        assert node1.blocks()[1].machine == node1.asked(lambda: node1.documents.machine("node2")).uid
        assert node2.mine.giving == (1,)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with etcds(tmp_path_factory.mktemp("etcd")) as it:
        yield it.urls


class TestOnEtcd(Rounds):
    @pytest.fixture
    def opens(self, urls: list[str]) -> Iterator[Opens]:
        budget.begin()
        with closing(Gateway(Settings(tuple(urls)))) as gateway:
            yield lambda _name: Etcd(gateway, "/hpn")

    def test_a_node_that_never_told_is_not_taken_for_dead(self, node1: Node, opens: Opens, tmp_path: Path) -> None:
        """A node that never sent a heartbeat is not suspected; its first round sends one."""
        node2 = Node(tmp_path, "node2", node1.network, opens("node2"))
        node2.hold(1, 5)
        assert node1.search() == []
        assert node1.blocks()[1].suspect == 0
        node2.round()
        last_seen = node1.asked(lambda: node1.documents.machine("node2")).last_seen
        assert last_seen is not None
        assert abs(last_seen - node1.documents.now()) < 60
        assert node1.search() == []
        assert node1.blocks()[1].suspect == 0
