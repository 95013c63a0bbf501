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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from base.kernel import budget
from base.protocol.errors import CniError, PoolExhausted, TryAgain
from ipam.cluster import Machine, RoundReport, copies, node_blocks
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


class BlockUpkeep:
    """A round's policy for blocks: keep room for the next attachments, and release blocks that are long empty.

    ``claims_ahead``: the round claims before room runs out, and suspects dead nodes for it.
    """

    claims_ahead = True

    def mark(self, mine: NodeBlocks, known: Pool, book: Book) -> NodeBlocks:
        """Mark blocks for release, and forget lost blocks without leases."""
        now, have = int(time.time()), counted(mine, known, book.count)
        for block in mine.blocks:
            if block.index in mine.giving:
                mine = mine.having(ownership.seen_idle(block, have.used[block.index], now))
            elif block.state != RETURNING and not have.used[block.index]:
                mine = mine.without(block.index)
        giving = [block for block in mine.blocks if block.index in mine.giving]
        back = ownership.to_return(giving, have.free, mine.size, now)
        return mine.having(*(replace(block, state=RETURNING) for block in giving if block.index in back))

    def freed(self, _mine: NodeBlocks, _block: OwnedBlock, _content: Block, _now: int) -> Block | None:
        """Return the content of the document after the release, at the backend's time; None to remove it."""
        return None

    def has_work(self, mine: NodeBlocks, store: Store) -> bool:
        """Whether a round has something to do before the next heartbeat."""
        known = pool(mine, store.sets())
        return bool(mine.blocks and store.look(lambda book: short(mine, known, book.count)))


class NumberUpkeep:
    """A round's policy for reserved numbers: release each that is not in use.

    It claims none ahead, because the next name is unknown.  A number of a dead node serves its name only.
    """

    claims_ahead = False

    def mark(self, mine: NodeBlocks, _known: Pool, book: Book) -> NodeBlocks:
        for block in mine.blocks:
            if _is_used(mine, block, book):
                continue
            if block.state == HELD and block.node == mine.node:
                mine = mine.having(replace(block, state=RETURNING))
            elif block.state == LOST:
                mine = mine.without(block.index)
        return mine

    def freed(self, mine: NodeBlocks, block: OwnedBlock, content: Block, now: int) -> Block | None:
        # The next node must probe for an address that this one never probed for.
        return replace(content.freed(now), taken=_is_doubtful(mine, block))

    def has_work(self, mine: NodeBlocks, store: Store) -> bool:
        return store.look(lambda book: any(not _is_used(mine, block, book) for block in mine.blocks))


@dataclass
class Round:
    """A round for the blocks or numbers of a directory, with the network's leases in ``store``.

    ``log`` collects what an operator should know.  ``heartbeat`` has answered for the network; without one, the round
    needs none.
    """

    policy: BlockUpkeep | NumberUpkeep
    directory: Path
    store: Store
    backend: Backend
    log: list[str]
    heartbeat: Heartbeat | None = None

    def keep(self) -> None:
        """Run the round.  Raises Unreachable, BackendRefused, TryAgain, RecordUnreadable, IoFailure."""
        with node_blocks.lock(self.directory, LOCK_TIMEOUT):
            mine = node_blocks.read(self.directory)
            if mine is None:
                return
            seen = self._complete(self.heartbeat, mine) if self.heartbeat else mine
            known = pool(seen, self.store.sets())
            kept = self.release_unused(seen, known)
            if self.policy.claims_ahead:
                self._claim_ahead(kept, known)
        if self.policy.claims_ahead and self.heartbeat:
            self._patrol(kept, known)

    def _complete(self, heartbeat: Heartbeat, mine: NodeBlocks) -> NodeBlocks:
        """Complete the heartbeat; return the node's blocks as the backend holds them."""
        mine = heartbeat.send(mine, partial(withdraw, self.directory, self.store))
        reclaim.release_left(self.backend.documents, heartbeat.machine, heartbeat.left, self.log)
        return replace(mine, asked=mine.looked)

    def release_unused(self, mine: NodeBlocks, known: Pool) -> NodeBlocks:
        """Release what the policy marks; return the rest.  The caller holds ``blocks.lock`` and sent a heartbeat.

        Each is forgotten when the backend holds no document of it for this node.
        """
        mine = self.store.look(lambda book: self._mark(mine, known, book))
        documents = self.backend.documents
        for block in [block for block in mine.blocks if block.state == RETURNING]:
            found = read_block(documents, mine.network, block.index)
            if found and found[0].uid == block.uid and not is_anothers(block, found[1]):
                new = self.policy.freed(mine, block, found[1], int(documents.now()))
                if not (documents.replace(found[0], new.to_json()) if new else documents.remove(found[0])):
                    continue  # the next round retries
                if not new:
                    self.log.append(f"block {block.index} of network {mine.network} was empty, and is released")
            mine = replace(mine.without(block.index), exhausted=None)
            node_blocks.write(self.directory, mine)
        return mine

    def _mark(self, mine: NodeBlocks, known: Pool, book: Book) -> NodeBlocks:
        """Mark what to release.  The file is on disk before any other command can choose an address."""
        mine = self.policy.mark(mine, known, book)
        node_blocks.write(self.directory, mine)
        return mine

    def _claim_ahead(self, mine: NodeBlocks, known: Pool) -> None:
        """Claim one block if little room is left and a block is free.

        A node without blocks allocates reserved numbers only, and claims none.
        """
        sets = self.store.look(lambda book: short(mine, known, book.count)) if mine.blocks else ()
        if not sets:
            return
        # Only for the sets that are short: the others need no block.
        some = Network(mine.network, str(self.directory), Cluster(mine.backend, mine.size), Pool(sets))
        with suppress(PoolExhausted):
            need = PoolExhausted("there is little room", *(s.key for s in sets))
            BlockClaimer(some, self.backend, mine, self.log, is_ahead=True).claim_any(need)

    def _patrol(self, mine: NodeBlocks, known: Pool) -> None:
        """Check the owner of one random block of the network, so that dead nodes are suspected before a node needs
        their blocks."""
        indexes = candidates(known.sets, mine.size) if known.sets else ()
        if indexes and not mine.block(index := nth(indexes, secrets.randbelow(count(indexes)))):
            us = Machine(mine.node, mine.machine)
            reclaim.patrol(self.backend.documents, us, mine.network, index, self.log)


