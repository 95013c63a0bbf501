"""Blocks claimed from the store that the nodes share.

A claim is the creation of a block's document, with a text in it (nonce) that is on this node's disk before.  So the
first creator has the block, and a node that has lost an answer, or was killed before it could note it, finds its own
text there.  Others' claims are avoided by where a node begins: at a block that its name decides.  After a few blocks
that others have it tries some at random, and only then those of a list that are free: who reads all blocks of a large
network reads for longer than an ADD may take.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn, TypeVar

from cni.kernel import budget
from cni.protocol import report
from cni.protocol.errors import (
    AddressHeld,
    NotAvailable,
    PoolExhausted,
    RecordUnreadable,
    StoreRefused,
    TryAgain,
    doing,
)
from ipam.cluster import BLOCK, Document, Machine, before, exhausted, grids, held, limits, reclaiming, restored, rules
from ipam.cluster.blocks import Block, name_of_block
from ipam.cluster.giving import AskFirst, Network
from ipam.cluster.held import RETURNING, Claim, Held
from ipam.cluster.looking import found, is_anothers
from ipam.cluster.opening import Shared, opened
from ipam.cluster.settling import known, settled
from ipam.ranges import Span, count
from ipam.stores import LOCK_TIMEOUT

T = TypeVar("T")

# Blocks of others that are met one by one before all are listed, and how often they are listed.
_CONFLICTS: Final = 4
_LISTS: Final = 3
# Of so many blocks one more is tried at random before that, and so many at most: where nine of ten are taken, all of
# them are once in 800 times.
_PER_GUESS: Final = 64
_GUESSES: Final = 64


def give_more(network: Network, ask: Callable[[], T], log: list[str]) -> T:
    """What ``ask`` answers when this node has room for it.

    Two calls without room claim one block: whoever comes second finds what the first has claimed.

    Raises what ``ask`` does; PoolExhausted if no block is free; AddressHeld if another node has the requested address;
    InvalidConfig if the blocks of the cluster, or this node's, are not of this configuration; RecordUnreadable,
    Unreachable, StoreRefused, TryAgain, IoFailure.
    """
    with held.lock(network.directory, LOCK_TIMEOUT):  # guard: alone
        claiming = None
        # Each set that has no room may need a block of its own.
        for _ in range(len(network.pool.sets) + 2):
            try:
                return ask()
            except (PoolExhausted, AskFirst) as e:
                need = e
            with doing(f"asking for a block of network {network.name}: {need.msg}"):
                if not claiming:
                    claiming = Claiming.begin(network, log)
                    if claiming.found_some:  # guard: what-a-lost-answer-made
                        continue
                is_first = not claiming.mine.blocks
                if is_first:  # guard: given-before
                    before.refuse_uncovered(network, claiming.mine)
                claiming.serve(need)
                if is_first and claiming.mine.blocks:  # hpn node may know of no such network yet
                    report.send_low(lambda: True)
        return ask()


def refuse_if_none(network: Network, need: PoolExhausted | AskFirst) -> None:
    """See that ``give_more`` would serve an ADD for which there is no room; nothing is claimed.

    Raises NotAvailable, InvalidConfig.
    """
    size = network.cluster.size
    short = [s for s in network.pool.sets if isinstance(need, AskFirst) or s.key in need.sets]
    wanted = limits.candidates(short, size)
    returning = {one.index for one in network.mine.blocks if one.state == RETURNING} if network.mine else set()
    known = network.mine.exhausted if network.mine and not returning else None  # guard: returning-first (returning)
    if known and known.is_of(exhausted.digest(wanted)):
        raise NotAvailable(f"{need.msg}; and {exhausted.in_words(network, known)}")
    try:
        documents = opened(network.cluster.store).documents
        grids.refuse_disagreeing(documents, network.name, network.cluster, network.subnets)
        if any(documents.read(BLOCK, name_of_block(network.name, index)) is None for index in guesses(wanted)):
            return
        all_of_them = [one[1] for one in map(found, documents.listed(BLOCK, network.name)) if one]
    except (TryAgain, StoreRefused, RecordUnreadable) as e:
        raise NotAvailable(f"{need.msg}; and no block can be claimed: {e.msg}", e.details) from e
    if not limits.without(wanted, {one.index for one in all_of_them} - returning):
        none = exhausted.of(wanted, all_of_them)
        exhausted.remember(network, none)
        raise NotAvailable(f"{need.msg}; and {exhausted.in_words(network, none)}")


def guesses(wanted: Sequence[Span]) -> Iterator[int]:
    """Some of these blocks at random, the more the more there are, for as long as there is time left for a list."""
    number = count(wanted)
    for _ in range(min(_GUESSES, number // _PER_GUESS)):
        if budget.left() < budget.REQUEST / 2:  # guard: time-for-a-list
            return
        yield limits.nth(wanted, secrets.randbelow(number))


@dataclass
class Claiming:
    """This node's dealings with the store about one network; whoever has it has ``blocks.lock``.

    ``found_some``: the node has more blocks than it knew, because it was killed or has forgotten them.  ``others`` are
    the network's blocks as they were listed last.
    """

    network: Network
    shared: Shared
    mine: Held
    log: list[str]
    found_some: bool = False
    others: Sequence[Block] = ()

    @classmethod
    def begin(cls, network: Network, log: list[str]) -> "Claiming":
        """Read what this node has, and see what the store says of it where that has to be known first."""
        shared = opened(network.cluster.store)
        had = known(network)
        claiming = cls(network, shared, settled(network, shared, had, log), log)
        if claiming.mine.claim:
            claiming._ask_for(claiming.mine.claim)
        claiming.found_some = not set(claiming.mine.giving) <= set(had.giving if had else ())
        return claiming

    def serve(self, need: PoolExhausted | AskFirst) -> None:
        """Have what is needed; nothing to do where that was to ask the store at all."""
        if isinstance(need, PoolExhausted):
            self.claim_any(need)
        elif need.block is not None and not self._has(need.block):
            self._claim_this(need, need.block)

    def claim_any(self, need: PoolExhausted) -> None:
        """Claim a block that has addresses for all sets, or at least for the one that has none left."""
        sets = self.network.pool.sets
        short = limits.candidates([s for s in sets if s.key in need.sets], self.mine.size)
        known = self.mine.exhausted
        is_known = known is not None and known.is_of(exhausted.digest(short))
        for wanted in dict.fromkeys([limits.candidates(sets, self.mine.size), short]):
            # guard below: remembered (is_known)
            if wanted and (self._take_back(wanted) or (not is_known and self._claim_of(wanted))):
                return
        if known and is_known:
            raise PoolExhausted(f"{need.msg}; and {exhausted.in_words(self.network, known)}")
        self._refuse(need, short)

    def _take_back(self, wanted: Sequence[Span]) -> bool:
        """Hold one of those blocks again that this node was giving back, when it was killed or lost the store."""
        for block in [one for one in self.mine.blocks if one.state == RETURNING and limits.has(wanted, one.index)]:
            document = self.shared.documents.read(BLOCK, name_of_block(self.network.name, block.index))
            known = found(document) if document else None
            # guard below: still-ours = document and known
            if document and known and document.uid == block.uid and not is_anothers(block, known[1]):
                # Changed, because the removal may be under way still: it is of the document as it was.
                # guard below: answer-where-it-is-held-again (suspect)
                body = replace(known[1], claim=self.mine.nonce(), machine=self.mine.machine, suspect=0).as_json()
                if made := self.shared.documents.replace(document, body):  # guard: not-while-it-is-removed (documents)
                    self._have(made)
                    return True
            else:
                self._note(self.mine.without(block.index))
        return False

    def _claim_of(self, wanted: Sequence[Span]) -> bool:
        """Claim a block of those; False if all are taken.  Raises TryAgain if others are faster all the time."""
        # guard below: none-of-no-use
        if self.network.is_sparing and restored.is_in_doubt(self.mine, self.shared.documents.now()):
            return False  # it would be one more that nothing is given from
        begin = int.from_bytes(hashlib.sha256(self.mine.node.encode()).digest()[:8])
        near = dict.fromkeys(limits.nth(wanted, begin + n) for n in range(len(self.mine.blocks) + _CONFLICTS))
        for index in [index for index in near if not self.mine.block(index)][:_CONFLICTS]:
            if self._ask_for(self._new(index)):
                return True
        for index in guesses(wanted):
            if not self.mine.block(index) and self._ask_for(self._new(index)):  # guard: tried-before-a-list
                return True
        for _ in range(_LISTS):
            listed = self.shared.documents.listed(BLOCK, self.network.name)
            self.others = [one[1] for one in map(found, listed) if one]
            taken = {*(block.index for block in self.others), *(block.index for block in self.mine.blocks)}
            free = limits.without(wanted, taken)
            if not free:
                # A dead node's would be one more that nothing is given from.
                # guard below: not-for-the-very-last (is_sparing)
                return not self.network.is_sparing and self._take_of(wanted, listed)
            for _ in range(min(_CONFLICTS, count(free))):
                if self._ask_for(self._new(limits.nth(free, secrets.randbelow(count(free))))):
                    return True
        self._forget_claim()
        raise TryAgain(f"other nodes claim blocks of network {self.network.name} faster than this one; try again")

    def _take_of(self, wanted: Sequence[Span], listed: Sequence[Document]) -> bool:
        """Take one of those blocks from a node that is dead; False if there is none."""
        us = Machine(self.mine.node, self.mine.machine)
        for document, block in reclaiming.search(self.shared.documents, us, listed, self.log):
            if limits.has(wanted, block.index) and self._take(document, block):  # guard: only-what-is-needed (wanted)
                return True
        return False

    def _take(self, document: Document, block: Block) -> bool:
        """Take the block from its node, which is dead; False if another was faster."""
        claim = self._new(block.index)
        self._note(replace(self.mine, claim=claim))
        new = block.given_to(self.mine.node, self.mine.machine, claim.nonce)
        if (made := self.shared.documents.replace(document, new.as_json())) or (made := self._found(claim)):
            self.log.append(
                f"block {block.index} of network {block.network} was taken from {block.node}, which is dead"
            )
            self._have(made)
        return bool(made)

    def _new(self, index: int) -> Claim:
        """A new claim of that block."""
        return Claim(index, self.mine.nonce())

    def _ask_for(self, claim: Claim) -> bool:
        """Claim that block; whether it is this node's now."""
        self._note(replace(self.mine, claim=claim))  # guard: nonce-first
        block = Block(self.network.name, claim.index, self.mine.size, self.mine.node, self.mine.machine, claim.nonce)
        made = self.shared.documents.create(BLOCK, block.name, block.network, block.as_json())
        if not (made or (made := self._found(claim))):  # guard: the-answer-was-lost (claim)
            self.mine = replace(self.mine, claim=None)
            return False
        self.log.append(f"block {claim.index} of network {self.network.name} is this node's ({self.mine.node}) now")
        self._have(made)
        return True

    def _found(self, claim: Claim) -> Document | None:
        """What an earlier asking for that claim has made, of which the answer was lost."""
        made = self.shared.documents.read(BLOCK, name_of_block(self.network.name, claim.index))
        # guard below: its-own-nonce = not made or not (block := Block.of(made))
        if not made or (block := Block.of(made)).claim != claim.nonce:
            return None
        # That may be long ago, and others take us for dead: we answer before we give from it.
        answer = rules.answer(block, self.mine.machine)
        # guard below: answer-first = self.shared.documents.replace(made, made.body)
        return self.shared.documents.replace(made, answer.as_json()) if answer else made

    def _have(self, document: Document) -> None:
        """Note that this node has that block."""
        self._note(restored.claimed(self.mine, document, self.shared.documents.now(), self.log))

    def _claim_this(self, need: AskFirst, index: int) -> None:
        """Claim the one block that has the requested address, or take it from a node that is dead.

        Raises AddressHeld.
        """
        if self._take_back([Span(limits.NUMBERS, index, index)]) or self._ask_for(self._new(index)):
            return
        us, documents = Machine(self.mine.node, self.mine.machine), self.shared.documents
        there = documents.read(BLOCK, name_of_block(self.network.name, index))
        for document, block in reclaiming.search(documents, us, [there] if there else [], self.log):
            if self._take(document, block):
                return
        self._forget_claim()
        raise AddressHeld(
            f"requested address {need.address} is in block {index} of network {self.network.name}, {self._whose(index)}"
        )

    def _whose(self, index: int) -> str:
        """In words, whose the block is, and what can be done."""
        there = self.shared.documents.read(BLOCK, name_of_block(self.network.name, index))
        if there is None:
            return "which a node is giving back; request another, or try again"
        block = Block.of(there)
        if left := reclaiming.seconds_left(block, self.shared.documents.now()):
            when = f"if it stays so, the address is to be had in about {max(1, left / 60):.0f} minutes"
            return f"which node {block.node} has; that node seems dead: {when}"
        return f"which node {block.node} has; request another, or attach there"

    def _has(self, index: int) -> bool:
        return index in (*self.mine.giving, *self.mine.draining)

    def _note(self, mine: Held) -> None:
        """Put on disk what this node has."""
        held.write(self.network.directory, mine)
        self.mine = mine

    def _forget_claim(self) -> None:
        """Note that no claim is unanswered, or the next would begin with a block that nobody needs any more."""
        there = held.read(self.network.directory)
        if there and there.claim:
            self._note(replace(self.mine, claim=None))

    def _refuse(self, need: PoolExhausted, wanted: Sequence[Span]) -> NoReturn:
        if not self.others:  # no block would have any
            self._forget_claim()
            raise need
        known = exhausted.of(wanted, self.others)
        # Who spares blocks of the dead has not looked for these.
        self._note(replace(self.mine, claim=None, exhausted=None if self.network.is_sparing else known))
        raise PoolExhausted(f"{need.msg}; and {exhausted.in_words(self.network, known)}") from need
