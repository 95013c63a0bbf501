"""Reconcile this node's blocks and numbers with the backend, one round per network, while no command waits.

A round reports the node as alive and sends a heartbeat (heartbeat.py).  It releases empty blocks and those of another
machine of this name, and claims a block before room runs out.  It also releases each reserved number that no attachment
here uses, so that the pod's name can have it on another node.

A release takes two steps.  Under the lock of the leases the node's file marks the block, so no allocation uses it any
more.  Then the node changes the document and forgets the block.  The next round completes an interrupted release.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from base.kernel import budget
from base.protocol.errors import CniError, InvalidConfig, PoolExhausted, Unreachable
from ipam.cluster import Document, Report, node_blocks
from ipam.cluster.backends.backend import Shared, opened
from ipam.cluster.node_blocks import GRACE, HELD, LOST, RETURNING, NodeBlocks, OwnedBlock, heartbeat_is_due
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.claim_block import Claimer
from ipam.cluster.reconcile.heartbeat import Heartbeat, is_anothers, read_block
from ipam.cluster.reconcile.sync import withdraw
from ipam.cluster.rules import ownership
from ipam.cluster.rules.counting import counted, pool, short, spans
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import Need, Network, Numbers, directory_in
from ipam.pool import Cluster, Pool
from ipam.stores import LOCK_TIMEOUT, Book, Gone, Store
from ipam.stores.access import open_in


class Round:
    """A round for the network of a directory, with its leases in ``store``.

    ``log`` collects what an operator should know; ``suspected`` counts its blocks that other nodes suspected.
    """

    def __init__(self, directory: Path, store: Store, shared: Shared) -> None:
        self._directory, self._store, self._shared = directory, store, shared
        self.log, self.suspected = list[str](), 0

    def keep(self) -> None:
        """Run the round.  Raises InvalidConfig if the blocks belong to another cluster; Unreachable, StoreRefused,
        TryAgain, RecordUnreadable, IoFailure."""
        self._store.collect(None)  # dead leases would keep blocks in use
        with node_blocks.lock(self._directory, LOCK_TIMEOUT):
            mine = node_blocks.read(self._directory)
            if mine is None:
                return
            seen = self._send_heartbeat(mine)
            known = pool(seen, self._store.contents().sets)
            settled = self._store.look(lambda book: self._mark(seen, known, book))
            self._claim_ahead(self._release_marked(settled), known)

    def _send_heartbeat(self, mine: NodeBlocks) -> NodeBlocks:
        """Send a heartbeat; return the node's blocks as the backend holds them."""
        documents = self._shared.documents
        identity = documents.identity()
        if mine.identity != identity:  # guard: another-cluster
            raise InvalidConfig(
                f"{self._directory}/{node_blocks.FILE}: these blocks belong to cluster {mine.identity}, and store "
                f"{mine.store!r} to cluster {identity}; correct stores.{mine.store} in the policy file; if the node "
                "moved, delete the network's pods on it, then the file"
            )
        documents.keep_alive(self._shared.node, GRACE)
        us = self._shared.machine()
        heartbeat = Heartbeat(documents, us, self.log, partial(withdraw, self._directory, self._store))
        mine = heartbeat.send(mine)
        mine = replace(mine, asked=mine.looked)
        self.suspected = heartbeat.suspected
        reclaim.release_left(documents, us, heartbeat.left, self.log)
        return mine

    def _mark(self, mine: NodeBlocks, known: Pool, book: Book) -> NodeBlocks:
        """Mark blocks for release, and forget lost blocks without leases.

        The file is on disk before any other command can choose an address.
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

    def _release_marked(self, mine: NodeBlocks) -> NodeBlocks:
        """Release the marked blocks, and forget each when the backend holds no document of it for this node."""
        for block in [block for block in mine.blocks if block.state == RETURNING]:
            known = read_block(self._shared.documents, mine.network, block.index)
            if (  # guard: given-up-twice (not self._release), anothers-document (known[0].uid == block.uid)
                (known and known[0].uid == block.uid and not is_anothers(block, known[1]))
                and not self._release(mine, block, *known)
            ):  # fmt: skip
                continue  # the next round retries  # guard: changed-document
            mine = replace(mine.without(block.index), exhausted=None)
            node_blocks.write(self._directory, mine)
        return mine

    def _release(self, mine: NodeBlocks, block: OwnedBlock, document: Document, _known: Block) -> bool:
        """Remove the block's document from the backend; return False if it changed meanwhile."""
        if not self._shared.documents.remove(document):
            return False
        self.log.append(f"block {block.index} of network {mine.network} was empty, and is released")
        return True

    def _claim_ahead(self, mine: NodeBlocks, known: Pool) -> None:
        """Claim one block if little room is left and a block is free.

        A node without blocks allocates reserved numbers only, and claims none.
        """
        sets = self._store.look(lambda book: short(mine, known, book.count)) if mine.blocks else ()
        if not sets:
            return
        # Only for the sets that are short: the others need no block.
        some = Network(mine.network, str(self._directory), Cluster(mine.store, mine.size), Pool(sets))
        with suppress(PoolExhausted):
            Claimer(some, self._shared, mine, self.log).claim(Need("there is little room", tuple(s.key for s in sets)))

    @staticmethod
    def is_due(mine: NodeBlocks, store: Store) -> bool:
        """Whether a round has something to do: a heartbeat is due, or there is little room."""
        known = pool(mine, store.contents().sets)
        return heartbeat_is_due(mine) or bool(mine.blocks and store.look(lambda book: short(mine, known, book.count)))


