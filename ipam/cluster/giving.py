"""Addresses from this node's own blocks, and the store asked for more where these have no room.

With room nothing of this package is needed but this module, held.py and limits.py, and nobody is asked.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from cni.protocol import report
from cni.protocol.errors import InvalidConfig, PoolExhausted, RecordUnreadable, TryAgain
from cni.protocol.result import Address, Ip
from ipam.cluster import held, limits
from ipam.cluster.held import Held, is_late, may_look, must_look
from ipam.pool import Cluster, Pool, Rail, RangeSet
from ipam.stores import LOCK_TIMEOUT, Book, Choose

T = TypeVar("T")


# Holds addresses for the attachment; it is given the requested ones.
Reserve = Callable[[Sequence[Address]], tuple[Ip, ...]]
# Is told which addresses nobody else on the link has.
Proven = Callable[[Sequence[Address]], None]
# Holds addresses where nobody on the link can be asked, for the reason in words; it is given the requested ones.
Unasked = Callable[[str, Sequence[Address]], tuple[Ip, ...]]


class AskFirst(TryAgain):
    """The store must be asked before an address can be chosen, for the reason that the message gives.

    ``block`` is the index of the one block that has the requested ``address``; None where none was requested.
    """

    def __init__(self, why: str, block: int | None = None, address: Address | None = None) -> None:
        super().__init__(why)
        self.block, self.address = block, address


class LookFirst(TryAgain):
    """It is time to look at this node's blocks in the store before an address is given; ``is_late``: others may have
    them by now, because nobody looked for the grace."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("others may have its blocks by now: nobody has looked at them for long")
        self.is_late = is_late


class Unproven(Exception):
    """The address would be of a block whose leases nobody knows, so it has to be probed for first."""


