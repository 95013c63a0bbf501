"""Claim blocks from the backend.

A claim creates a block's document with a random text (nonce), which is on this node's disk before.  So the first
creator owns the block.  A node that lost the answer, or was killed before it recorded the block, finds its own nonce
there.

To avoid conflicts, a node begins at a block derived from its name.  After a few conflicts it tries random blocks, and
then the free ones of a list.  A list of all blocks of a large network can take longer than an ADD may.

A node remembers for some seconds that no block is free, so a refused ADD or STATUS then costs the backend nothing.
Room on this node comes first; the node's next block, or its next release of one, ends that.
"""

import hashlib
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from base.kernel import budget
from base.protocol import report
from base.protocol.errors import (
    AddressHeld,
    BackendRefused,
    CniError,
    NotAvailable,
    PoolExhausted,
    RecordUnreadable,
    TryAgain,
)
from base.protocol.result import Address
from ipam.cluster import BLOCK, Document, Machine, node_blocks
from ipam.cluster.backends.backend import Backend, opened
from ipam.cluster.node_blocks import EXHAUSTED, RETURNING, Exhausted, NodeBlocks, PendingClaim
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.heartbeat import Found, is_anothers, read_block, readable
from ipam.cluster.reconcile.sync import confirm, load, refuse_disagreeing, refuse_second, refuse_uncovered
from ipam.cluster.rules import block_math, ownership
from ipam.cluster.rules.documents import Block, block_name, indexes
from ipam.cluster.rules.network import Need, Network
from ipam.ranges import Span, count

# Conflicts before the node lists all blocks, and the number of lists.
_CONFLICTS: Final = 4
_LISTS: Final = 3
# Random attempts before a list: one for each 64 blocks, 64 at most.  With nine of ten blocks taken, all 64 fail once in
# 800 times.
_PER_GUESS: Final = 64
_GUESSES: Final = 64


def refuse_if_none(network: Network, mine: NodeBlocks | None, need: Need) -> None:
    """Check that a claim would help an ADD without room; claim nothing.

    Raises NotAvailable, InvalidConfig.
    """
    size = network.cluster.size
    sets = need.sets if isinstance(need, PoolExhausted) else ()
    short = [s for s in network.pool.sets if not sets or s.key in sets]
    wanted = block_math.candidates(short, size)
    returning = {one.index for one in mine.blocks if one.state == RETURNING} if mine else set()
    known = mine.exhausted if mine and not returning else None
    if known and known.is_of(_digest(wanted)):
        raise NotAvailable(f"{need.msg}; and {_in_words(known)}")
    try:
        documents = opened(network.cluster.backend).documents
        refuse_disagreeing(documents, network.name, network.cluster, network.subnets)
        if any(documents.read(BLOCK, block_name(network.name, index)) is None for index in guesses(wanted)):
            return
        listed = list(documents.listed(BLOCK, network.name))
    except (TryAgain, BackendRefused, RecordUnreadable) as e:
        raise NotAvailable(f"{need.msg}; and no block can be claimed: {e.msg}", e.details) from e
    if not block_math.without(wanted, indexes(listed) - returning):
        none = _exhausted(network, wanted, [block for _, block in readable(listed)], documents.now())
        _remember(network, none)
        raise NotAvailable(f"{need.msg}; and {_in_words(none)}")


