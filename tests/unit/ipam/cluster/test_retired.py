"""A network that is retired, and a pool layout that a mistake changed: each leaves the store, and nothing is allocated
twice."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cluster_nodes import SHARED, SMALL, Cluster, Node
from support.ipam_calls import of
from support.sticky_nodes import ASIDE

from ipam import sandboxes
from ipam.cluster import BLOCK, POOL, Machine, RoundReport, node_blocks
from ipam.cluster.backends import objects
from ipam.cluster.node_blocks import HEARTBEAT
from ipam.cluster.reconcile import reconcile
from ipam.cluster.rules.documents import PoolLayout


def kept(node: Node) -> list[RoundReport]:
    node.enter()
    return list(reconcile.rounds([node.dir], sandboxes.gone))


def retire(cluster: Cluster) -> None:
    """Delete all documents, as a person does."""
    cluster.store.documents.clear()


def test_no_node_makes_a_retired_network_again(cluster: Cluster, clock: list[float]) -> None:
    """No pod of it runs."""
    nodes = [cluster.node(name) for name in ("a", "b")]
    for node in nodes:
        node.add("pod")
        node.call("DEL", "pod")
    retire(cluster)
    clock[0] += HEARTBEAT
    for _ in range(3):
        assert [one.problem for node in nodes for one in kept(node)] == ["", ""]
        clock[0] += HEARTBEAT
    assert cluster.store.documents == {}
    assert [node.mine.blocks for node in nodes] == [(), ()]


def test_a_block_with_a_pod_is_made_again(cluster: Cluster, clock: list[float]) -> None:
    """Of two blocks one has pods, and one was emptied."""
    node = cluster.node("a")
    (address,) = node.add("pod")
    node.fill()
    for name in [name.partition(":")[0] for name in node.leases()]:
        if name != "pod":
            node.call("DEL", name)
    retire(cluster)
    cluster.store.create(POOL, "net", "net", {"network": "net", "blockSize": 16, "subnets": ["10.0.0.0/24"]})
    clock[0] += HEARTBEAT
    (report,) = kept(node)
    assert any("was removed from the backend, and has no lease: this node gives it up" in line for line in report.log)
    index = int(address.rpartition(".")[2]) // 16
    assert cluster.owners() == {index: "a"}
    assert node.mine.giving == (index,)


def test_an_address_that_is_kept_back_is_no_empty_block(cluster: Cluster, clock: list[float]) -> None:
    """Its name returns within its time."""
    ipam = {**SMALL, "sticky": 100000}
    node = cluster.node("a", **ipam)
    address = node.add("pod", *of("x"))
    node.call("DEL", "pod", *of("x"))
    del cluster.store.documents[BLOCK, f"net.{node.mine.giving[0]}"]
    clock[0] += HEARTBEAT
    kept(node)
    assert node.add("again", *of("x")) == address
    assert list(cluster.owners().values()) == ["a"]


def test_numbers_of_names_end_too(cluster: Cluster, clock: list[float]) -> None:
    node = cluster.node("a", **ASIDE)
    node.add("pod", *of("web-0"))
    node.call("DEL", "pod", *of("web-0"))
    retire(cluster)
    for _ in range(3):
        clock[0] += HEARTBEAT
        kept(node)
    assert cluster.store.documents == {}
    labels = [objects.labels({"network": name}) for name in ("net", "net/sticky")]
    assert labels == [{"hpn-cni.io/network": "net"}, {"hpn-cni.io/network": "net.sticky"}]


def test_a_document_that_was_removed_while_nobody_looked(cluster: Cluster, clock: list[float]) -> None:
    """Another node owns the block by now, and this one has allocated nothing more from it."""
    one, two = cluster.node("a"), cluster.node("b")
    one.add("pod")
    one.call("DEL", "pod")
    index = one.mine.giving[0]
    retire(cluster)
    address = f"10.0.0.{16 * index + 5}"
    assert two.add("x", runtimeConfig={"ips": [address]}) == (address,)
    clock[0] += HEARTBEAT
    given = {one.add(f"p{n}")[0] for n in range(20)}
    assert address not in given
    assert {int(ip.rpartition(".")[2]) // 16 for ip in given} & {index} == set()


def test_a_document_that_cannot_be_read(cluster: Cluster, clock: list[float]) -> None:
    """The error names it; after its removal, which the error advises, the node makes it again."""
    node = cluster.node("a")
    node.add("pod")
    name = f"net.{node.mine.giving[0]}"
    found = cluster.store.read(BLOCK, name)
    assert found
    cluster.store.replace(found, {**found.body, "suspect": "yes"})
    clock[0] += HEARTBEAT
    (report,) = kept(node)
    assert f"block {name} in the cluster's backend cannot be read: its suspect is 'yes'" in report.problem
    assert "remove or repair it" in report.problem
    clock[0] += node_blocks.GRACE
    assert node.refused("ADD", "late")[0] == 108
    del cluster.store.documents[BLOCK, name]
    kept(node)
    assert list(cluster.owners().values()) == ["a"]


def test_a_subnet_by_mistake(cluster: Cluster) -> None:
    """The first ADD of a network had a wrong subnet: the other nodes' error names the remedy, which works."""
    wrong = cluster.node("a", subnet="10.0.0.0/16", cluster=SHARED)
    wrong.add("pod")
    wrong.call("DEL", "pod")
    right = {"subnet": "10.0.4.0/24", "cluster": SHARED}
    code, said = cluster.node("b", **right).refused("ADD", "x")
    assert code == 7
    assert "ipam: subnet 10.0.4.0/24 overlaps 10.0.0.0/16" in said
    assert "if 10.0.0.0/16 was a mistake and no pod uses it, remove the pool layout net from the backend" in said
    del cluster.store.documents[POOL, "net"]
    given = [cluster.node(name, **right).add(f"{name}{n}")[0] for name in ("b", "a", "c") for n in range(12)]
    assert len(set(given)) == 36
    assert all(address.startswith("10.0.4.") for address in given)
    assert cluster.store.bodies(POOL)["net"]["subnets"] == ["10.0.4.0/24"]


