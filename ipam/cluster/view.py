"""This node's blocks of a shared pool, as one attachment may use them.

A view sends no request, and imports no module that could send one.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from base.protocol import report
from base.protocol.errors import PoolExhausted, RecordUnreadable, TryAgain
from base.protocol.result import Address, Ip
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import NodeBlocks, OwnedBlock, heartbeat_is_due, is_late, must_sync
from ipam.cluster.rules import block_math
from ipam.cluster.rules.network import Needed, Network, Numbers
from ipam.pool import Pool
from ipam.stores import Book

if TYPE_CHECKING:
    from ipam.cluster.reconcile import claim_block, claim_number


class HeartbeatDue(Needed):
    """A heartbeat is due before an address is allocated.

    ``late``: the node has sent none for the grace, so other nodes may own its blocks by now.
    """

    def __init__(self, why: str, *, late: bool) -> None:
        super().__init__(why)
        self.late = late


class Unproven(Exception):
    """Ends a choice: the address is in a block with unknown leases, so it must be probed for first."""


@dataclass
class AnyBlock:
    """The policy of most attachments: each address of this node's blocks will do.

    ``is_sparing``: blocks that had another owner serve requested addresses only.
    """

    network: Network
    is_sparing: bool = False

    def request(self) -> str:
        """The request to the backend, for an error message."""
        return f"claiming a block of network {self.network.name}"

    def directories(self) -> tuple[str, ...]:
        """The directories whose ``blocks.lock`` such a request needs, in this order."""
        return (self.network.directory,)

    def usable(self, mine: NodeBlocks, requested: Sequence[Address]) -> NodeBlocks:
        """Return the node's blocks without those that the attachment may not use.  Raises Needed."""
        wanted = {address: block_math.block_of(self.network.pool.sets, mine.size, address) for address in requested}
        if self.is_sparing:
            mine = mine.without(*({block.index for block in mine.blocks if block.taken} - set(wanted.values())))
        if new := sorted(set(self.network.subnets) - set(mine.subnets)):
            raise Needed(f"{', '.join(new)} is new on this node")
        blocks = {None, *mine.giving, *mine.draining}
        for address, index in wanted.items():
            if index not in blocks:
                raise Needed(f"requested address {address} is not in this node's blocks", index, address)
        return mine

    def claimer(self, log: list[str], known: Collection[int]) -> "claim_block.BlockClaimer":
        from ipam.cluster.reconcile import claim_block  # noqa: PLC0415  # connects to the backend

        return claim_block.BlockClaimer.begin(self.network, log, known, is_sparing=self.is_sparing)

    def is_low(self, mine: NodeBlocks, book: Book) -> bool:
        """Whether this node has little room; hpn node then claims a block."""
        from ipam.cluster.rules import counting  # noqa: PLC0415  # only where hpn node listens

        return bool(counting.short(mine, counting.needing_blocks(self.network.pool), book.count))

    def refuse_if_no_claim_helps(self, full: PoolExhausted) -> None:
        """Raise an error if a claim would not help where no address is free; a block would."""

    def release_unused(self, log: list[str]) -> None:
        """Release what no attachment here uses: a round does that for blocks."""


@dataclass
class OwnNumber:
    """The policy of an attachment whose name has one reserved number on all nodes: only that number will do.

    So it can spare no block, and ``is_sparing`` changes nothing.
    """

    network: Numbers
    is_sparing: bool = False

    def request(self) -> str:
        return f"claiming the address of {self.network.owner} in network {self.network.parent.name}"

    def directories(self) -> tuple[str, ...]:
        return self.network.parent.directory, self.network.directory

    def usable(self, mine: NodeBlocks, _requested: Sequence[Address]) -> NodeBlocks:
        number = mine.number_of(self.network.owner)
        # Requested addresses are made of a MAC, so they need no number.
        if number is None or not set(self.network.subnets) <= set(mine.subnets):
            raise Needed(f"this node does not own the number of {self.network.owner}")
        return replace(mine, blocks=tuple(block for block in mine.blocks if block.index == number))

    def claimer(self, log: list[str], _known: Collection[int]) -> "claim_number.NumberClaimer":
        from ipam.cluster.reconcile import claim_number  # noqa: PLC0415  # connects to the backend

        return claim_number.NumberClaimer.begin(self.network, log)

    def is_low(self, _mine: NodeBlocks, _book: Book) -> bool:
        return False

    def refuse_if_no_claim_helps(self, full: PoolExhausted) -> None:
        raise TryAgain(
            f"the address that {self.network.owner} has on all nodes is in use on this one: another attachment of "
            f"that name lives, or may live; delete it ({full.msg})"
        ) from full

    def release_unused(self, log: list[str]) -> None:
        from ipam.cluster.reconcile import reconcile  # noqa: PLC0415

        reconcile.release_numbers(self.network, log)


