"""What a node does about its blocks while nobody waits: one round for one network.

It tells the store that the node lives, answers for its blocks and sees what became of them (heartbeat.py), gives back
what stays empty and what another machine of its name has left, and claims a block before there is no room.

A block is given back in two steps.  Under the lock of the leases it is noted that nothing is given from it any more.
Then its document is removed, and after that it is forgotten.  Whatever stops this in between, the next round goes on.
"""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from base.protocol.errors import InvalidConfig, PoolExhausted
from ipam.cluster import BLOCK, Document
from ipam.cluster.backends.backend import Shared
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.claim_block import Claimer
from ipam.cluster.reconcile.heartbeat import Heartbeat, found, is_anothers
from ipam.cluster.rules import ownership
from ipam.cluster.rules.counting import counted, pool, short
from ipam.cluster.rules.documents import Block, block_name
from ipam.cluster.rules.network import Need, Network
from ipam.cluster.state import node_blocks
from ipam.cluster.state.node_blocks import GRACE, RETURNING, NodeBlocks, OwnedBlock, heartbeat_is_due
from ipam.pool import Cluster, Pool
from ipam.stores import LOCK_TIMEOUT, Book, Store


class Round:
    """A round for the network of a directory, whose leases the store has.  ``said`` gets what an operator should know,
    ``suspected`` is how many of its blocks somebody took for a dead node's."""

    def __init__(self, directory: Path, store: Store, shared: Shared) -> None:
        self._directory, self._store, self._shared = directory, store, shared
        self.said, self.suspected = list[str](), 0

    def keep(self) -> None:
        """Do it.  Raises InvalidConfig if the node's blocks are another cluster's; Unreachable, StoreRefused, TryAgain,
        RecordUnreadable, IoFailure."""
        self._store.collect(None)  # what is free by now makes blocks empty
        with node_blocks.lock(self._directory, LOCK_TIMEOUT):
            mine = node_blocks.read(self._directory)
            if mine is None:
                return
            seen = self._seen(mine)
            known = pool(seen, self._store.contents().sets)
            settled = self._store.look(lambda book: self._settled(seen, known, book))
            self._claim_ahead(self._given_back(settled), known)

    def _seen(self, mine: NodeBlocks) -> NodeBlocks:
        """What the store says that the node has."""
        documents = self._shared.documents
        identity = documents.identity()
        if mine.identity != identity:  # guard: another-cluster
            raise InvalidConfig(
                f"{self._directory}/{node_blocks.FILE}: these blocks are of cluster {mine.identity}, and the store "
                f"{mine.store!r} is of cluster {identity}; correct stores.{mine.store} in the policy file, or, if the "
                "node was moved, delete the network's pods on it and then the file"
            )
        documents.keep_alive(self._shared.node, GRACE)
        us = self._shared.machine()
        look = Heartbeat(documents, us, self.said)
        mine = look.at(mine)
        mine = replace(mine, asked=mine.looked)
        self.suspected = look.suspected
        reclaim.free_left(documents, us, look.left, self.said)
        return mine

    def _settled(self, mine: NodeBlocks, known: Pool, book: Book) -> NodeBlocks:
        """With what is to be given back marked, and what is another's forgotten once no pod has an address of it.

        It is on disk before anybody else can choose an address.
        """
        now, have = int(time.time()), counted(mine, known, book.count)
        for block in mine.blocks:
            if block.index in mine.giving:
                # guard below: in-use (have.used[block.index] -> 0)
                mine = mine.having(ownership.seen_idle(block, have.used[block.index], now))
            elif block.state != RETURNING and not have.used[block.index]:  # guard: lost-in-use (index)
                mine = mine.without(block.index)
        giving = [block for block in mine.blocks if block.index in mine.giving]
        back = ownership.to_return(giving, have.free, mine.size, now)
        mine = mine.having(*(replace(block, state=RETURNING) for block in giving if block.index in back))
        node_blocks.write(self._directory, mine)
        return mine

    def _given_back(self, mine: NodeBlocks) -> NodeBlocks:
        """Without what was marked, once the store has no document that says it is ours."""
        for block in [block for block in mine.blocks if block.state == RETURNING]:
            document = self._shared.documents.read(BLOCK, block_name(mine.network, block.index))
            known = found(document) if document else None
            if (  # guard: given-up-twice (not self._let_go), anothers-document (document.uid == block.uid)
                (document and known and document.uid == block.uid and not is_anothers(block, known[1]))
                and not self._let_go(mine, block, document, known[1])
            ):  # fmt: skip
                continue  # it has changed just now: the next round is soon enough  # guard: changed-document
            mine = replace(mine.without(block.index), exhausted=None)
            node_blocks.write(self._directory, mine)
        return mine

    def _let_go(self, mine: NodeBlocks, block: OwnedBlock, document: Document, _known: Block) -> bool:
        """Take the block's document out of the store; false if it has changed meanwhile."""
        if not self._shared.documents.remove(document):
            return False
        self.said.append(f"block {block.index} of network {mine.network} was empty, and is given back")
        return True

    def _claim_ahead(self, mine: NodeBlocks, known: Pool) -> None:
        """Claim one block if there is little room; it is fine if none is free.

        A node that has no block has given numbers that names have, and nothing else."""
        sets = self._store.look(lambda book: short(mine, known, book.count)) if mine.blocks else ()
        if not sets:
            return
        # Of the sets that have little: the others need no block.
        some = Network(mine.network, str(self._directory), Cluster(mine.store, mine.size), Pool(sets))
        with suppress(PoolExhausted):
            Claimer(some, self._shared, mine, self.said).claim(Need("there is little room", tuple(s.key for s in sets)))


def is_due(mine: NodeBlocks, store: Store) -> bool:
    """Whether a round has something to do: the last look is long ago, or there is little room."""
    known = pool(mine, store.contents().sets)
    return heartbeat_is_due(mine) or bool(mine.blocks and store.look(lambda book: short(mine, known, book.count)))