@pytest.mark.parametrize(
    ("typo", "said"),
    [
        ({"subnets": ["10.0.0/24"]}, "pool layout net in the cluster's backend cannot be read: .* remove or repair it"),
        ({"blockSize": 0}, "pool layout net in the cluster's backend cannot be read: .* remove or repair it"),
        ({"subnets": ["10.0.0.16/28"]}, "was edited, .* exist .1.: .* remove the pool layout"),
        ({"subnets": ["10.0.1.0/24"]}, "was edited"),
        ({"subnets": ["10.0.0.0/25"]}, ""),  # the next ADD makes it wide again
        ({"blockSize": 61}, "was edited"),
        ({"sticky": "0-7"}, "was edited"),
    ],
)
def test_a_layout_that_a_typo_changed(cluster: Cluster, clock: list[float], typo: dict[str, Any], said: str) -> None:
    """An etcd has no rules for an operator's edit.  A node with room goes on, and an error has the remedy."""
    one, other = cluster.node("a"), cluster.node("b")
    given = [*one.add("pod")]
    right = cluster.store.documents[POOL, "net"]
    cluster.store.documents[POOL, "net"] = replace(right, body=right.body | typo, version="edited")
    if said:
        assert re.search(said, other.refused("ADD", "x")[1])
    else:
        given += other.add("x")
    given += one.add("more")
    clock[0] += HEARTBEAT
    del cluster.store.documents[POOL, "net"]
    given += [node.add(f"{n}")[0] for node in (one, other) for n in range(20)]
    assert len(set(given)) == len(given)
    assert cluster.store.bodies(POOL)["net"] == right.body


