"""That no block is free: a node remembers for some seconds what the store has said, so that an ADD which is refused, or
STATUS, costs the store nothing meanwhile.

It is a member of what the node has (held.py).  Room on this node comes first, and the node's next block or one that it
gives back ends it.
"""

import hashlib
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cni.protocol.errors import CniError
from ipam.cluster import held
from ipam.cluster.blocks import Block
from ipam.cluster.giving import Network
from ipam.cluster.held import EXHAUSTED, Exhausted
from ipam.ranges import Span


def of(wanted: Sequence[Span], others: Sequence[Block]) -> Exhausted:
    """What is known from now on: none of those is to be had.  Nodes ask again at different times."""
    now = int(time.time())
    until = now + EXHAUSTED // 2 + secrets.randbelow(EXHAUSTED)  # guard: not-all-at-once ((EXHAUSTED))
    return Exhausted(digest(wanted), len(others), len({block.node for block in others}), now, until)


def digest(wanted: Sequence[Span]) -> str:
    # guard below: of-these-ranges ((span.first, span.last) -> 0)
    return hashlib.sha256(repr([(span.first, span.last) for span in wanted]).encode()).hexdigest()[:16]


def in_words(network: Network, known: Exhausted) -> str:
    """In words, that no block is free, and how old that knowledge is."""
    age = int(time.time()) - known.at
    return (
        f"all blocks of network {network.name} that have some are taken: {known.blocks} of {network.cluster.size} host "
        f"numbers, by {known.nodes} nodes, as the store said {age} s ago; it is asked again in "
        f"{max(0, known.until - known.at - age)} s (hpn ipam show --cluster); widen the ranges, or release what no "
        "container uses"
    )


def remember(network: Network, found: Exhausted) -> None:
    """Note it on this node, if it has a file and nobody is at it."""
    with suppress(CniError), held.lock(network.directory, 0):
        if mine := held.read(network.directory):
            held.write(network.directory, replace(mine, exhausted=found))