@dataclass
class Network:
    """A network that the cluster shares, on this node: its name, its directory, what its configuration says of the
    store, and all that it has to give in the cluster.

    ``mine`` is what this node had when an address was chosen last; ``has_looked``: it was looked at, if the store is
    there, or need not be.  ``is_sparing``: nothing is given from blocks that had another owner, but what is requested.
    """

    name: str
    directory: str
    cluster: Cluster
    pool: Pool
    mine: Held | None = None
    has_looked: bool = False
    is_sparing: bool = False

    @property
    def subnets(self) -> tuple[str, ...]:
        return limits.subnets(self.pool.sets)

    def give(
        self,
        choice: Callable[[Pool, Sequence[Address]], Choose],
        hold: Callable[[Choose], tuple[Ip, ...]],
        plainly: Callable[[Reserve], tuple[Ip, ...]],
        probing: Callable[[Reserve, Proven, Unasked], tuple[Ip, ...]],
        log: list[str],
    ) -> tuple[Ip, ...]:
        """Addresses of this node's blocks: ``hold`` holds what a ``choice`` picks.

        They are given ``plainly``, as the configuration has it; of a block whose leases nobody knows, ``probing``.

        Raises what these do, and claiming.give_more.
        """

        def reserve(requested: Sequence[Address], *, probed: bool) -> tuple[Ip, ...]:
            def choose(book: Book) -> tuple[Ip, ...]:
                ips = choice(self.own(requested), requested)(book)
                # guard below: unproven
                if not probed and self.mine and self.unproven(self.mine, [ip.address.ip for ip in ips]):
                    raise Unproven
                report.send_low(lambda: self._is_low(book))
                return ips

            return self._with_room(lambda: hold(choose), log)

        def unasked(why: str, requested: Sequence[Address]) -> tuple[Ip, ...]:
            """Of another block, if there is one, or can be claimed."""
            self.is_sparing = True
            with suppress(PoolExhausted, TryAgain):
                return reserve(requested, probed=True)
            self.is_sparing = False
            log.append(f"{why}, so nobody was asked whether others have its addresses, and no other block is to be had")
            return reserve(requested, probed=True)

        try:
            return plainly(partial(reserve, probed=bool(self.pool.probe)))
        except Unproven:
            return probing(partial(reserve, probed=True), self.note_proven, unasked)

    def choice(self, of: Callable[[Pool], Choose]) -> Choose:
        """That choice, of what this node has."""

        def choose(book: Book) -> tuple[Ip, ...]:
            return of(self.own(()))(book)

        return choose

    def see_that(self, ask: Callable[[], None]) -> None:
        """See that ``ask`` does not raise, or would not any more with another block, which could be claimed.

        Raises what ``ask`` does, and NotAvailable.
        """
        self.has_looked = True  # an ADD will
        try:
            ask()
        except (PoolExhausted, AskFirst) as e:
            from ipam.cluster import claiming  # noqa: PLC0415  # asks the store

            claiming.refuse_if_none(self, e)

    def _with_room(self, ask: Callable[[], T], log: list[str]) -> T:
        """What ``ask`` answers; where this node's blocks have no room, after the store gave it another."""
        try:
            try:
                return ask()
            except LookFirst as e:
                self._look(log, late=e.is_late)
            return ask()
        except (PoolExhausted, AskFirst) as e:
            return self._more(ask, e, log)

    def _look(self, log: list[str], *, late: bool) -> None:
        """Look at this node's blocks in the store, if that is there."""
        from ipam.cluster import settling  # noqa: PLC0415

        self.has_looked = True
        settling.look_again(self, log, late=late)

    def _more(self, ask: Callable[[], T], _need: PoolExhausted | AskFirst, log: list[str]) -> T:
        """What ``ask`` answers when the store has given this node what it lacks."""
        from ipam.cluster import claiming  # noqa: PLC0415  # asks the store

        return claiming.give_more(self, ask, log)

    def own(self, requested: Sequence[Address]) -> Pool:
        """The pool as this node has it.  To be called under the lock of the network's leases.

        Raises LookFirst where it is time for that; AskFirst where the store has to say it; InvalidConfig where the
        blocks are another store's, or of another size; IoFailure.
        """
        mine = self._known()
        wanted = {limits.block_of(self.pool.sets, mine.size, address) for address in requested}
        if self.is_sparing and (spared := {b.index for b in mine.blocks if b.taken} - wanted):  # guard: spared
            mine = mine.without(*spared)
        rails, sets, new = _cut(_Same(self.pool.rails), _Same(self.pool.sets), _Same(mine))
        if new:  # guard: new-subnets
            raise AskFirst(f"{', '.join(new)} is new on this node")
        self.mine = mine
        blocks = {*mine.giving, *mine.draining}
        for address in requested:
            index = limits.block_of(self.pool.sets, mine.size, address)
            if index is not None and index not in blocks:  # guard: requested-elsewhere
                raise AskFirst(f"requested address {address} is not in this node's blocks", index, address)
        return replace(self.pool, rails=rails, sets=sets)

    def _known(self) -> Held:
        """What this node has.  Raises as ``own``."""
        try:
            mine = held.read(self.directory)
        except RecordUnreadable as e:
            raise AskFirst(e.msg) from e
        if mine is None or mine.network != self.name:  # guard: another-network (network)
            raise AskFirst("this node has no block yet")
        self.refuse_another(mine)
        if must_look(mine):  # guard: off-for-long
            raise AskFirst("others may have its blocks by now: this host was off, or its disk is a copy")
        if not self.has_looked and may_look(mine):  # guard: look-first
            raise LookFirst(is_late=is_late(mine))
        return mine

    def _is_low(self, book: Book) -> bool:
        """Whether this node has little room; hpn node claims a block then."""
        from ipam.cluster import counting  # noqa: PLC0415  # where hpn node listens

        return bool(self.mine and counting.short(self.mine, counting.needing_blocks(self.pool), book.count))

    def refuse_another(self, mine: Held) -> None:
        """Raises InvalidConfig if this node's blocks are another store's, or of another size than is configured."""
        file, blocks = f"{self.directory}/{held.FILE}", ", ".join(str(b.index) for b in mine.blocks) or "none"
        if mine.store != self.cluster.store:  # guard: another-store
            raise InvalidConfig(
                f"ipam.cluster.store {self.cluster.store!r}: this node has blocks of the network from {mine.store!r} "
                f"({blocks}, {file}); set that, or delete the network's pods on this node and then the file"
            )
        refuse_another(self.name, self.cluster, mine.size, mine.sticky, file)

    def unproven(self, mine: Held, addresses: Sequence[Address]) -> list[Address]:
        """Those of the addresses that are in a block which had another owner, and were never probed for."""
        if not any(block.taken for block in mine.blocks):
            return []
        return [one for one in addresses if _is_unproven(mine, limits.block_of(self.pool.sets, mine.size, one), one)]

    def note_proven(self, addresses: Sequence[Address]) -> None:
        """Note that nobody else on the link has the addresses, so they need not be probed for again."""
        with held.lock(self.directory, LOCK_TIMEOUT):
            mine = held.read(self.directory)
            for one in self.unproven(mine, addresses) if mine else ():
                index = limits.block_of(self.pool.sets, self.cluster.size, one)
                block = mine and index is not None and mine.block(index)
                if mine and block:
                    mine = mine.having(replace(block, tried=block.tried | {str(one)}))
            if mine:
                held.write(self.directory, mine)


class _Same:
    """A key that is equal for the same object only: what a warm process parsed once it has again and again, and to
    compare all that is in it would take as long as to cut it anew."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it


@lru_cache(64)
def _cut(rails: _Same, sets: _Same, mine: _Same) -> tuple[tuple[Rail, ...], tuple[RangeSet, ...], list[str]]:
    """The rails and sets as the node has them, and the subnets that it has not checked."""
    blocks: Held = mine.it
    own = limits.limited(Pool(sets.it, rails=rails.it), blocks.size, blocks.giving, blocks.draining)
    return own.rails, own.sets, sorted(set(limits.subnets(sets.it)) - set(blocks.subnets))


def _is_unproven(mine: Held, index: int | None, address: Address) -> bool:
    block = None if index is None else mine.block(index)
    return bool(block and block.taken and str(address) not in block.tried)


def refuse_another(network: str, cluster: Cluster, size: int, sticky: str, where: str) -> None:
    """Raises InvalidConfig if the network's blocks have another size than is configured, or other numbers are in none;
    ``where`` that is written."""
    if cluster.size != size:  # guard: another-size
        raise InvalidConfig(
            f"ipam.cluster.blockSize {cluster.size}: the blocks of network {network} have {size} host numbers "
            f"({where}), and that never changes; set blockSize {size}, or give the network another name"
        )
    if cluster.sticky != sticky:  # guard: other-numbers
        remedy = f"set sticky {sticky}" if sticky else "remove sticky"
        raise InvalidConfig(
            f"ipam.cluster.sticky {cluster.sticky or 'is not there'}: network {network} has set "
            f"{sticky or 'no numbers'} aside ({where}), and that never changes; {remedy}, or give the network another "
            "name"
        )
