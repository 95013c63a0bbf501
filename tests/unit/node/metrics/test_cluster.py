"""Blocks of shared networks on the page of metrics."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path

from prometheus_client import Metric

from base.protocol.result import Ip
from base.protocol.spec import Key
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import HELD, LOST, RETURNING, NodeBlocks, OwnedBlock
from ipam.ranges import Span
from ipam.stores import Owner
from ipam.stores.access import open_in
from node.metrics import page

FIRST = int(ip_address("10.0.0.0"))
MINE = NodeBlocks("net", "etcd", "cluster-1", "node1", "", 4, ("10.0.0.0/24",), looked=1_800_000_000)
BLOCKS = [
    OwnedBlock(1, "a", "node1"),
    OwnedBlock(2, "b", "node1"),
    OwnedBlock(3, "c", "node0"),
    OwnedBlock(4, "d", "node1", LOST),
    OwnedBlock(5, "e", "node1", RETURNING),
]


def made(metrics: "list[Metric]") -> dict[tuple[str, ...], float]:
    return {(one.name, *one.labels.values()): one.value for metric in metrics for one in metric.samples}


def test_what_a_node_has(tmp_path: Path) -> None:
    node_blocks.write(tmp_path / "net", MINE.having(*BLOCKS))
    for number in (5, 6, 200):
        ips = (Ip(ip_interface((FIRST + number, 24)), None),)
        owner = Owner(Key(f"c{number}", "net1"))
        open_in(tmp_path, "net", []).reserve(owner, lambda _, ips=ips: ips, ((Span(4, FIRST + 1, FIRST + 254),),))
    found = made(list(page.blocks([tmp_path, tmp_path / "none"], {"net": 2, "gone": 1})))
    assert found == {
        ("hpn_cluster_blocks", "net", HELD): 2,
        ("hpn_cluster_blocks", "net", "draining"): 1,
        ("hpn_cluster_blocks", "net", LOST): 1,
        ("hpn_cluster_blocks", "net", RETURNING): 1,
        ("hpn_cluster_room", "net"): 6,
        ("hpn_cluster_pool_blocks", "net"): 64,
        ("hpn_cluster_suspects", "net"): 2,
        ("hpn_cluster_looked_timestamp_seconds", "net"): 1_800_000_000,
    }


def test_a_room_that_is_unknown_is_not_an_empty_one(tmp_path: Path) -> None:
    """A node with reserved numbers only, or one that does not know the ranges, would else count as full for ever."""
    node_blocks.write(tmp_path / "a", replace(MINE, network="a", sticky="256-511"))
    node_blocks.write(tmp_path / "b", replace(MINE, network="b").having(BLOCKS[0]))
    found = made(list(page.blocks([tmp_path], {})))
    assert [key for key in found if key[0] in ("hpn_cluster_room", "hpn_cluster_pool_blocks")] == []
    assert found["hpn_cluster_blocks", "b", HELD] == 1
    assert found["hpn_cluster_looked_timestamp_seconds", "a"] == 1_800_000_000


def test_a_node_without_shared_networks(tmp_path: Path) -> None:
    assert made(list(page.blocks([tmp_path], {}))) == {}