def guesses(wanted: Sequence[Span]) -> Iterator[int]:
    """Yield random blocks out of these: more of a larger number, and only while time is left for a list."""
    number = count(wanted)
    for _ in range(min(_GUESSES, number // _PER_GUESS)):
        if budget.left() < budget.REQUEST / 2:
            return
        yield block_math.nth(wanted, secrets.randbelow(number))


@dataclass
class BlockClaimer:
    """This node's claims in one network; the caller holds ``blocks.lock``.

    ``found_some``: the node owns more blocks than the caller knew.  ``others``: the network's blocks as last listed,
    or as a search left them.  ``is_ahead``: no ADD waits for the block.
    """

    network: Network
    backend: Backend
    mine: NodeBlocks
    log: list[str]
    is_sparing: bool = False
    found_some: bool = False
    others: Sequence[Block] = ()
    is_ahead: bool = False

    @classmethod
    def begin(
        cls, network: Network, log: list[str], known: Collection[int] = (), *, is_sparing: bool = False
    ) -> "BlockClaimer":
        """Read this node's blocks, confirm them where needed, and complete an unanswered claim.

        ``known``: the blocks that had no room for the caller.
        """
        backend = opened(network.cluster.backend)
        claimer = cls(network, backend, confirm(network, backend, load(network), log), log, is_sparing)
        if claimer.mine.claim:
            claimer._try(claimer.mine.claim)
        claimer.found_some = not set(claimer.mine.giving) <= set(known)
        return claimer

    def serve(self, need: Need) -> None:
        """Claim a needed block; claim nothing if only the backend's answer was missing.

        Raises PoolExhausted, AddressHeld, and TryAgain if other nodes are always faster.
        """
        is_first = not self.mine.blocks
        if is_first:
            refuse_uncovered(self.network, self.mine)
            if isinstance(need, PoolExhausted) or need.block is not None:
                refuse_second(self.backend.documents, self.network)
        if isinstance(need, PoolExhausted):
            self.claim_any(need)
        elif need.block is not None:
            self.claim_one(need.block, need.address)
        if is_first and self.mine.blocks:  # hpn node may not know this network yet
            report.send_low(lambda: True)

    def claim_any(self, need: PoolExhausted) -> None:
        """Claim a block with addresses for all sets, or at least for those without room."""
        sets = self.network.pool.sets
        short = block_math.candidates([s for s in sets if s.key in need.sets], self.mine.size)
        known = self.mine.exhausted
        is_known = known is not None and known.is_of(_digest(short), is_ahead=self.is_ahead)
        for wanted in dict.fromkeys([block_math.candidates(sets, self.mine.size), short]):
            if wanted and (self._hold_again(wanted) or (not is_known and self._claim_from(wanted))):
                return
        if known and is_known:
            raise PoolExhausted(f"{need.msg}; and {_in_words(known)}")
        self._refuse(need, short)

    def _hold_again(self, wanted: Sequence[Span]) -> bool:
        """Hold one of those blocks again that this node was about to release."""
        for block in [one for one in self.mine.blocks if one.state == RETURNING and block_math.has(wanted, one.index)]:
            known = read_block(self.backend.documents, self.network.name, block.index)
            if known and known[0].uid == block.uid and not is_anothers(block, known[1]):
                # Change the document: a removal that is still on its way applies to the old version only.
                body = replace(known[1], claim=self.mine.nonce(), machine=self.mine.machine, suspect=0).to_json()
                if made := self.backend.documents.replace(known[0], body):
                    self._record(made)
                    return True
            else:
                self._write(self.mine.without(block.index))
        return False

    def _claim_from(self, wanted: Sequence[Span]) -> bool:
        """Claim one of those blocks; False if all are taken.  Raises TryAgain if other nodes are always faster."""
        if self.is_sparing and ownership.is_in_doubt(self.mine, self.backend.documents.now()):
            return False  # sparing, the node would not use that block either
        begin = int.from_bytes(hashlib.sha256(self.mine.node.encode()).digest()[:8])
        near = dict.fromkeys(block_math.nth(wanted, begin + n) for n in range(len(self.mine.blocks) + _CONFLICTS))
        for index in [index for index in near if not self.mine.block(index)][:_CONFLICTS]:
            if self._try(self._new_claim(index)):
                return True
        for index in guesses(wanted):
            if not self.mine.block(index) and self._try(self._new_claim(index)):
                return True
        for _ in range(_LISTS):
            listed = list(self.backend.documents.listed(BLOCK, self.network.name))
            found = list(readable(listed))
            self.others = [block for _, block in found]
            self._note_unreadable(len(listed) - len(self.others))
            free = block_math.without(wanted, indexes(listed) | {block.index for block in self.mine.blocks})
            if not free:
                # Sparing, the node would not use a dead node's block.
                return not self.is_sparing and self._reclaim_any(wanted, found)
            for _ in range(min(_CONFLICTS, count(free))):
                if self._try(self._new_claim(block_math.nth(free, secrets.randbelow(count(free))))):
                    return True
        self._forget_claim()
        raise TryAgain(f"other nodes claim blocks of network {self.network.name} faster than this one; try again")

    def _note_unreadable(self, number: int) -> None:
        if number:
            self.log.append(
                f"{number} blocks of network {self.network.name} cannot be read, so no node can claim them: "
                "hpn ipam show --cluster"
            )

    def _reclaim_any(self, wanted: Sequence[Span], found: Sequence[Found]) -> bool:
        """Reclaim one of those blocks from a dead node; False if there is none."""
        us = Machine(self.mine.node, self.mine.machine)
        known = dict[int, Block]()
        for document, block in reclaim.search(self.backend.documents, us, found, self.log, known):
            if block_math.has(wanted, block.index) and self._reclaim(document, block):
                return True
        self.others = [*known.values()]
        return False

    def _reclaim(self, document: Document, block: Block) -> bool:
        """Reclaim the block from its dead node; False if another node was faster."""
        claim = self._new_claim(block.index)
        self._write(replace(self.mine, claim=claim))
        new = block.given_to(self.mine.node, self.mine.machine, claim.nonce)
        if (made := self.backend.documents.replace(document, new.to_json())) or (made := self._find_own(claim)):
            self.log.append(
                f"block {block.index} of network {block.network} was reclaimed from {block.node}, which is dead"
            )
            self._record(made)
        return bool(made)

    def _new_claim(self, index: int) -> PendingClaim:
        return PendingClaim(index, self.mine.nonce())

    def _try(self, claim: PendingClaim) -> bool:
        """Claim that block; return whether this node owns it now."""
        is_new = claim != self.mine.claim  # no answer to it was lost: ``create`` finds those of its own attempts
        self._write(replace(self.mine, claim=claim))
        block = Block(self.network.name, claim.index, self.mine.size, self.mine.node, self.mine.machine, claim.nonce)
        made = self.backend.documents.create(BLOCK, block.name, block.network, block.to_json())
        if not (made or (not is_new and (made := self._find_own(claim)))):
            self.mine = replace(self.mine, claim=None)
            return False
        self.log.append(f"block {claim.index} of network {self.network.name} is this node's ({self.mine.node}) now")
        self._record(made)
        return True

    def _find_own(self, claim: PendingClaim) -> Document | None:
        """Return the document that an earlier attempt of this claim created, if its answer was lost."""
        made = self.backend.documents.read(BLOCK, block_name(self.network.name, claim.index))
        if not made or (block := Block.of(made)).claim != claim.nonce:
            return None
        # The attempt may be old and the block suspected, so refute that before any allocation.
        answer = ownership.answer(block, self.mine.machine)
        return self.backend.documents.replace(made, answer.to_json()) if answer else made

    def _record(self, document: Document) -> None:
        self._write(ownership.claimed(self.mine, document, self.backend.documents.now(), self.log))

    def claim_one(self, index: int, address: Address | None) -> None:
        """Claim the block with that requested address, or reclaim it from a dead node; nothing if this node owns it.

        Raises AddressHeld.
        """
        if index in (*self.mine.giving, *self.mine.draining):
            return
        if self._hold_again([Span(block_math.NUMBERS, index, index)]) or self._try(self._new_claim(index)):
            return
        us, documents = Machine(self.mine.node, self.mine.machine), self.backend.documents
        there = read_block(documents, self.network.name, index)
        for document, block in reclaim.search(documents, us, [there] if there else [], self.log):
            if self._reclaim(document, block):
                return
        self._forget_claim()
        raise AddressHeld(
            f"requested address {address} is in block {index} of network {self.network.name}, {self._owner(index)}"
        )

    def _owner(self, index: int) -> str:
        """Describe the block's owner, and the remedy."""
        there = self.backend.documents.read(BLOCK, block_name(self.network.name, index))
        if there is None:
            return "which a node is releasing; request another, or try again"
        block = Block.of(there)
        if left := reclaim.seconds_left(block, self.backend.documents.now()):
            when = f"if that stays so, the address is available in about {max(1, left / 60):.0f} minutes"
            return f"which node {block.node} owns; that node seems dead: {when}"
        return f"which node {block.node} owns; request another, or attach there"

    def _write(self, mine: NodeBlocks) -> None:
        node_blocks.write(self.network.directory, mine)
        self.mine = mine

    def _forget_claim(self) -> None:
        """Drop an unanswered claim; otherwise the next ADD would claim a block that it does not need."""
        there = node_blocks.read(self.network.directory)
        if there and there.claim:
            self._write(replace(self.mine, claim=None))

    def _refuse(self, need: PoolExhausted, wanted: Sequence[Span]) -> NoReturn:
        if not self.others:  # no block has such addresses
            self._forget_claim()
            raise need
        known = _exhausted(self.network, wanted, self.others, self.backend.documents.now())
        # A sparing search left out the blocks of dead nodes, so its result is incomplete.
        self._write(replace(self.mine, claim=None, exhausted=None if self.is_sparing else known))
        raise PoolExhausted(f"{need.msg}; and {_in_words(known)}")


def _exhausted(network: Network, wanted: Sequence[Span], others: Sequence[Block], clock: float) -> Exhausted:
    """Return the record that none of those blocks is free; it ends at a different time on each node.

    ``clock`` is the backend's.
    """
    doubted, now = [block for block in others if block.suspect], int(time.time())
    why = (
        f"{len({block.node for block in others})} nodes own all {len(others)} usable blocks of network {network.name} "
        f"({network.cluster.size} numbers each)"
    )
    if doubted:
        soon = min(reclaim.seconds_left(block, clock) for block in doubted)
        why += (
            f"; {len({(block.node, block.machine) for block in doubted})} of them seem dead, and if that stays so, a "
            f"block is available in about {max(1, soon / 60):.0f} min"
        )
    return Exhausted(_digest(wanted), why, now, now + EXHAUSTED // 2 + secrets.randbelow(EXHAUSTED))


def _digest(wanted: Sequence[Span]) -> str:
    return hashlib.sha256(repr([(span.first, span.last) for span in wanted]).encode()).hexdigest()[:16]


def _in_words(known: Exhausted) -> str:
    """Describe that no block is free, and the age of that knowledge."""
    now = int(time.time())
    return (
        f"{known.why}, as the backend answered {now - known.at} s ago; next request in {max(0, known.until - now)} s; "
        "widen ranges or free addresses: hpn ipam show --cluster"
    )


def _remember(network: Network, found: Exhausted) -> None:
    """Record it in this node's file, if the file exists and its lock is free."""
    with suppress(CniError), node_blocks.lock(network.directory, 0):
        if mine := node_blocks.read(network.directory):
            node_blocks.write(network.directory, replace(mine, exhausted=found))
