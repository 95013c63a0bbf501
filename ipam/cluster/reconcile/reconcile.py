"""Reconcile this node's blocks and numbers with the backend, one round per network, while no command waits.

Before all rounds the node is reported alive, and suspicions of its blocks are refuted (alive.py); that needs no disk.
A round completes the heartbeat (heartbeat.py).  It releases empty blocks and those of another machine of this name, and
claims a block before room runs out.  It also releases each reserved number that no attachment here uses, so that the
pod's name can have it on another node.

A release takes two steps.  Under the lock of the leases the node's file marks the block, so no allocation uses it any
more.  Then the node changes the document and forgets the block.  The next round completes an interrupted release.
"""

import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from base.kernel import budget
from base.protocol.errors import CniError, PoolExhausted, TryAgain
from ipam.cluster import Document, Machine, Report, copies, node_blocks
from ipam.cluster.backends.backend import Backend, opened
from ipam.cluster.node_blocks import HELD, LOST, RETURNING, NodeBlocks, OwnedBlock, heartbeat_is_due
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.alive import Backends
from ipam.cluster.reconcile.claim_block import BlockClaimer
from ipam.cluster.reconcile.heartbeat import Heartbeat, is_anothers, read_block
from ipam.cluster.reconcile.sync import withdraw
from ipam.cluster.rules import ownership
from ipam.cluster.rules.block_math import candidates, nth
from ipam.cluster.rules.counting import counted, pool, short, spans
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import Network, Numbers, directory_in
from ipam.pool import Cluster, Pool
from ipam.ranges import count
from ipam.stores import LOCK_TIMEOUT, Book, Gone, Store
from ipam.stores.access import open_in


class Round:
    """A round for the network of a directory, with its leases in ``store``.

    ``log`` collects what an operator should know.  ``heartbeat`` has answered for the network; without one, the round
    needs none.
    """

    def __init__(
        self, directory: Path, store: Store, backend: Backend, log: list[str], heartbeat: Heartbeat | None = None
    ) -> None:
        self._directory, self._store, self._backend, self._log = directory, store, backend, log
        self._heartbeat = heartbeat

    def keep(self) -> None:
        """Run the round.  Raises Unreachable, BackendRefused, TryAgain, RecordUnreadable, IoFailure."""
        with node_blocks.lock(self._directory, LOCK_TIMEOUT):
            mine = node_blocks.read(self._directory)
            if mine is None:
                return
            seen = self._complete(self._heartbeat, mine) if self._heartbeat else mine
            known = pool(seen, self._store.contents().sets)
            settled = self._store.look(lambda book: self._mark(seen, known, book))
            self._claim_ahead(self._release_marked(settled), known)
        if self._heartbeat:
            self._patrol(settled, known)

    def _complete(self, heartbeat: Heartbeat, mine: NodeBlocks) -> NodeBlocks:
        """Complete the heartbeat; return the node's blocks as the backend holds them."""
        mine = heartbeat.send(mine, partial(withdraw, self._directory, self._store))
        reclaim.release_left(self._backend.documents, heartbeat.machine, heartbeat.left, self._log)
        return replace(mine, asked=mine.looked)

    def _mark(self, mine: NodeBlocks, known: Pool, book: Book) -> NodeBlocks:
        """Mark blocks for release, and forget lost blocks without leases.

        The file is on disk before any other command can choose an address.
        """
        now, have = int(time.time()), counted(mine, known, book.count)
        for block in mine.blocks:
            if block.index in mine.giving:
                mine = mine.having(ownership.seen_idle(block, have.used[block.index], now))
            elif block.state != RETURNING and not have.used[block.index]:
                mine = mine.without(block.index)
        giving = [block for block in mine.blocks if block.index in mine.giving]
        back = ownership.to_return(giving, have.free, mine.size, now)
        mine = mine.having(*(replace(block, state=RETURNING) for block in giving if block.index in back))
        node_blocks.write(self._directory, mine)
        return mine

    def _release_marked(self, mine: NodeBlocks) -> NodeBlocks:
        """Release the marked blocks, and forget each when the backend holds no document of it for this node."""
        for block in [block for block in mine.blocks if block.state == RETURNING]:
            known = read_block(self._backend.documents, mine.network, block.index)
            if (
                (known and known[0].uid == block.uid and not is_anothers(block, known[1]))
                and not self._release(mine, block, *known)
            ):  # fmt: skip
                continue  # the next round retries
            mine = replace(mine.without(block.index), exhausted=None)
            node_blocks.write(self._directory, mine)
        return mine

    def _release(self, mine: NodeBlocks, block: OwnedBlock, document: Document, _known: Block) -> bool:
        """Remove the block's document from the backend; return False if it changed meanwhile."""
        if not self._backend.documents.remove(document):
            return False
        self._log.append(f"block {block.index} of network {mine.network} was empty, and is released")
        return True

    def _claim_ahead(self, mine: NodeBlocks, known: Pool) -> None:
        """Claim one block if little room is left and a block is free.

        A node without blocks allocates reserved numbers only, and claims none.
        """
        sets = self._store.look(lambda book: short(mine, known, book.count)) if mine.blocks else ()
        if not sets:
            return
        # Only for the sets that are short: the others need no block.
        some = Network(mine.network, str(self._directory), Cluster(mine.backend, mine.size), Pool(sets))
        with suppress(PoolExhausted):
            need = PoolExhausted("there is little room", *(s.key for s in sets))
            BlockClaimer(some, self._backend, mine, self._log, is_ahead=True).claim_any(need)

    def _patrol(self, mine: NodeBlocks, known: Pool) -> None:
        """Check the owner of one random block of the network, so that dead nodes are suspected before a node needs
        their blocks."""
        indexes = candidates(known.sets, mine.size) if known.sets else ()
        if indexes and not mine.block(index := nth(indexes, secrets.randbelow(count(indexes)))):
            us = Machine(mine.node, mine.machine)
            reclaim.patrol(self._backend.documents, us, mine.network, index, self._log)

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
            if _is_used(mine, block, book):
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
        new = replace(known.freed(int(self._backend.documents.now())), taken=_is_doubtful(mine, block))
        return bool(self._backend.documents.replace(document, new.to_json()))

    def _claim_ahead(self, _mine: NodeBlocks, _known: Pool) -> None:
        """Claim nothing: the next name is unknown."""

    def _patrol(self, _mine: NodeBlocks, _known: Pool) -> None:
        """Check no owner: a number of a dead node serves its name only."""

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
                NumberRound(Path(network.directory), store, opened(network.cluster.backend), log).release_numbers(mine)
    except CniError as e:
        log.append(f"network {network.name}: unused numbers could not be released: {e.msg}")


