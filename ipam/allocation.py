"""Allocate addresses for one attachment: choose them from a pool under the store's lock, and hold them.

ipam/cluster/allocate.py allocates from a pool that the nodes of a cluster share.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from base.protocol.errors import AddressHeld, PoolExhausted
from base.protocol.result import Address, Ip
from base.protocol.spec import Request
from ipam import leases
from ipam.pool import Pool, RangeSet
from ipam.stores import Book, Choose, Owner, Ranges, Store
from ipam.withheld import Withheld

T = TypeVar("T")


@dataclass
class Allocation:
    """The request of one ADD: for the owner, an address of each set of the pool, or of the pool's rail number ``rail``.

    The store records ``ranges`` for people.  ``master`` is the interface below the attachment's; empty if unknown.
    """

    request: Request
    pool: Pool
    rail: int | None
    owner: Owner
    ranges: Ranges
    store: Store
    log: list[str]
    master: str

    @property
    def sets(self) -> tuple[RangeSet, ...]:
        return self.pool.sets if self.rail is None else self.pool.rails[self.rail].sets

    @property
    def requested(self) -> Sequence[Address]:
        return leases.with_embedded(self.sets, self.pool.requested)

    def hold(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Hold the addresses and return them; a repeated call returns the same.

        Return nothing, and hold nothing, if the caller must probe for them first.  The next call holds them.
        """
        return self.reserve(requested)

    def hold_unprobed(self, _why: str, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Hold addresses that cannot be probed for, for the reason given."""
        return self.reserve(requested)

    def note_probed(self, _ips: Sequence[Ip]) -> None:
        """Record that no other host on the link uses these."""

    def reserve(self, requested: Sequence[Address]) -> tuple[Ip, ...]:
        """Reserve addresses in the store; if they are short, release the provably dead leases first.

        Raises what ``choose`` and Store.reserve raise.
        """
        choose = partial(self.choose, requested)
        reserve = partial(self.store.reserve, self.owner, choose, self.ranges, self.pool.parents)
        return _without_dead(self.store, self.pool, self.log, reserve)

    def choose(self, requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
        self.request.refuse_if_abandoned()
        return chosen(self.pool, self.rail, requested, Withheld(book, self.store.directory, self.master))


def chosen(pool: Pool, rail: int | None, requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
    """An attachment's addresses.  Raises AddressUnavailable, AddressHeld, PoolExhausted."""
    if rail is None:
        return leases.choose(pool.sets, requested, book)
    from ipam import rails  # noqa: PLC0415  # few pools have any

    return rails.choose(pool, rail, requested, book)


def newcomers(pool: Pool, book: Book) -> tuple[Ip, ...]:
    """The addresses of a new container, on all rails."""
    places = range(len(pool.rails)) if pool.rails else (None,)
    return tuple(ip for rail in places for ip in chosen(pool, rail, (), book))


def rehearse(store: Store, pool: Pool, choose: Choose, log: list[str], master: str) -> None:
    """Check that the store would serve an ADD over that master; if addresses are short, release the provably dead
    leases first."""
    seen = partial(Withheld, directory=store.directory, master=master)
    _without_dead(store, pool, log, partial(store.rehearse, lambda book: choose(seen(book))))


def _without_dead(store: Store, pool: Pool, log: list[str], attempt: Callable[[], T]) -> T:
    """Return what ``attempt`` returns.  If addresses are short, read all leases, release the dead ones, and repeat."""
    try:
        return attempt()
    except (PoolExhausted, AddressHeld):
        freed = store.collect(None, probing=bool(pool.probe))
        if not freed:
            raise
    log.append(f"released {freed} leases: of an older boot, of namespaces that are gone, or kept back long enough")
    return attempt()
