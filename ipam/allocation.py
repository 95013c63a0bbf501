"""Addresses for one attachment: chosen from a pool under the store's lock, and held.

Those of a pool that the nodes of a cluster share are allocated in ipam/cluster/allocate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from base.protocol.errors import AddressHeld, PoolExhausted
from base.protocol.result import Address, Ip
from base.protocol.spec import Request
from ipam import leases
from ipam.pool import Pool, RangeSet
from ipam.stores import Book, Choose, Owner, Ranges, Store


@dataclass
class Allocation:
    """What one ADD asks for: an address of each set of the pool, or of the rail with that place, for the owner.

    ``ranges`` are those that the store keeps for people.
    """

    request: Request
    pool: Pool
    rail: int | None
    owner: Owner
    ranges: Ranges
    store: Store
    log: list[str]

    @property
    def sets(self) -> tuple[RangeSet, ...]:
        return self.pool.sets if self.rail is None else self.pool.rails[self.rail].sets

    def hold(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Hold the addresses; called again, it answers the same.

        The answer is empty, and nothing is held, if they have to be probed for.  Called again, it holds them.
        """
        return self.reserve(requested)

    def hold_unprobed(self, _why: str, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Hold addresses where nobody on the link can be asked, for that reason."""
        return self.reserve(requested)

    def note_probed(self, _ips: Sequence[Ip]) -> None:
        """Note that nobody else on the link has these."""

    def reserve(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """What the store holds for the owner; if addresses are short, after the provably dead leases were released.

        Raises what ``choose`` and Store.reserve do.
        """
        choose = partial(self.choose, requested)
        try:
            return self.store.reserve(self.owner, choose, self.ranges)
        except (PoolExhausted, AddressHeld):
            if not _release_dead(self.store, self.pool, self.log):
                raise
        return self.store.reserve(self.owner, choose, self.ranges)

    def choose(self, requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
        self.request.refuse_if_abandoned()  # guard: abandoned
        return chosen(self.pool, self.rail, requested, book)


def chosen(pool: Pool, rail: int | None, requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
    """An attachment's addresses.  Raises AddressUnavailable, AddressHeld, PoolExhausted."""
    if rail is None:
        return leases.choose(pool.sets, requested, book)
    from ipam import rails  # noqa: PLC0415  # few pools have any

    return rails.choose(pool, rail, requested, book)


def newcomers(pool: Pool, book: Book) -> tuple[Ip, ...]:
    """What a container would get that has nothing yet, on all rails."""
    places = range(len(pool.rails)) if pool.rails else (None,)
    return tuple(ip for rail in places for ip in chosen(pool, rail, (), book))


def rehearse(store: Store, pool: Pool, choose: Choose, log: list[str]) -> None:
    """See that an ADD would be served, if need be after the provably dead leases were released."""
    try:
        store.rehearse(choose)
    except (PoolExhausted, AddressHeld):
        if not _release_dead(store, pool, log):
            raise
        store.rehearse(choose)


def _release_dead(store: Store, pool: Pool, log: list[str]) -> int:
    """How many leases that was.  Only where addresses are short, because it looks at every lease."""
    freed = store.collect(None, probing=bool(pool.probe))  # guard: the-deads = 0
    if freed:
        log.append(f"released {freed} leases: of an older boot, of namespaces that are gone, or kept back long enough")
    return freed
