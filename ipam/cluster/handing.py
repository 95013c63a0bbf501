"""Numbers for names that this node gives up, so that the names may have them elsewhere: a round (keeping.py).

A number is given up as soon as no attachment here has an address of it.  As with blocks it is noted first, under the
lock of the leases, that nothing is given from it any more; then the store is told.  The number stays the name's.
"""

from dataclasses import replace
from pathlib import Path

from cni.protocol.errors import CniError
from ipam.cluster import Document, held
from ipam.cluster.blocks import Block
from ipam.cluster.counting import spans
from ipam.cluster.held import HELD, LOST, RETURNING, Held, HeldBlock, may_look
from ipam.cluster.keeping import Round
from ipam.cluster.named import Named
from ipam.cluster.opening import opened
from ipam.pool import Pool
from ipam.stores import Book, Store, open_in


class Handing(Round):
    """A round for the numbers that are set aside; its directory is theirs (named.py), its store the network's."""

    def give_up(self, mine: Held) -> None:
        """Give up the numbers that no attachment here has; the caller has ``blocks.lock``, and has looked."""
        self._given_back(self._store.look(lambda book: self._settled(mine, Pool(()), book)))

    def _settled(self, mine: Held, _known: Pool, book: Book) -> Held:
        for block in mine.blocks:
            if _is_used(mine, block, book):  # guard: in-use
                continue
            if block.state == HELD and block.node == mine.node:
                mine = mine.having(replace(block, state=RETURNING))
            elif block.state == LOST:
                mine = mine.without(block.index)
        held.write(self._directory, mine)
        return mine

    def _let_go(self, mine: Held, block: HeldBlock, document: Document, known: Block) -> bool:
        """Write into the number's document that no node has it; false if that has changed meanwhile."""
        # An address that was never proven to be nobody's is probed for by the next node.
        # guard below: unproven (_is_doubtful(mine, block) -> False)
        new = replace(known.freed(int(self._shared.documents.now())), taken=_is_doubtful(mine, block))
        return bool(self._shared.documents.replace(document, new.as_json()))

    def _claim_ahead(self, _mine: Held, _known: Pool) -> None:
        """Nobody knows which name is next."""


def give_up(network: Named, log: list[str]) -> None:
    """Give up what no attachment has here, after a look; it is fine if the store is not there, or others are at it."""
    store = open_in(Path(network.network.directory).parent, network.network.name, log)
    try:
        with held.lock(network.directory, 0):
            mine = held.read(network.directory)
            if mine and not may_look(mine) and mine.looked >= mine.asked:
                Handing(Path(network.directory), store, opened(network.cluster.store)).give_up(mine)
    except CniError as e:
        log.append(f"network {network.name}: numbers that no pod has here could not be given up: {e.msg}")


def is_due(mine: Held, store: Store) -> bool:
    """Whether such a round has something to do: the last look is long ago, or there is a number to give up."""
    return may_look(mine) or store.look(lambda book: any(not _is_used(mine, block, book) for block in mine.blocks))


def _is_used(mine: Held, block: HeldBlock, book: Book) -> bool:
    return any(book.count(span) for span in spans(mine, block.index))


def _is_doubtful(mine: Held, block: HeldBlock) -> bool:
    """Whether the number had another owner that may use it still, and was not proven for every subnet."""
    return block.taken and len(block.tried) < len(list(spans(mine, block.index)))
