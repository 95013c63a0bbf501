"""Refusals where nodes share addresses: the message has key, value and remedy, and nothing is held."""

import json
from typing import Any

import pytest
from support.cluster_nodes import SHARED, SMALL, Cluster, Node

from base.state import durable, policy
from ipam.cluster import BLOCK, POOL, node_blocks


def gave_nothing(node: Node) -> bool:
    return not node.has_lines() or not node.leases()


@pytest.mark.parametrize(
    ("ipam", "said"),
    [
        ({"cluster": {}}, "ipam.cluster.backend is missing"),
        ({"cluster": {"backend": "consul"}}, 'ipam.cluster.backend "consul"'),
        ({"cluster": SHARED | {"blockSize": 0}}, "ipam.cluster.blockSize 0"),
        ({"cluster": SHARED | {"blockSize": 4097}}, "ipam.cluster.blockSize 4097"),
        ({"cluster": SHARED | {"blockSize": "16"}}, 'ipam.cluster.blockSize "16"'),
        ({"cluster": SHARED | {"blockSize": 254}}, "ipam.cluster.blockSize 254: ipam has 253 addresses, less than one"),
        ({"cluster": True}, "ipam.cluster true"),
    ],
)
def test_a_configuration_that_cannot_be(cluster: Cluster, ipam: dict[str, Any], said: str) -> None:
    one = cluster.node("node1", **SMALL | ipam)
    code, words = one.refused("ADD", "a")
    assert (code, said in words) == (7, True), words
    assert cluster.calls() == []


def test_a_configuration_names_no_server(cluster: Cluster) -> None:
    one = cluster.node("node1", **SMALL | {"cluster": SHARED | {"server": "https://elsewhere"}})
    assert one.refused("ADD", "a") == (
        2,
        'ipam.cluster.server "https://elsewhere": unknown key; correct or remove it, or set "strict": false ()',
    )


def test_overlapping_subnets_in_one_configuration(cluster: Cluster) -> None:
    ranges = [[{"subnet": "10.0.0.0/16", "rangeStart": "10.0.9.0"}], [{"subnet": "10.0.1.0/24"}]]
    code, said = cluster.node("node1", ranges=ranges, cluster=SHARED).refused("ADD", "a")
    assert code == 7
    assert "ranges[1][0].subnet 10.0.1.0/24 and ipam.ranges[0][0].subnet 10.0.0.0/16 overlap" in said
    assert cluster.calls() == []


@pytest.mark.parametrize("is_new", [True, False])
def test_another_block_size(cluster: Cluster, is_new: bool) -> None:
    cluster.node("node1").add("a")
    other = cluster.node("node2" if is_new else "node1", **SMALL | {"cluster": SHARED | {"blockSize": 32}})
    code, said = other.refused("ADD", "b")
    assert code == 7
    assert "ipam.cluster.blockSize 32: the blocks of network net have 16 host numbers" in said
    assert "set blockSize 16, or give the network another name" in said
    assert len(cluster.owners()) == 1


def test_overlapping_subnets_of_two_nodes(cluster: Cluster) -> None:
    cluster.node("node1").add("a")
    inside = cluster.node("node2", subnet="10.0.0.128/25", cluster=SHARED)
    code, said = inside.refused("ADD", "b")
    assert code == 7
    overlap = "subnet 10.0.0.128/25 overlaps 10.0.0.0/24, which network net has in this cluster"
    assert f"{overlap}, and begins at another address" in said
    around = cluster.node("node3", subnet="10.0.0.0/16", cluster=SHARED)
    assert around.add("c")
    wide = cluster.node("node4", subnet="10.0.200.0/24", cluster=SHARED)
    assert "overlaps 10.0.0.0/16" in wide.refused("ADD", "d")[1]
    assert gave_nothing(inside)
    assert gave_nothing(wide)
    assert cluster.store.bodies(POOL)["net"]["subnets"] == ["10.0.0.0/16"]