@pytest.mark.parametrize(
    ("edit", "ipam"),
    [
        ({"blockSize": 32}, {"subnet": "10.0.0.0/24", "cluster": {**SHARED, "blockSize": 32}}),
        ({"subnets": ["10.0.0.128/25"]}, {"subnet": "10.0.0.128/25", "cluster": SHARED}),
        (
            {"subnets": ["10.0.0.0/16"], "blockSize": 8},
            {"subnet": "10.0.0.0/16", "cluster": {**SHARED, "blockSize": 8}},
        ),
    ],
    ids=["size", "subnet", "both"],
)
def test_a_layout_that_was_edited_with_the_configuration(
    cluster: Cluster, edit: dict[str, Any], ipam: dict[str, Any]
) -> None:
    """Blocks of both layouts would contain one address twice.  Without blocks, the edited layout counts."""
    one, other = cluster.node("a"), cluster.node("b", **ipam)
    for n in range(40):
        one.add(f"p{n}")
    right = cluster.store.documents[POOL, "net"]
    cluster.store.documents[POOL, "net"] = replace(right, body=right.body | edit, version="edited")
    code, said = other.refused("ADD", "x")
    assert (code, "write the former values back into all configurations" in said) == (7, True), said
    assert other.refused("STATUS")[0] == 7
    assert set(cluster.owners().values()) == {"a"}
    for key in [key for key in cluster.store.documents if key[0] == BLOCK]:
        del cluster.store.documents[key]
    assert other.add("x")
    assert not PoolLayout.of(cluster.store.documents[POOL, "net"]).is_edited


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"blockSize": 64, "sticky": "64-127"}, "blocks of network net have 16 host numbers .block [0-9]+ in the"),
        ({}, "ipam.cluster.sticky is not set: host number [0-9]+ of network net is reserved for ns/web-0:net1"),
        ({"sticky": "0-15"}, "sticky 0-15: host number [0-9]+ of network net is reserved for ns/web-0:net1"),
    ],
)
def test_a_layout_is_not_written_again_with_other_blocks(cluster: Cluster, about: dict[str, Any], said: str) -> None:
    """Errors advise to remove a layout.  Blocks of two sizes would contain one address twice."""
    had = {**SMALL, "sticky": 60, "cluster": {**SHARED, "sticky": "64-127"}}
    one = cluster.node("a", **had)
    given = [*one.add("web-0", *of("web-0")), *(one.add(f"p{n}x", *of(f"p{n}x"))[0] for n in range(20))]
    del cluster.store.documents[POOL, "net"]
    code, why = cluster.node("b", **had | {"cluster": SHARED | about}).refused("ADD", "x", *of("x"))
    assert (code, bool(re.search(said, why))) == (7, True), why
    assert (POOL, "net") not in cluster.store.documents
    given += cluster.node("b", **had).add("x", *of("x"))
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("numbers", [(0, 15), (2, 20)], ids=["all", "some"])
def test_a_layout_with_names_numbers_in_a_block(cluster: Cluster, numbers: tuple[int, int]) -> None:
    """The network had no sticky, so a name's number could be an address of a pod in the block."""
    one = cluster.node("a")
    given = one.add("p0")
    del cluster.store.documents[POOL, "net"]
    low, high = (one.mine.giving[0] * 16 + number for number in numbers)
    if low > 200:
        low, high = low - 16, high - 16
    named = {**SMALL, "sticky": 60, "cluster": {**SHARED, "sticky": f"{low}-{high}"}}
    code, why = cluster.node("b", **named).refused("ADD", "x", *of("web-0"))
    assert (code, "node a has host numbers" in why) == (7, True), why
    assert cluster.node("b").add("x", *of("web-0")) != given


def test_one_machine_with_two_names(cluster: Cluster, clock: list[float], tmp_path: Path) -> None:
    """The policy file names it so, and then otherwise, and back: no block is used under both names."""
    one = cluster.node("old")
    cluster.store.machines["new"] = Machine("new", "uid of new", cluster.store.clock)
    text, given = one.node_file.read_text(), dict[str, str]()
    for turn in range(4):
        one.node_file.write_text(text.replace('"old"', '"new"') if turn % 2 else text)
        clock[0] += HEARTBEAT
        for number in range(3):
            (given[f"{turn}{number}"],) = one.add(f"{turn}{number}")
    assert len(set(given.values())) == 12
    other = cluster.node("other")
    theirs = {other.add(f"{n}")[0] for n in range(100)}
    assert theirs.isdisjoint(given.values())
    refused = other.refused("ADD", "x", runtimeConfig={"ips": [given["00"]]})
    assert refused[0] == 102
    assert "which node old owns; request another, or attach there" in refused[1]


def test_an_unreadable_document_of_an_empty_block(cluster: Cluster, clock: list[float]) -> None:
    """It was not removed, so the node neither gives the block up nor takes the store for restored."""
    node = cluster.node("a")
    node.add("pod")
    node.call("DEL", "pod")
    (index,) = node.mine.giving
    found = cluster.store.read(BLOCK, f"net.{index}")
    assert found
    cluster.store.replace(found, {**found.body, "suspect": "yes"})
    clock[0] += HEARTBEAT
    (report,) = kept(node)
    assert f"block net.{index} in the cluster's backend cannot be read" in report.problem
    assert (node.mine.giving, node.mine.restored, report.log) == ((index,), 0, ())
