"""Numbers for names that this node gives up, so that the names may have them elsewhere: a round (reconcile.py).

A number is given up as soon as no attachment here has an address of it.  As with blocks it is noted first, under the
lock of the leases, that nothing is given from it any more; then the store is told.  The number stays the name's.
"""

from dataclasses import replace
from pathlib import Path

from base.protocol.errors import CniError
from ipam.cluster import Document
from ipam.cluster.backends.backend import opened
from ipam.cluster.reconcile.reconcile import Round
from ipam.cluster.rules.counting import spans
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import Numbers
from ipam.cluster.state import node_blocks
from ipam.cluster.state.node_blocks import HELD, LOST, RETURNING, NodeBlocks, OwnedBlock, heartbeat_is_due
from ipam.pool import Pool
from ipam.stores import Book, Store
from ipam.stores.access import open_in


class NumberRound(Round):
    """A round for the numbers that are set aside; its directory is theirs (network.py), its store the network's."""

    def give_up(self, mine: NodeBlocks) -> None:
        """Give up the numbers that no attachment here has; the caller has ``blocks.lock``, and has looked."""
        self._given_back(self._store.look(lambda book: self._settled(mine, Pool(()), book)))

    def _settled(self, mine: NodeBlocks, _known: Pool, book: Book) -> NodeBlocks:
        for block in mine.blocks:
            if _is_used(mine, block, book):  # guard: in-use
                continue
            if block.state == HELD and block.node == mine.node:
                mine = mine.having(replace(block, state=RETURNING))
            elif block.state == LOST:
                mine = mine.without(block.index)
        node_blocks.write(self._directory, mine)
        return mine

    def _let_go(self, mine: NodeBlocks, block: OwnedBlock, document: Document, known: Block) -> bool:
        """Write into the number's document that no node has it; false if that has changed meanwhile."""
        # An address that was never proven to be nobody's is probed for by the next node.
        # guard below: unproven (_is_doubtful(mine, block) -> False)
        new = replace(known.freed(int(self._shared.documents.now())), taken=_is_doubtful(mine, block))
        return bool(self._shared.documents.replace(document, new.to_json()))

    def _claim_ahead(self, _mine: NodeBlocks, _known: Pool) -> None:
        """Nobody knows which name is next."""


def give_up(network: Numbers, log: list[str]) -> None:
    """Give up what no attachment has here, after a look; it is fine if the store is not there, or others are at it."""
    store = open_in(Path(network.parent.directory).parent, network.parent.name, log)
    try:
        with node_blocks.lock(network.directory, 0):
            mine = node_blocks.read(network.directory)
            if mine and not heartbeat_is_due(mine) and mine.looked >= mine.asked:
                NumberRound(Path(network.directory), store, opened(network.cluster.store)).give_up(mine)
    except CniError as e:
        log.append(f"network {network.name}: numbers that no pod has here could not be given up: {e.msg}")


def is_due(mine: NodeBlocks, store: Store) -> bool:
    """Whether such a round has something to do: the last look is long ago, or there is a number to give up."""
    return heartbeat_is_due(mine) or store.look(
        lambda book: any(not _is_used(mine, block, book) for block in mine.blocks)
    )


def _is_used(mine: NodeBlocks, block: OwnedBlock, book: Book) -> bool:
    return any(book.count(span) for span in spans(mine, block.index))


def _is_doubtful(mine: NodeBlocks, block: OwnedBlock) -> bool:
    """Whether the number had another owner that may use it still, and was not proven for every subnet."""
    return block.taken and len(block.tried) < len(list(spans(mine, block.index)))
