"""The contract of every backend (ipam.cluster.Documents), wherever it keeps documents.

A test of a backend is a class that inherits Contract and has a fixture ``store``: an empty backend that knows the nodes
of NODES.  A backend may hold remains of an earlier test, so each test has its own network.
"""

from dataclasses import replace
from itertools import count

import pytest
from support.topology import until

from ipam.cluster import BLOCK, POOL, Document, Documents
from ipam.cluster.rules.documents import Block, PoolLayout, block_name, layout_name

# The nodes that the store knows, and one that it does not know.
NODES = ("node1", "node2")
UNKNOWN = "node9"
_ever = count()


def block(network: str, index: int, node: str = "node1", claim: str = "nonce") -> Block:
    return Block(network, index, 16, node, "", claim)


def create(store: Documents, one: Block) -> Document:
    made = store.create(BLOCK, one.name, one.network, one.to_json())
    assert made is not None
    return made


def names(documents: object) -> list[str]:
    return sorted(document.name for document in documents)  # type: ignore[attr-defined]


def own(store: Documents, node: str, most: int, network: str) -> list[str]:
    """Wait until the node has that many blocks, because a new one may appear late; return their names."""

    def listed() -> list[str] | None:
        found = names(store.listed(BLOCK, network, node))
        return found if len(found) >= most else None

    found: list[str] = until(listed)
    return found