def test_a_subnet_that_is_new_is_asked_about_once(cluster: Cluster) -> None:
    one = cluster.node("node1")
    one.add("a")
    cluster.calls()
    more = cluster.node("node1", ranges=[[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.5.0.0/24"}]], cluster=SHARED)
    assert len(more.add("b")) == 2
    assert cluster.calls() == ["read net", "listed", "replace net"]
    more.add("c")
    one.add("d")
    assert cluster.calls() == []
    assert cluster.store.bodies(POOL)["net"]["subnets"] == ["10.0.0.0/24", "10.5.0.0/24"]


def test_a_new_subnet_that_does_not_fit_gives_nothing(cluster: Cluster) -> None:
    cluster.node("node2", subnet="10.5.0.0/16", cluster=SHARED).add("x")
    one = cluster.node("node1")
    one.add("a")
    bad = cluster.node("node1", ranges=[[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.5.8.0/24"}]], cluster=SHARED)
    assert "subnet 10.5.8.0/24 overlaps 10.5.0.0/16" in bad.refused("ADD", "b")[1]
    assert set(one.leases()) == {"a:net1"}


def test_another_store_in_the_configuration(cluster: Cluster) -> None:
    cluster.node("node1").add("a")
    cluster.calls()
    other = cluster.node("node1", **SMALL | {"cluster": {"backend": "kubernetes"}})
    code, said = other.refused("ADD", "b")
    assert code == 7
    assert "ipam.cluster.backend 'kubernetes': this node has blocks of the network from 'etcd'" in said
    assert f"{other.dir}/blocks" in said
    assert cluster.calls() == []


def test_another_clusters_store(cluster: Cluster, clock: list[float]) -> None:
    one = cluster.node("node1")
    one.add("a")
    cluster.store.cluster = "cluster-2"
    one.add("b")
    clock[0] += node_blocks.HEARTBEAT
    for name in "cde":
        code, said = one.refused("ADD", name)
        assert code == 7
        assert "it belongs to cluster cluster-2, and this node's blocks" in said
        assert f"to cluster cluster-1; correct backends.etcd in {policy.FILE}" in said
    cluster.store.cluster = "cluster-1"
    assert one.add("f")
    cluster.calls()
    assert one.add("g")
    assert cluster.calls() == []


@pytest.mark.parametrize("text", [b"", b"{", b"\0" * 512, json.dumps({"schema": 1, "sha256": "", "body": {}}).encode()])
def test_a_damaged_file_of_blocks(cluster: Cluster, text: bytes) -> None:
    one = cluster.node("node1")
    one.add("a")
    owned = one.mine.giving
    (one.dir / node_blocks.FILE).write_bytes(text)
    code, said = one.refused("ADD", "b")
    assert code == 108
    assert f"moved to {one.dir}/quarantine/blocks.0: try again" in said
    assert (one.dir / "quarantine" / "blocks.0").read_bytes() == text
    # The backend lists its blocks now; the leases in them are unknown.
    code, said = one.refused("ADD", "b")
    assert "/run/netns/p" in said
    assert (one.mine.giving, [b.taken for b in one.mine.blocks]) == (owned, [True])


def test_another_networks_file_of_blocks(cluster: Cluster) -> None:
    one = cluster.node("node1")
    one.add("a")
    body = durable.read(one.dir / node_blocks.FILE)
    assert body
    durable.write(one.dir / node_blocks.FILE, body | {"network": "other"})
    code, said = one.refused("ADD", "b")
    assert code == 108
    assert "blocks is of network other, not net; moved to" in said


def test_a_document_that_nobody_can_read(cluster: Cluster) -> None:
    """It is not free: a claim finds the free block, and there is none after that."""
    one, other = cluster.node("node1"), cluster.node("node2")
    for n in [n for n in range(16) if n != 4]:
        cluster.store.create(BLOCK, f"net.{n}", "net", {"network": "net", "index": "?"})
    assert one.add("a")[0] in [f"10.0.0.{n}" for n in range(64, 80)]  # of block 4
    assert other.refused("ADD", "x")[0] == 103
    assert cluster.node("node3").refused("STATUS")[0] == 50
    cluster.store.documents = {k: v for k, v in cluster.store.documents.items() if k[1] in ("net", "net.7")}
    for n in range(20):
        cluster.node("node4").add(f"{n}")
    assert len(cluster.node("node4").mine.giving) == 2
