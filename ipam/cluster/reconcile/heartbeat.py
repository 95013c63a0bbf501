"""Reconcile this node's blocks with the backend: refute suspicions, and detect lost or forgotten blocks.

``answer`` needs neither the disk nor a lock.  For ``send``, the caller holds ``blocks.lock`` (node_blocks.py), and
writes the result.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from base.protocol.errors import BackendRefused, RecordUnreadable, TryAgain
from base.state import durable
from ipam.cluster import BLOCK, Document, Documents, Machine
from ipam.cluster.node_blocks import HELD, LOST, NodeBlocks, OwnedBlock
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import Block, block_name

# Attempts when a document changes between reading and writing.
_TRIES: Final = 5

Found = tuple[Document, Block]
# Marks those of the blocks with these indexes that have no lease as returning, in the node's file too.
Withdraw = Callable[[NodeBlocks, Collection[int]], NodeBlocks]


class Heartbeat:
    """A heartbeat of this node, which is ``machine``.

    ``log`` gets what an operator should know, and ``suspected`` counts the node's suspected blocks.  ``left`` holds the
    blocks of its name that belong to another machine.
    """

    def __init__(self, documents: Documents, machine: Machine, log: list[str]) -> None:
        self._documents, self.machine, self._log = documents, machine, log
        self.suspected, self.left, self._made_again = 0, list[Found](), False
        # The documents that ``answer`` read, by index, and when it began: answers may be as old as that.
        self._found, self.began = dict[int, Found](), 0

    def answer(self, mine: NodeBlocks) -> None:
        """Read the documents of these blocks, and refute each suspicion.

        ``mine`` may be older than the node's file.  So blocks of this machine that it lacks are answered for too, if
        they were claimed from the same directory.  Raises Unreachable, BackendRefused.
        """
        self.began, was = int(time.time()), mine.machine
        mine = self._of_now(mine)
        self._found = {one[1].index: one for one in readable(self._documents.listed(BLOCK, mine.network, mine.node))}
        for held in [block for block in mine.blocks if block.state == HELD]:
            known = self._found.get(held.index) or read_block(self._documents, mine.network, held.index)
            if known and known[1].node and _is_ours(mine, was, held, known):
                known = self._refute(mine, held, known)
            if known:
                self._found[held.index] = known
        for index, known in self._found.items():
            if not mine.block(index) and known[1].suspect and self._is_from_here(mine, known[1]):
                held = OwnedBlock(index, known[0].uid, mine.node)
                self._found[index] = self._refute(mine, held, known) or known

    def send(self, mine: NodeBlocks, withdraw: Withdraw) -> NodeBlocks:
        """Send it; return this node's blocks as they are then.  ``withdraw`` is for blocks whose document was removed.

        Raises Unreachable, BackendRefused, TryAgain; RecordUnreadable for the document of one of its blocks.
        """
        if not self.began:
            self.answer(mine)
        was, mine = mine.machine, self._of_now(mine)
        read = {one.index: self._found.get(one.index) for one in mine.blocks if one.state == HELD}
        there = {index: known or read_block(self._documents, mine.network, index) for index, known in read.items()}
        gone = [index for index, known in there.items() if not known and not self._is_unreadable(mine, index)]
        mine = self._forget_removed(mine, gone, withdraw)
        for held in [block for block in mine.blocks if block.state == HELD]:
            mine = mine.having(self._reconcile(mine, was, held, there[held.index]))
        for index in [index for index, known in self._found.items() if known[1].node == mine.node]:
            # Read again under the lock, because the node may have released the block since ``answer``.
            if not mine.block(index) and (found := read_block(self._documents, mine.network, index)):
                mine = self._add_forgotten(mine, found)
                if self.machine.uid and found[1].node == mine.node and not mine.block(index):
                    self.left.append(found)  # an earlier machine of this name owns it
        return replace(self._detect_restore(mine), looked=self.began, host=os.uname().nodename, boot=durable.boot_id())

    def _of_now(self, mine: NodeBlocks) -> NodeBlocks:
        return replace(mine, node=self.machine.name, machine=self.machine.uid or mine.machine)

    def _forget_removed(self, mine: NodeBlocks, indexes: Sequence[int], withdraw: Withdraw) -> NodeBlocks:
        """Return the node's blocks without use of those that were removed and have no lease.

        No pod needs them, so a retired network stays retired.  A block with a lease is created again.
        """
        if not indexes:
            return mine
        mine = withdraw(mine, indexes)
        for block in mine.blocks:
            if block.index in indexes and block.state != HELD:
                self._made_again = True  # a restore can have removed it too
                self._log.append(
                    f"block {block.index} of {mine.network} was removed from the backend, and has no lease: "
                    "this node gives it up"
                )
        return mine

    def _is_unreadable(self, mine: NodeBlocks, index: int) -> bool:
        """Whether the block has a document, although ``read_block`` found none."""
        return self._documents.read(BLOCK, block_name(mine.network, index)) is not None

    def _detect_restore(self, mine: NodeBlocks) -> NodeBlocks:
        """Record a restore of the backend to an older state, if one shows."""
        now = self._documents.now()
        mine = ownership.note_revision(mine, self._documents.revision(mine.revision), now, self._log)
        return ownership.doubt(mine, "documents were gone", now, self._log) if self._made_again else mine

    def _reconcile(self, mine: NodeBlocks, was: str, held: OwnedBlock, known: Found | None) -> OwnedBlock:
        """Return the block as the backend holds it, with suspicions refuted; ``was`` is the former machine UID."""
        for _ in range(_TRIES):
            if known is None:
                if made := self._create_again(mine, held):
                    return made
            elif not known[1].node and held.whose == known[1].whose:
                self._take_back(mine, known)
            elif not _is_ours(mine, was, held, known):
                return self._mark_lost(held, known[1])
            elif found := self._refute(mine, held, known):
                return replace(held, uid=found[0].uid)
            known = read_block(self._documents, mine.network, held.index)
        if unreadable := self._documents.read(BLOCK, block_name(mine.network, held.index)):
            Block.of(unreadable)  # raises RecordUnreadable, with the document's name
        raise TryAgain(f"block {held.index} of {mine.network} changes faster there than this node can update it")

    def _refute(self, mine: NodeBlocks, held: OwnedBlock, known: Found) -> Found | None:
        """Refute a suspicion of the block; return its document, None if that changed meanwhile."""
        document, block = known
        self.suspected += bool(block.suspect)
        # Under a former name, keep the recorded machine: another node may have that name now.
        body = ownership.answer(block, mine.machine if held.node == mine.node else block.machine)
        if body is None:
            return known
        try:
            answered = self._documents.replace(document, body.to_json())
        except BackendRefused as e:
            if held.node == mine.node:
                raise
            self._log.append(
                f"block {block.index} of {block.network} belongs to this node's former name {block.node}: {e.msg}"
            )
            return known
        if block.suspect and answered:
            self._log.append(f"block {block.index} of {block.network}: {block.node} was suspected to be dead; it lives")
        return (answered, body) if answered else None

    def _take_back(self, mine: NodeBlocks, known: Found) -> None:
        """Take back a number that the backend lists as released, because it was restored to an older state."""
        document, block = known
        new = replace(block, node=mine.node, machine=mine.machine, claim=mine.nonce(), free=0)
        self._documents.replace(document, new.to_json())

    def _create_again(self, mine: NodeBlocks, held: OwnedBlock) -> OwnedBlock | None:
        """Create the block's document again after its removal; return None if another node was faster."""
        about = mine.network, held.index, mine.size, mine.node, mine.machine, mine.nonce()
        block = Block(*about, taken=held.taken, whose=held.whose)
        made = self._documents.create(BLOCK, block.name, block.network, block.to_json())
        if made is None:
            return None
        self._made_again = True
        self._log.append(f"block {block.index} of {block.network} was missing in the backend, and is this node's again")
        return replace(held, uid=made.uid, node=mine.node)

    def _mark_lost(self, held: OwnedBlock, block: Block) -> OwnedBlock:
        self._log.append(
            f"block {block.index} of {block.network} (numbers {block.first} to {block.last}) is {block.node}'s now, "
            "because this node seemed dead; this node allocates none of it, and other pods may get its addresses; "
            "delete its pods here"
        )
        return replace(held, state=LOST)

    def _add_forgotten(self, mine: NodeBlocks, known: Found) -> NodeBlocks:
        """Add a block that the backend assigns to this node, and that this node forgot or never recorded."""
        document, block = known
        fresh = OwnedBlock(block.index, document.uid, mine.node, taken=True, whose=block.whose)
        asked = bool(mine.claim and block.claim == mine.claim.nonce)
        # A block of another directory is in use by another network of this name, so this one must not use it.
        if block.node != mine.node or (not asked and not self._is_from_here(mine, block)):
            return mine
        # The suspicion may be so old that another node reclaims the block any moment, so refute it first.
        answer = ownership.answer(block, mine.machine)
        if answer and not self._documents.replace(document, answer.to_json()):
            return mine
        if asked:
            return replace(mine.having(replace(fresh, taken=block.taken)), claim=None)
        self._log.append(
            f"block {block.index} of {block.network} is this node's, and was missing in its file: its addresses are "
            "probed for before use"
        )
        return mine.having(fresh)

    def _is_from_here(self, mine: NodeBlocks, block: Block) -> bool:
        """Whether this machine claimed the block from the directory of ``mine``."""
        return block.machine == self.machine.uid and mine.is_of_this_place(block.claim)