class NumberRound(Round):
    """A round for the reserved numbers; its directory is theirs (rules/network.py), its store the network's."""

    def release_numbers(self, mine: NodeBlocks) -> None:
        """Release the numbers that no attachment here uses.  The caller holds ``blocks.lock`` and sent a heartbeat."""
        self._release_marked(self._store.look(lambda book: self._mark(mine, Pool(()), book)))

    def _mark(self, mine: NodeBlocks, _known: Pool, book: Book) -> NodeBlocks:
        for block in mine.blocks:
            if _is_used(mine, block, book):  # guard: number-in-use
                continue
            if block.state == HELD and block.node == mine.node:
                mine = mine.having(replace(block, state=RETURNING))
            elif block.state == LOST:
                mine = mine.without(block.index)
        node_blocks.write(self._directory, mine)
        return mine

    def _release(self, mine: NodeBlocks, block: OwnedBlock, document: Document, known: Block) -> bool:
        """Mark the number's document as without a node; return False if it changed meanwhile."""
        # The next node must probe for an address that this one never probed for.
        # guard below: unproven (_is_doubtful(mine, block) -> False)
        new = replace(known.freed(int(self._shared.documents.now())), taken=_is_doubtful(mine, block))
        return bool(self._shared.documents.replace(document, new.to_json()))

    def _claim_ahead(self, _mine: NodeBlocks, _known: Pool) -> None:
        """Claim nothing: the next name is unknown."""

    @staticmethod
    def is_due(mine: NodeBlocks, store: Store) -> bool:
        """Whether a round has something to do: a heartbeat is due, or a number is unused."""
        unused = lambda book: any(not _is_used(mine, block, book) for block in mine.blocks)  # noqa: E731
        return heartbeat_is_due(mine) or store.look(unused)


def release_numbers(network: Numbers, log: list[str]) -> None:
    """Release unused numbers if the last heartbeat is recent and succeeded.  Log an absent backend or a busy lock."""
    store = open_in(Path(network.parent.directory).parent, network.parent.name, log)
    try:
        with node_blocks.lock(network.directory, 0):
            mine = node_blocks.read(network.directory)
            if mine and not heartbeat_is_due(mine) and mine.looked >= mine.asked:
                NumberRound(Path(network.directory), store, opened(network.cluster.store)).release_numbers(mine)
    except CniError as e:
        log.append(f"network {network.name}: unused numbers could not be released: {e.msg}")


def _is_used(mine: NodeBlocks, block: OwnedBlock, book: Book) -> bool:
    return any(book.count(span) for span in spans(mine, block.index))


def _is_doubtful(mine: NodeBlocks, block: OwnedBlock) -> bool:
    """Whether a former owner may still use the number: in some subnet its address was never probed."""
    return block.taken and len(block.tried) < len(list(spans(mine, block.index)))


def directories(data_dirs: Iterable[Path]) -> list[Path]:
    """Return the directories of networks with blocks of this node, in data directories that may not exist."""
    return sorted(path.parent for folder in data_dirs for path in folder.glob(f"*/{node_blocks.FILE}"))


def rounds(networks: Iterable[Path], gone: Gone, *, due_only: bool = False, kubeconfig: str = "") -> Iterator[Report]:
    """Run a round for each of these networks, and one for its reserved numbers.

    With ``due_only``, skip networks with a recent heartbeat and enough room.  A backend without an answer is asked
    once.  ``kubeconfig`` as for ``backend.opened``.
    """
    stores, silent = dict[str, Shared](), dict[str, str]()
    for directory, folder, work in _each(networks):
        log, suspected, problem, kind = list[str](), 0, "", ""
        store = open_in(directory.parent, directory.name, log, gone)
        # Each round may take a request's whole budget, because no command waits for it.
        budget.begin()
        try:
            mine = node_blocks.read(folder)
            if mine is None or (due_only and not work.is_due(mine, store)):  # guard: due (due_only and not work)
                continue
            kind = mine.store
            if kind not in silent:  # guard: silent = True
                stores[kind] = stores.get(kind) or opened(kind, kubeconfig)
                one = work(folder, store, stores[kind])
                try:
                    one.keep()
                finally:
                    log += one.log
                    suspected = one.suspected
        except CniError as e:
            problem = e.msg
            if isinstance(e, Unreachable):
                silent[kind] = e.msg
        name = str(folder.relative_to(directory.parent))
        yield Report(name, suspected, tuple(log), problem or silent.get(kind, ""))


def _each(networks: Iterable[Path]) -> Iterator[tuple[Path, Path, type[Round]]]:
    """Yield each round: the network's directory, the directory of its blocks or numbers, and the class."""
    for directory in networks:
        yield directory, directory, Round
        aside = Path(directory_in(directory))
        if (aside / node_blocks.FILE).exists():
            yield directory, aside, NumberRound