class Contract:
    @pytest.fixture
    def network(self) -> str:
        """Return a network that no other test uses."""
        return f"net-{next(_ever)}"

    def test_what_is_created_is_there(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 3))
        assert (made.kind, made.name, made.body) == (BLOCK, f"{network}.3", block(network, 3).to_json())
        assert made.uid
        assert made.version
        assert store.read(BLOCK, made.name) == made

    def test_what_is_not_there_is_none(self, store: Documents, network: str) -> None:
        assert store.read(BLOCK, block_name(network, 0)) is None
        assert list(store.listed(BLOCK, network)) == []

    def test_the_first_creator_wins(self, store: Documents, network: str) -> None:
        first = create(store, block(network, 1, "node1", "mine"))
        other = block(network, 1, "node2", "another's")
        assert store.create(BLOCK, other.name, network, other.to_json()) is None
        assert store.read(BLOCK, other.name) == first

    def test_kinds_are_apart(self, store: Documents, network: str) -> None:
        layout = PoolLayout(network, 16, ("10.0.0.0/16", "fd00::/64"))
        made = store.create(POOL, layout_name(network), network, layout.to_json())
        assert made is not None
        assert PoolLayout.of(made) == layout
        assert store.read(BLOCK, made.name) is None
        assert names(store.listed(POOL, network)) == [made.name]
        assert list(store.listed(BLOCK, network)) == []

    def test_listed_by_network_and_by_node(self, store: Documents, network: str) -> None:
        other = f"{network}-other"
        for one in (block(network, 0), block(network, 1, "node2"), block(other, 0, "node2"), block(other, 1)):
            create(store, one)
        assert names(store.listed(BLOCK, network)) == [f"{network}.0", f"{network}.1"]
        assert own(store, "node2", 1, network) == [f"{network}.1"]
        assert own(store, "node2", 1, other) == [f"{other}.0"]
        assert {f"{network}.1", f"{other}.0"} <= set(names(store.listed(BLOCK, node="node2")))
        assert {f"{network}.0", f"{other}.0"} <= set(names(store.listed(BLOCK)))
        assert list(store.listed(BLOCK, network, UNKNOWN)) == []

    def test_listed_is_what_read_says(self, store: Documents, network: str) -> None:
        made = [create(store, block(network, index)) for index in range(5)]
        assert sorted(store.listed(BLOCK, network), key=lambda d: d.name) == made

    @pytest.mark.parametrize("odd", ["Rdma_Net", "net.7", "网络", "a" * 300, "-x-"])
    def test_any_network_may_be_named(self, store: Documents, network: str, odd: str) -> None:
        named = f"{odd}{network}"
        made = create(store, block(named, 2**40))
        assert names(store.listed(BLOCK, named)) == [made.name]
        assert Block.of(made).network == named

    def test_replace_is_seen_by_all(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        suspect = made.body | {"suspect": 1_800_000_000}
        new = store.replace(made, suspect)
        assert new is not None
        assert (new.uid, new.body) == (made.uid, suspect)
        assert new.version != made.version
        assert store.read(BLOCK, made.name) == new

    def test_another_owner_is_found_by_its_name(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        store.replace(made, block(network, 1).given_to("node2", "", "other").to_json())
        assert list(store.listed(BLOCK, network, "node1")) == []
        assert own(store, "node2", 1, network) == [made.name]
        assert list(store.listed(BLOCK, network, "node1")) == []

    def test_a_nodes_own_are_as_they_are_now(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        assert own(store, "node1", 1, network) == [made.name]
        new = store.replace(made, made.body | {"suspect": 1})
        assert list(store.listed(BLOCK, network, "node1")) == [new]
        assert new is not None
        assert store.remove(new)
        assert list(store.listed(BLOCK, network, "node1")) == []

    def test_what_no_node_has_is_there_for_all(self, store: Documents, network: str) -> None:
        """A number is reserved for a name: one node releases it, and another claims it."""
        named = replace(block(network, 1), size=1, whose="default/web-0:net1", keep=60)
        made = create(store, named)
        free = store.replace(made, named.freed(int(store.now())).to_json())
        assert free is not None
        assert list(store.listed(BLOCK, network, "node1")) == []
        assert [one.body for one in store.listed(BLOCK, network)] == [free.body]
        assert Block.of(free).node == ""
        had = store.replace(free, replace(Block.of(free), node="node2", claim="theirs", free=0).to_json())
        assert had is not None
        assert had.uid == made.uid
        assert own(store, "node2", 1, network) == [made.name]

    def test_who_lives_is_not_silent(self, store: Documents) -> None:
        owners = [(name, store.machine(name).uid) for name in NODES]
        assert not {*owners} & {*store.silent([*owners, (UNKNOWN, "")])}

    def test_nobody_replaces_what_has_changed(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        new = store.replace(made, made.body | {"suspect": 1})
        assert store.replace(made, made.body | {"suspect": 2}) is None
        assert store.read(BLOCK, made.name) == new

    def test_nobody_replaces_what_is_gone(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        assert store.remove(made)
        assert store.replace(made, made.body | {"suspect": 1}) is None
        assert store.read(BLOCK, made.name) is None

    def test_removed_is_gone(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        assert store.remove(made)
        assert store.read(BLOCK, made.name) is None
        assert not store.remove(made)

    def test_nobody_removes_what_has_changed(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        new = store.replace(made, made.body | {"suspect": 1})
        assert not store.remove(made)
        assert store.read(BLOCK, made.name) == new

    def test_another_of_the_name_is_another(self, store: Documents, network: str) -> None:
        old = create(store, block(network, 1))
        assert store.remove(old)
        new = create(store, block(network, 1))
        assert new.uid != old.uid
        assert not store.remove(old)
        assert store.replace(old, old.body | {"suspect": 1}) is None
        assert store.read(BLOCK, old.name) == new

    def test_a_body_is_the_readers(self, store: Documents, network: str) -> None:
        made = create(store, block(network, 1))
        made.body["node"] = "changed"
        found = store.read(BLOCK, made.name)
        assert found is not None
        assert found.body["node"] == "node1"

    @pytest.mark.parametrize("node", NODES)
    def test_a_node_that_lives_was_heard_of(self, store: Documents, node: str) -> None:
        store.keep_alive(node, 3600)
        machine = store.machine(node)
        assert machine.name == node
        assert machine.last_seen is not None
        assert abs(store.now() - machine.last_seen) < 3600

    def test_a_node_that_nobody_knows(self, store: Documents) -> None:
        machine = store.machine(UNKNOWN)
        assert (machine.name, machine.uid, machine.last_seen) == (UNKNOWN, "", None)

    def test_the_cluster_is_always_the_same(self, store: Documents) -> None:
        assert store.identity()
        assert store.identity() == store.identity()

    def test_changes_are_counted(self, store: Documents, network: str) -> None:
        """A restore to an older state is visible, even while other clients change the backend."""
        first = create(store, block(network, 1))
        assert names(store.listed(BLOCK, network)) == [first.name]
        counted = store.revision(0)
        assert int(first.version) <= counted
        second = create(store, block(network, 2))
        assert counted < int(second.version)
        own(store, "node1", 2, network)
        assert store.revision(int(second.version)) >= int(second.version)

    def test_the_clock_goes_on(self, store: Documents, network: str) -> None:
        store.read(BLOCK, block_name(network, 0))
        before = store.now()
        assert before > 1_700_000_000
        store.read(BLOCK, block_name(network, 0))
        assert store.now() >= before