def _is_used(mine: NodeBlocks, block: OwnedBlock, book: Book) -> bool:
    return any(book.count(span) for span in spans(mine, block.index))


def _is_doubtful(mine: NodeBlocks, block: OwnedBlock) -> bool:
    """Whether a former owner may still use the number: in some subnet its address was never probed."""
    return block.taken and len(block.tried) < len(list(spans(mine, block.index)))


def rounds(
    networks: Iterable[Path], gone: Gone, *, due_only: bool = False, kubeconfig: str = "", unsafe: str = ""
) -> Iterator[Report]:
    """Keep this node alive in the backends of these networks; then run a round for each, and one for its reserved
    numbers.

    With ``due_only``, skip networks with a recent heartbeat and enough room.  A backend without an answer is asked
    once.  ``kubeconfig`` as for ``backend.opened``.  ``unsafe`` is the reason why this process must judge no lease;
    then there are no rounds.
    """
    each, backends = list(_each(networks)), Backends(kubeconfig)
    for _, folder, _ in each:
        backends.answer(folder, due_only=due_only)
    for directory, folder, work in each:
        alive = backends.alive[folder]
        store = open_in(directory.parent, directory.name, alive.log, gone)
        budget.begin(is_patient=True)
        try:
            if unsafe:
                raise TryAgain(unsafe)
            mine = node_blocks.read(folder)
            copies.note(folder, mine)
            if mine is None or (due_only and not (alive.heartbeat or alive.problem or work.is_due(mine, store))):
                continue
            store.collect(None)  # dead leases would keep blocks in use
            if not alive.problem:
                backend = backends.opened(mine, folder)
                work(folder, store, backend, alive.log, alive.heartbeat).keep()
                copies.note(folder, node_blocks.read(folder))
        except CniError as e:
            alive.problem = alive.problem or e.msg
        suspected = alive.heartbeat.suspected if alive.heartbeat else 0
        yield Report(str(folder.relative_to(directory.parent)), suspected, tuple(alive.log), alive.problem)


def _each(networks: Iterable[Path]) -> Iterator[tuple[Path, Path, type[Round]]]:
    """Yield each round: the network's directory, the directory of its blocks or numbers, and the class."""
    for directory in networks:
        yield directory, directory, Round
        aside = Path(directory_in(directory))
        # Path.exists raises most errors of a failed disk.
        if os.path.exists(aside / node_blocks.FILE) or copies.last(aside):
            yield directory, aside, NumberRound
