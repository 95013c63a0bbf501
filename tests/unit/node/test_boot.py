"""hpn node in a container with another boot id than the node: it treats no lease as one of an older boot."""

from pathlib import Path

import pytest
from support.cluster_nodes import Cluster, Node

from base.protocol.spec import Key
from base.state import durable, journal
from base.state.pod import Identity
from base.state.record import Record
from node import blocks

ANOTHER = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with a pod that has an address of a block."""
    node = cluster.node("node1")
    node.add("c0")
    monkeypatch.setenv("HPN_STATE_DIR", f"{node.state}")
    monkeypatch.setattr("signal.alarm", lambda _: 0)
    return node


def record(node: Node, number: int, boot: str) -> Path:
    key = Key(f"c{number}", "net1")
    entry = journal.Entry(node.state, "net", key)
    entry.save(Record("net", key, "/run/netns/x", Identity(1, 1), kind="macvlan", link={}, config={}, boot=boot))
    return entry.path


def test_a_node_that_sees_another_boot_than_its_commands(one: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    path, held = record(one, 0, durable.boot_id()), one.leases()
    monkeypatch.setattr(durable, "boot_id", lambda: ANOTHER)
    (found,) = blocks.rounds() or ()
    assert found.network == "net"
    assert f"{path} is of boot" in found.problem
    assert f"hpn node reads {ANOTHER} in" in found.problem
    assert one.leases() == held != {}


@pytest.mark.parametrize("records", [0, 1, 2])
def test_a_node_that_was_booted(one: Node, monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Leases of older boots go.  If a record survives a boot, the next record of this boot shows it."""
    before = durable.boot_id()
    monkeypatch.setattr(durable, "boot_id", lambda: ANOTHER)
    for number, boot in enumerate([ANOTHER, before][:records], 1):
        record(one, number, boot)
    (found,) = blocks.rounds() or ()
    assert found.problem == ""
    assert one.leases() == {}
