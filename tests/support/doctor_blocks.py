"""The cases of doctor_cases.py about blocks of a network that the cluster's nodes share; CASES has all."""

import time
from collections.abc import Iterator
from ipaddress import ip_interface

from support.doctor_cases import ERROR, WARNING, case
from support.doctor_node import Node
from support.doctor_rails import CASES

from base.protocol.spec import Key
from base.state import durable
from ctl.doctor.model import Severity
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import HELD, LOST, NodeBlocks, OwnedBlock
from ipam.stores import Owner, access
from ipam.stores.holdings import Lease

__all__ = ["CASES"]
# Node.lease allocates 10.9.0.2 first.
TAKEN, FREE = 2, 3


def hold(node: Node, *indexes: int, state: str = HELD, seen: float = 0) -> None:
    """Write blocks of one host number each, last confirmed so many seconds ago."""
    blocks = tuple(OwnedBlock(index, f"uid-{index}", "node1", state) for index in indexes)
    about = NodeBlocks(
        "net", "etcd", "cluster-1", "node1", "", 1, ("10.9.0.0/24",), blocks, looked=int(time.time() - seen)
    )
    node_blocks.write(node.at("var/lib/cni/hpn/ipam/net"), about)


@case
def lease_unproven(node: Node) -> Iterator[Severity]:
    node.lease("1")
    store = access.open_in(node.at("var/lib/cni/hpn/ipam"), "net", [])
    key = Key("imported", "net1")
    assert store.adopt([Lease(Owner(key), (ip_interface("10.9.0.9/24"),), durable.boot_id(), "")]) == []
    yield WARNING
    store.release(key)


@case
def blocks_unseen(node: Node) -> Iterator[Severity]:
    hold(node, FREE, seen=1900)
    yield ERROR
    hold(node, FREE, seen=1700)


@case
def block_lost(node: Node) -> Iterator[Severity]:
    hold(node, FREE, state=LOST)
    yield ERROR
    hold(node)


@case
def blocks_full(node: Node) -> Iterator[Severity]:
    node.lease("1")
    hold(node, TAKEN)
    yield WARNING
    hold(node, TAKEN, FREE)
