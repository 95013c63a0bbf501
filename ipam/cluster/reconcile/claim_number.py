"""Claim the number of a name from the backend: its number from another node, or else a new one.

Every change is a compare-and-swap of the number's document, with a random text (nonce) that is on this node's disk
before, as for blocks (claim_block.py). A live node keeps its number until a round finds it unused (reconcile.py). Until
then the ADD fails with TryAgain.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from base.protocol import report
from base.protocol.errors import PoolExhausted, TryAgain
from ipam.cluster import BLOCK, Document, Machine, node_blocks
from ipam.cluster.backends.backend import Backend, opened
from ipam.cluster.node_blocks import NodeBlocks, PendingClaim
from ipam.cluster.reconcile import reclaim
from ipam.cluster.reconcile.heartbeat import Found, readable
from ipam.cluster.reconcile.sync import confirm, load, refuse_second, refuse_uncovered
from ipam.cluster.rules import block_math, ownership
from ipam.cluster.rules.documents import Block, indexes
from ipam.cluster.rules.network import Need, Numbers
from ipam.ranges import count

# Attempts when other nodes are faster.
_TRIES: Final = 8


@dataclass
class NumberClaimer:
    """This node's claims of reserved numbers; the caller holds ``blocks.lock`` of both directories.

    ``found_some``: the node owns the name's number, and its file did not record that.
    """

    network: Numbers
    backend: Backend
    mine: NodeBlocks
    log: list[str]
    found_some: bool = False

    @classmethod
    def begin(cls, network: Numbers, log: list[str]) -> "NumberClaimer":
        """Read this node's blocks and numbers, and confirm them where needed."""
        backend, parent = opened(network.cluster.backend), network.parent
        # All nodes must agree on the reserved numbers before any is allocated.
        whole = confirm(parent, backend, load(parent), log)
        mine = confirm(network, backend, load(network), log)
        if not whole.blocks:
            refuse_uncovered(parent, whole)
        if not (whole.blocks or mine.blocks):
            refuse_second(backend.documents, parent)
        return cls(network, backend, mine, log, mine.number_of(network.owner) is not None)

    def serve(self, _need: Need) -> None:
        """Claim the name's number.  Raises TryAgain if another node owns it; PoolExhausted if no number is free."""
        for _ in range(_TRIES):
            documents = list(self.backend.documents.listed(BLOCK, self.network.name))
            named = [one for one in readable(documents) if one[1].whose == self.network.owner]
            if self._claim_old(named) if named else self._claim_new(documents):
                return
        raise TryAgain(
            f"other nodes change the numbers of network {self.network.parent.name} faster than this one; try again"
        )

    def _claim_old(self, named: Sequence[Found]) -> bool:
        """Claim the number that the name had; False if another node was faster."""
        us = Machine(self.mine.node, self.mine.machine)
        for document, block in sorted(named, key=lambda one: not self._is_ours(one[1])):
            if self._is_ours(block) or not block.node:
                return self._claim(document, block)
        for document, block in reclaim.search(self.backend.documents, us, named, self.log):
            return self._claim(document, replace(block, taken=True))
        document, block = named[0]
        raise TryAgain(
            f"{self.network.owner} has host number {block.index} of network {self.network.parent.name}, and node "
            f"{block.node} did not release it: its pod runs, or hpn node and agent do not; if gone for good: "
            f"hpn ipam release-node {block.node}"
        )

    def _claim_new(self, listed: Sequence[Document]) -> bool:
        """Claim a number without a name; False if another node was faster.  Raises PoolExhausted."""
        wanted = block_math.candidates(self.network.pool.sets, 1)
        if free := block_math.without(wanted, indexes(listed) | {block.index for block in self.mine.blocks}):
            begin = int.from_bytes(hashlib.sha256(self.network.owner.encode()).digest()[:8])
            return self._create(block_math.nth(free, begin))
        now = self.backend.documents.now()
        theirs = [one for one in readable(listed) if block_math.has(wanted, one[1].index)]
        for document, block in sorted(theirs, key=lambda one: one[1].free):
            if block.is_over(now):
                return self._claim(document, block)
        us = Machine(self.mine.node, self.mine.machine)
        for document, block in reclaim.search(self.backend.documents, us, theirs, self.log):
            return self._claim(document, replace(block, taken=True))
        raise PoolExhausted(
            f"{self.network.owner}: other names use or keep all {count(wanted)} host numbers that network "
            f"{self.network.parent.name} reserves ({self.network.parent.cluster.sticky}, ipam.cluster.sticky); delete "
            "pods, or wait until one expires (ipam.sticky seconds): hpn ipam show --cluster"
        )

    def _is_ours(self, block: Block) -> bool:
        """Whether this directory of this node owns the number."""
        is_us = (block.node, block.machine) == (self.mine.node, self.mine.machine)
        return is_us and self.mine.is_of_this_place(block.claim)

    def _claim(self, document: Document, block: Block) -> bool:
        """Claim that number; False if its document changed.

        A number of this node is claimed too: a release of it may still be on its way, and fails after this change.
        """
        asked = self.mine.claim and self.mine.claim.nonce == block.claim
        # This node owns it and forgot it, so a pod here may use its address.
        forgotten = self._is_ours(block) and not asked and not self.mine.block(block.index)
        claim = self._record_claim(block.index)
        new = self._as_ours(replace(block, taken=block.taken or forgotten), claim)
        return self._record(self.backend.documents.replace(document, new.to_json()))

    def _create(self, index: int) -> bool:
        """Claim that number, which has no document; False if another node was faster."""
        claim = self._record_claim(index)
        new = self._as_ours(Block(self.network.name, index, 1, "", "", ""), claim)
        return self._record(self.backend.documents.create(BLOCK, new.name, new.network, new.to_json()))

    def _record_claim(self, index: int) -> PendingClaim:
        claim = PendingClaim(index, self.mine.nonce())
        self._write(replace(self.mine, claim=claim))
        return claim

    def _as_ours(self, block: Block, claim: PendingClaim) -> Block:
        of_name = replace(block, whose=self.network.owner, keep=self.network.keep, free=0)
        return replace(of_name, node=self.mine.node, machine=self.mine.machine, claim=claim.nonce, suspect=0)

    def _record(self, made: Document | None) -> bool:
        """Record the number as this node's, if the claim succeeded."""
        if made is None:  # after a lost answer, the next list shows this node's claim
            return False
        block = Block.of(made)
        if not self.mine.blocks:  # hpn node may not know this network yet, and must report this node alive
            report.send_low(lambda: True)
        self._write(ownership.claimed(self.mine, made, self.backend.documents.now(), self.log))
        self.log.append(
            f"host number {block.index} of network {self.network.parent.name} belongs to {block.whose}, on this node"
        )
        return True

    def _write(self, mine: NodeBlocks) -> None:
        node_blocks.write(self.network.directory, mine)
        self.mine = mine