def release_numbers(network: Numbers, log: list[str]) -> None:
    """Release unused numbers if the last heartbeat is recent and succeeded.  Log an absent backend or a busy lock."""
    store = open_in(Path(network.parent.directory).parent, network.parent.name, log)
    try:
        with node_blocks.lock(network.directory, 0):
            mine = node_blocks.read(network.directory)
            if mine and not heartbeat_is_due(mine) and mine.looked >= mine.asked:
                backend = opened(network.cluster.backend)
                Round(NumberUpkeep(), Path(network.directory), store, backend, log).release_unused(mine, Pool(()))
    except CniError as e:
        log.append(f"network {network.name}: unused numbers could not be released: {e.msg}")


def _is_used(mine: NodeBlocks, block: OwnedBlock, book: Book) -> bool:
    return any(book.count(span) for span in spans(mine, block.index))


def _is_doubtful(mine: NodeBlocks, block: OwnedBlock) -> bool:
    """Whether a former owner may still use the number: in some subnet its address was never probed."""
    return block.taken and len(block.tried) < len(list(spans(mine, block.index)))


def rounds(
    networks: Iterable[Path], gone: Gone, *, due_only: bool = False, kubeconfig: str = "", unsafe: str = ""
) -> Iterator[RoundReport]:
    """Keep this node alive in the backends of these networks; then run a round for each, and one for its reserved
    numbers.

    With ``due_only``, skip networks with a recent heartbeat and enough room.  A backend without an answer is asked
    once.  ``kubeconfig`` as for ``backend.opened``.  ``unsafe`` is the reason why this process must judge no lease;
    then there are no rounds.
    """
    each, backends = list(_each(networks)), Backends(kubeconfig)
    for _, folder, _ in each:
        backends.answer(folder, due_only=due_only)
    for directory, folder, policy in each:
        alive = backends.alive[folder]
        store = open_in(directory.parent, directory.name, alive.log, gone)
        budget.begin(is_patient=True)
        try:
            if unsafe:
                raise TryAgain(unsafe)
            mine = node_blocks.read(folder)
            copies.note(folder, mine)
            if mine is None:
                continue
            is_due = not due_only or alive.heartbeat or alive.problem or heartbeat_is_due(mine)
            if not (is_due or policy.has_work(mine, store)):
                continue
            store.collect(None)  # dead leases would keep blocks in use
            if not alive.problem:
                backend = backends.opened(mine, folder)
                Round(policy, folder, store, backend, alive.log, alive.heartbeat).keep()
                copies.note(folder, node_blocks.read(folder))
        except CniError as e:
            alive.problem = alive.problem or e.msg
        suspected = alive.heartbeat.suspected if alive.heartbeat else 0
        yield RoundReport(str(folder.relative_to(directory.parent)), suspected, tuple(alive.log), alive.problem)


def _each(networks: Iterable[Path]) -> Iterator[tuple[Path, Path, BlockUpkeep | NumberUpkeep]]:
    """Yield each round: the network's directory, the directory of its blocks or numbers, and the policy."""
    for directory in networks:
        yield directory, directory, BlockUpkeep()
        aside = Path(directory_in(directory))
        # Path.exists raises most errors of a failed disk.
        if os.path.exists(aside / node_blocks.FILE) or copies.last(aside):
            yield directory, aside, NumberUpkeep()
