"""Claim the blocks of addresses that were allocated before the network was shared: all of these blocks, or none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from base.kernel import budget
from base.protocol.errors import AddressHeld, RecordUnreadable
from base.protocol.result import Address
from base.state import durable
from ipam.cluster import BLOCK, node_blocks
from ipam.cluster.backends.backend import Backend, opened
from ipam.cluster.node_blocks import NodeBlocks
from ipam.cluster.reconcile.claim_block import BlockClaimer
from ipam.cluster.reconcile.sync import blocks_of
from ipam.cluster.rules import block_math
from ipam.cluster.rules.documents import Block, block_name
from ipam.cluster.rules.network import Network
from ipam.ranges import whole
from ipam.stores import LOCK_TIMEOUT
from ipam.stores.holdings import Contents

# Addresses, and the owner of each, in words.
Given = Mapping[Address, str]


@dataclass(frozen=True)
class Moved:
    """The claimed blocks by index; or, in words, the conflicts, and then nothing changed."""

    blocks: tuple[int, ...]
    conflicts: tuple[str, ...] = ()


def conflicts(network: Network, given: Given, others: Given, contents: Contents) -> Iterator[str]:
    """Yield, in words, each reason why blocks cannot cover these addresses.  Pure.

    An address may be in no subnet, or in a block with addresses of other nodes.  ``contents`` is what this node holds
    of the network: the subnets of its parents are not in the configuration.
    """
    parents = zip(contents.sets, contents.parents, strict=False)
    places = [span for spans, parent in parents if parent for span in spans]
    places += [whole(r.subnet) for s in network.pool.sets for r in s.ranges]
    for address, whose in given.items():
        if not any(address in place for place in places):
            yield f"{address} of {whose} is in no subnet of {network.name}; add its range"
    blocks = blocks_of(network, given)
    for address, whose in others.items():
        index = block_math.block_of(network.pool.sets, network.cluster.size, address)
        if index in blocks:
            yield (
                f"{address} of {whose} is on another node, and in block {index} like {blocks[index]}; "
                "delete the pod of one of them"
            )


def enter(network: Network, given: Given, log: list[str], *, dry_run: bool) -> Moved:
    """Claim the blocks of these addresses, except those that this node owns.

    Raises InvalidConfig, TryAgain, Unreachable, BackendRefused, RecordUnreadable, IoFailure; then nothing changed, or
    the message names the change.
    """
    wanted = blocks_of(network, given)
    budget.begin(is_patient=True)
    with node_blocks.lock(network.directory, LOCK_TIMEOUT):
        backend, before = opened(network.cluster.backend), node_blocks.read(network.directory)
        wrong = tuple(_anothers(network, backend, before, wanted))
        if wrong or dry_run:
            return Moved(() if wrong else tuple(wanted), wrong)
        claimer = BlockClaimer.begin(network, log)
        try:
            for index, address in wanted.items():
                claimer.claim_one(index, address)
        except BaseException as e:
            _undo(network, claimer, before)
            if isinstance(e, AddressHeld):
                return Moved((), (e.msg,))
            raise
    return Moved(tuple(wanted))


def leave(directory: Path, network: str, *, dry_run: bool) -> NodeBlocks:
    """Make the network this node's own: forget its blocks here, and return what the file held.

    Other nodes cannot take the blocks while the backend knows this node.  Raises RecordUnreadable, IoFailure, TryAgain.
    """
    with node_blocks.lock(directory, LOCK_TIMEOUT):
        has = node_blocks.read(directory)
        if has is None:
            raise RecordUnreadable(
                f"{directory}/{node_blocks.FILE} does not exist, so {network} is this node's own already"
            )
        if not dry_run:
            durable.remove(directory / node_blocks.FILE)
        return has


def _anothers(
    network: Network, backend: Backend, before: NodeBlocks | None, wanted: Mapping[int, Address]
) -> Iterator[str]:
    """Yield, in words, each of the blocks that another node owns."""
    own = {block.uid for block in before.blocks} if before else set[str]()
    for document in backend.documents.listed(BLOCK, network.name):
        block = Block.of(document)
        if block.index in wanted and document.uid not in own and block.node != backend.node:
            yield f"{wanted[block.index]} is in block {block.index}, which node {block.node} owns; delete its pod here"


def _undo(network: Network, claimer: BlockClaimer, before: NodeBlocks | None) -> None:
    """Undo the claims; no address was allocated from them."""
    old = {block.index for block in before.blocks} if before else set[int]()
    new = [block for block in claimer.mine.blocks if block.index not in old]
    for block in new:
        document = claimer.backend.documents.read(BLOCK, block_name(network.name, block.index))
        if document and document.uid == block.uid:
            claimer.backend.documents.remove(document)
    mine = claimer.mine.without(*(block.index for block in new))
    if before or mine.blocks:
        node_blocks.write(network.directory, mine)
    else:
        durable.remove(Path(network.directory) / node_blocks.FILE)
