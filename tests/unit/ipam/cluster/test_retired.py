"""A network that is retired, and a pool layout that a mistake changed: each leaves the store, and nothing is allocated
twice."""

from pathlib import Path

import pytest
from support.cluster_nodes import SHARED, SMALL, Cluster, Node
from support.documents import Fault, every
from support.ipam_calls import of
from support.sticky_nodes import ASIDE

from ipam import sandboxes
from ipam.cluster import BLOCK, GRID, Machine, Report, node_blocks
from ipam.cluster.backends import objects
from ipam.cluster.node_blocks import HEARTBEAT
from ipam.cluster.reconcile import reconcile


def kept(node: Node) -> list[Report]:
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
    cluster.store.create(GRID, "net", "net", {"network": "net", "blockSize": 16, "subnets": ["10.0.0.0/24"]})
    clock[0] += HEARTBEAT
    (report,) = kept(node)
    assert any("was removed from the store, and has no lease: this node gives it up" in line for line in report.log)
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
    assert f"block {name} in the cluster's store cannot be read: its suspect is 'yes'" in report.problem
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
    assert "if 10.0.0.0/16 was a mistake and no pod uses it, remove the pool layout net from the store" in said
    del cluster.store.documents[GRID, "net"]
    given = [cluster.node(name, **right).add(f"{name}{n}")[0] for name in ("b", "a", "c") for n in range(12)]
    assert len(set(given)) == 36
    assert all(address.startswith("10.0.4.") for address in given)
    assert cluster.store.bodies(GRID)["net"]["subnets"] == ["10.0.4.0/24"]


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


@pytest.mark.parametrize("wrong", [3600, -3600, 7300])
def test_a_clock_that_is_an_hour_wrong(cluster: Cluster, clock: list[float], wrong: int) -> None:
    """Only the backend's times count between nodes: it checks earlier, and nobody loses a block by it."""
    one, two = cluster.node("a"), cluster.node("b")
    (kept_address,) = one.add("pod")
    clock[0] += wrong
    cluster.store.faults = every("", Fault.UNREACHABLE)
    given = {one.add(f"p{n}")[0] for n in range(5)}
    cluster.store.faults = every("", None)  # type: ignore[arg-type]
    theirs = set[str]()
    while (answer := two.call("ADD", f"t{len(theirs)}")).get("ips"):
        theirs.add(answer["ips"][0]["address"].partition("/")[0])
    assert answer["code"] == 103
    assert theirs.isdisjoint({kept_address, *given})
    assert one.add("pod") == (kept_address,)
    assert node_blocks.read(one.dir)


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
    assert f"block net.{index} in the cluster's store cannot be read" in report.problem
    assert (node.mine.giving, node.mine.restored, report.log) == ((index,), 0, ())
