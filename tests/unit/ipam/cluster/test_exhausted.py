"""An exhausted pool: a node remembers it for some seconds, so a refused ADD costs the backend nothing."""

from collections import Counter
from pathlib import Path

import pytest
from support.cluster_nodes import SMALL, Cluster, Node

from base.protocol.errors import TryAgain
from base.state.locks import Lock
from ipam.cluster import BLOCK, Document, node_blocks
from ipam.cluster.node_blocks import EXHAUSTED, HEARTBEAT, NodeBlocks, write
from ipam.cluster.rules.documents import Block


@pytest.fixture
def poor(cluster: Cluster, clock: list[float]) -> Node:  # the clock stands still
    """Return a node with one full block; another node owns all others."""
    for index in range(15):
        block = Block("net", index, 16, "rich", "uid of rich", "theirs")
        cluster.store.create(BLOCK, block.name, "net", block.to_json())
    it = cluster.node("poor")
    for number in range(15):
        it.add(f"pod{number}")
    cluster.calls()
    return it


def refused(node: Node, command: str = "ADD") -> str:
    code, said = node.refused(command, "more")
    assert code == (103 if command == "ADD" else 50)
    return said


def test_who_is_refused_again_asks_nobody(cluster: Cluster, clock: list[float], poor: Node) -> None:
    first = refused(poor)
    assert "2 nodes own all 16 usable blocks of network net (16 numbers each); 1 of them seem dead" in first
    assert ", as the backend answered 0 s ago" in first
    assert "listed net" in cluster.calls()
    clock[0] += EXHAUSTED // 2 - 1
    for command in ("ADD", "STATUS", "ADD"):
        assert f"as the backend answered {EXHAUSTED // 2 - 1} s ago; next request in" in refused(poor, command)
    assert cluster.calls() == []
    clock[0] += EXHAUSTED + 1
    assert "as the backend answered 0 s ago" in refused(poor)
    assert "listed net" in cluster.calls()


def test_each_listed_block_is_parsed_once(cluster: Cluster, poor: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large network has thousands, and an ADD waits."""
    cluster.node("rich")
    parsed, real = Counter[str](), Block.of

    def of(document: Document) -> Block:
        parsed[document.name] += 1
        return real(document)

    monkeypatch.setattr(Block, "of", of)
    assert "seem dead" not in refused(poor)
    assert parsed == dict.fromkeys(cluster.store.bodies(BLOCK), 1)


def test_an_address_that_became_free_while_another_claimed(
    cluster: Cluster, poor: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no block, and there is none."""
    real = node_blocks.lock

    def lock(directory: Path | str, timeout: float) -> Lock:
        if not timeout:
            raise TryAgain("another ADD has it")
        poor.call("DEL", "pod3")
        return real(directory, timeout)

    monkeypatch.setattr(node_blocks, "lock", lock)
    poor.add("late")
    assert cluster.calls() == []


def test_status_remembers_too(cluster: Cluster, poor: Node) -> None:
    """A runtime calls STATUS every few seconds, and sends no ADD to a node that is not ready."""
    refused(poor, "STATUS")
    cluster.calls()
    refused(poor, "STATUS")
    refused(poor)
    assert cluster.calls() == []


def test_nodes_ask_again_at_different_times(cluster: Cluster, clock: list[float], poor: Node) -> None:
    found = set[int]()
    for _ in range(40):
        refused(poor)
        assert poor.mine.exhausted
        found.add(poor.mine.exhausted.until - int(clock[0]))
        clock[0] += 2 * EXHAUSTED
    assert min(found) >= EXHAUSTED // 2
    assert max(found) < 2 * EXHAUSTED
    assert len(found) > 5


def test_room_on_the_node_comes_first(poor: Node) -> None:
    refused(poor)
    poor.call("DEL", "pod3")
    assert poor.call("STATUS") == {}
    assert poor.add("other")


def test_a_block_ends_it(cluster: Cluster, clock: list[float], poor: Node) -> None:
    refused(poor)
    found = cluster.store.read(BLOCK, "net.3")
    assert found
    assert cluster.store.remove(found)
    assert "s ago" in refused(poor)
    clock[0] += 2 * EXHAUSTED
    assert poor.add("more")
    assert poor.mine.exhausted is None


def test_other_ranges_are_asked_for(cluster: Cluster, poor: Node) -> None:
    """An operator widened the ranges."""
    refused(poor)
    wide = SMALL | {"subnet": "10.0.0.0/23"}
    for name in ("more", "again"):  # the first gets the free address of the node's block
        assert cluster.node("poor", **wide).add(name)


@pytest.mark.parametrize("taken", [False, True])
def test_a_block_that_is_given_back_just_now_is_held_again(cluster: Cluster, poor: Node, taken: bool) -> None:
    refused(poor)
    poor.call("DEL", "pod3")
    mine = poor.mine
    write(
        poor.dir,
        NodeBlocks.from_json(
            mine.to_json() | {"blocks": [mine.blocks[0].to_json() | {"state": "returning", "taken": taken}]}
        ),
    )
    assert poor.call("STATUS") == {}
    # A reclaimed block's addresses are still probed for, and this test has no link.
    assert ("/run/netns/p" in poor.reply("ADD", "more").stdout) == taken
    assert [(block.state, block.taken) for block in poor.mine.blocks] == [("held", taken)]


def test_a_clock_that_was_set_back(cluster: Cluster, clock: list[float], poor: Node) -> None:
    refused(poor)
    cluster.calls()
    clock[0] -= HEARTBEAT - 1
    refused(poor)
    assert "listed net" in cluster.calls()
