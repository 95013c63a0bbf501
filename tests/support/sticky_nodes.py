"""Nodes of a cluster with numbers reserved for names, and each node's numbers."""

from typing import Any

from support.cluster_nodes import SHARED, Cluster, Node
from support.ipam_calls import of

from ipam.cluster import BLOCK, copies, node_blocks
from ipam.cluster.node_blocks import NodeBlocks
from ipam.cluster.reconcile.reconcile import RoundReport, rounds
from ipam.stores import none_gone

# 16 numbers for names, and 15 blocks for all others.
ASIDE = {"subnet": "10.0.0.0/24", "sticky": 60, "cluster": SHARED | {"sticky": "64-79"}}
WEB = of("web-0")


def node(it: Cluster, name: str, **more: Any) -> Node:
    return it.node(name, **ASIDE | more)


def keep(node: Node, *, due_only: bool = False) -> list[RoundReport]:
    """Run the rounds of hpn node and the agent."""
    node.enter()
    return list(rounds(copies.networks([node.state / "ipam"])[0], none_gone, due_only=due_only))


def number(address: str) -> int:
    return int(address.rpartition(".")[2])


def named(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """Return each name's node and number, from the backend."""
    bodies = cluster.store.bodies(BLOCK).values()
    return {body["whose"]: (body["node"], body["index"]) for body in bodies if body.get("whose")}


def numbers(node: Node) -> NodeBlocks:
    found = node_blocks.read(node.dir / "sticky")
    assert found
    return found
