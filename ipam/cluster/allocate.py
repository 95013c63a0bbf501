"""Allocate addresses of a pool that the nodes of a cluster share, for one attachment.

The addresses come from this node's own blocks.  If these have no room, ``SharedAllocation`` claims a block and reserves
again.  With room it sends no request, and imports no module that could send one.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from base.protocol.errors import CniError, PoolExhausted, TryAgain, doing
from base.protocol.result import Address, Ip
from ipam import allocation
from ipam.allocation import Allocation, chosen, newcomers
from ipam.cluster import node_blocks
from ipam.cluster.rules.network import Need, Needed, Network, Numbers, directory_in
from ipam.cluster.view import AnyBlock, HeartbeatDue, OwnNumber, Unproven, View
from ipam.stores import LOCK_TIMEOUT, Book, Store, Terms
from ipam.withheld import Withheld


@dataclass
class SharedAllocation(Allocation):
    """An allocation from the view, and from blocks claimed for it."""

    view: View

    def hold(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Raises as Allocation.reserve.  Raises PoolExhausted if no block is free, and AddressHeld if another node owns
        the requested address.  Raises InvalidConfig if the blocks of the cluster or of this node do not match the
        configuration.  Raises RecordUnreadable, Unreachable, BackendRefused, TryAgain, IoFailure."""
        try:
            ips = self._hold(requested)
        except Unproven:
            self.view.is_probed = True
            return ()
        if self.view.had_heartbeat:
            # This node may run neither hpn node nor an agent.
            self.view.policy.release_unused(self.log)
        return ips

    def hold_unprobed(self, why: str, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Hold addresses of a block that had no other owner, if this node has or can claim one."""
        self.view.is_probed = self.view.policy.is_sparing = True
        with suppress(PoolExhausted, TryAgain):
            return self.hold(requested)
        self.view.policy.is_sparing = False
        self.log.append(f"{why}, so the addresses were not probed for, and no other block is available")
        return self.hold(requested)

    def note_probed(self, ips: Sequence[Ip]) -> None:
        self.view.note_probed(ips)

    def choose(self, requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
        self.request.refuse_if_abandoned()
        withheld = Withheld(book, self.store.directory, self.master)
        ips = chosen(self.view.usable_pool(requested), self.rail, requested, withheld)
        self.view.check(ips, book)
        return ips

    def reserve(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Raises as Allocation.reserve; Needed, Unproven.  Raises TryAgain if the name's number is on this node, and
        another attachment holds its address."""
        try:
            return super().reserve(requested)
        except PoolExhausted as e:
            self.view.policy.refuse_if_no_claim_helps(e)
            raise

    def _hold(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Reserve, after a heartbeat if one is due, and with a claimed block if there is no room.  Raises Unproven."""
        try:
            return self.reserve(requested)
        except HeartbeatDue as due:
            self._heartbeat(late=due.late)
            return self._hold(requested)
        except (PoolExhausted, Needed) as e:
            need: Need = e
        return self._claim_and_reserve(need, requested)

    def _claim_and_reserve(self, need: Need, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Claim what this node needs, then reserve.

        Of two concurrent calls without room, the second finds the block that the first claimed.
        """
        claimer, policy = None, self.view.policy
        with ExitStack() as locks:
            if self._lock(locks):
                # A DEL may have freed an address in the wait, and the backend may be unreachable, or have no block.
                try:
                    return self.reserve(requested)
                except (PoolExhausted, Needed) as e:
                    need = e
            known = self.view.mine.giving if self.view.mine else ()
            # Each range set without room may need a block of its own.
            for _ in range(len(policy.network.pool.sets) + 1):
                with doing(f"{policy.request()}: {need.msg}"):
                    is_new, claimer = not claimer, claimer or policy.claimer(self.log, known)
                    if not (is_new and claimer.found_some):
                        claimer.serve(need)
                try:
                    return self.reserve(requested)
                except (PoolExhausted, Needed) as e:
                    need = e
        raise need

    def _lock(self, locks: ExitStack) -> bool:
        """Take the locks for a request to the backend; return whether another process held one."""
        has_waited = False
        for directory in self.view.policy.directories():
            try:
                locks.enter_context(node_blocks.lock(directory, 0))
            except TryAgain:
                locks.enter_context(node_blocks.lock(directory, LOCK_TIMEOUT))
                has_waited = True
        return has_waited

    def _heartbeat(self, *, late: bool) -> None:
        """Send a heartbeat if the backend answers."""
        from ipam.cluster.reconcile import sync  # noqa: PLC0415

        self.view.had_heartbeat = True
        sync.heartbeat_if_due(self.view.policy.network, self.log, late=late)


def may_have_number(network: Network, pod: str) -> bool:
    """Whether a pod with an ordinal name is a StatefulSet's: it has a number here, or no other controller is known.

    Asks the backend about a name without a number on this node.  Without an answer, the name decides.
    """
    with suppress(CniError):
        mine = node_blocks.read(directory_in(network.directory))
        if mine and any(block.whose == pod or block.whose.startswith(f"{pod}:") for block in mine.blocks):
            return True
        from ipam.cluster.backends import backend  # noqa: PLC0415  # connects to the backend

        kind = backend.opened(network.cluster.backend).documents.controller(pod)
        return not kind or kind.endswith("StatefulSet")
    return True


def shared(alone: Allocation, network: Network, *, has_number: bool) -> SharedAllocation:
    """Return the allocation as one from the cluster's pool; ``has_number``: its name has one number on all nodes."""
    is_probed, terms = bool(alone.pool.probe), alone.owner.terms
    if not has_number:
        return SharedAllocation(**vars(alone), view=View(AnyBlock(network), is_probed))
    if mine := node_blocks.read(network.directory):
        network.refuse_another(mine)
    numbers = Numbers.of(network, terms.sticky, max(terms.ttl, terms.cooldown))
    # The backend keeps the address for the name, so this node need not.
    owner = replace(alone.owner, terms=Terms())
    about = vars(alone) | {"pool": numbers.pool, "owner": owner}
    return SharedAllocation(**about, view=View(OwnNumber(numbers), is_probed))


def rehearse(network: Network, store: Store, log: list[str], master: str) -> None:
    """Check that an ADD over that master would succeed, or would with one more block that this node could claim.

    Raises what the ADD would raise, and NotAvailable.
    """
    view = View(AnyBlock(network), is_probed=True, had_heartbeat=True)  # an ADD sends the heartbeat
    try:
        allocation.rehearse(store, network.pool, lambda book: newcomers(view.usable_pool(()), book), log, master)
    except (PoolExhausted, Needed) as e:
        need: Need = e
    else:
        return
    from ipam.cluster.reconcile import claim_block  # noqa: PLC0415  # connects to the backend

    claim_block.refuse_if_none(network, view.mine, need)