def answer_all(documents: Documents, machine: Machine, log: list[str]) -> int:
    """Refute suspicions of this machine's blocks without its file; return the number of its blocks.

    Raises Unreachable, BackendRefused.
    """
    found = [one for one in readable(documents.listed(BLOCK, None, machine.name)) if one[1].machine == machine.uid]
    for document, block in found if machine.uid else ():
        if body := ownership.answer(block, machine.uid):
            documents.replace(document, body.to_json())
            log.append(f"block {block.index} of {block.network}: {block.node} was suspected to be dead; it lives")
    return len(found)


def is_anothers(held: OwnedBlock, block: Block) -> bool:
    """Whether another node took the block since this one owned it; that node may have the same name."""
    return block.node != held.node or (block.taken and not held.taken)


def _is_ours(mine: NodeBlocks, was: str, held: OwnedBlock, known: Found) -> bool:
    document, block = known
    if is_anothers(held, block):
        return False
    is_same = document.uid == held.uid
    if held.node != mine.node or (is_same and not block.taken):
        return is_same
    # This node created it again and lost the answer, or it was reclaimed once more.  The machine rules out another host
    # of this name, and the claim rules out another directory on this host.
    return block.machine in (was, mine.machine) and mine.is_of_this_place(block.claim)


def readable(documents: Iterable[Document]) -> Iterator[Found]:
    """Yield the documents with their blocks, except unreadable ones, which no node changes."""
    for document in documents:
        with suppress(RecordUnreadable):
            yield document, Block.of(document)


def read_block(documents: Documents, network: str, index: int) -> Found | None:
    """Return the block's document and its content; None if it does not exist, or is unreadable."""
    document = documents.read(BLOCK, block_name(network, index))
    return next(readable([document] if document else []), None)