@dataclass
class View:
    """This node's blocks as one attachment may use them.

    - ``is_probed``: each address is probed for before use.
    - ``had_heartbeat``: a heartbeat was sent or tried, or is not required.
    - ``mine``: the node's blocks at the last choice.
    """

    policy: AnyBlock | OwnNumber
    is_probed: bool
    had_heartbeat: bool = False
    mine: NodeBlocks | None = None

    def usable_pool(self, requested: Sequence[Address]) -> Pool:
        """Return the part of the pool that this node may allocate from.  The caller holds the lock of the leases.

        Raises Needed; InvalidConfig if the blocks are from another backend or have another size; IoFailure.
        """
        self.mine = self._known()
        usable = self.policy.usable(self.mine, requested)
        return block_math.limited(self.policy.network.pool, usable.size, usable.giving, usable.draining)

    def _known(self) -> NodeBlocks:
        """Return this node's blocks.  Raises as ``usable_pool``."""
        network = self.policy.network
        try:
            mine = node_blocks.read(network.directory)
        except RecordUnreadable as e:
            raise Needed(e.msg) from e
        if mine is None or mine.network != network.name:
            raise Needed("this node has no block yet")
        network.refuse_another(mine)
        if must_sync(mine):
            raise Needed("other nodes may own its blocks by now: this host was off, or its disk is a copy")
        if not self.had_heartbeat and heartbeat_is_due(mine):
            why = "other nodes may own its blocks by now: its last heartbeat is too old"
            raise HeartbeatDue(why, late=is_late(mine))
        return mine

    def check(self, ips: Sequence[Ip], book: Book) -> None:
        """Raise Unproven if one of these addresses must be probed for; notify hpn node if little room is left."""
        if self.mine and not self.is_probed and self._unproven(self.mine, ips):
            raise Unproven("the leases of its block are unknown")
        if self.mine:
            report.send_low(partial(self.policy.is_low, self.mine, book))

    def note_probed(self, ips: Sequence[Ip]) -> None:
        """Record that no other host on the link has these addresses, so that no later ADD probes for them.

        If a round has the lock, it is not worth the wait: the next ADD probes once more.
        """
        if not (self.mine and self._unproven(self.mine, ips)):
            return
        with suppress(TryAgain), node_blocks.lock(self.policy.network.directory, 0):
            mine = node_blocks.read(self.policy.network.directory)
            if mine is None:
                return
            for block, address in self._unproven(mine, ips):
                had = mine.block(block.index) or block
                mine = mine.having(replace(had, tried=had.tried | {str(address)}))
            node_blocks.write(self.policy.network.directory, mine)

    def _unproven(self, mine: NodeBlocks, ips: Sequence[Ip]) -> list[tuple[OwnedBlock, Address]]:
        """Return those addresses, with their blocks, that had another owner and were never probed for."""
        taken: dict[int | None, OwnedBlock] = {block.index: block for block in mine.blocks if block.taken}
        sets, addresses = self.policy.network.pool.sets, [ip.address.ip for ip in ips] if taken else []
        found = ((taken.get(block_math.block_of(sets, mine.size, one)), one) for one in addresses)
        return [(block, one) for block, one in found if block and str(one) not in block.tried]
