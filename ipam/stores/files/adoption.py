"""Leases that another IPAM gave, taken over whole or not at all."""

from collections.abc import Iterator, Sequence

from cni.protocol.result import Address
from ipam.stores.files.book import TableBook
from ipam.stores.files.codec import digest_of
from ipam.stores.files.table import Table
from ipam.stores.holdings import Lease


def adopt(table: Table, leases: Sequence[Lease], *, dry_run: bool) -> list[str]:
    """Hold them; in words, what collides, and then nothing has changed.  Raises OSError."""
    here = {lease.owner.key: table.find(digest_of(lease)) for lease in leases}
    collisions = list(given_twice(leases))
    for lease in leases:
        held = here[lease.owner.key]
        if held and set(held.holding.ips) != set(lease.ips):
            has = ", ".join(map(str, held.holding.ips))
            collisions.append(f"{lease.owner.key} holds {has} here and {', '.join(map(str, lease.ips))} there")
        book = TableBook(table, held.holding.ips if held else ())
        holders = ((ip, book.holder(ip)) for ip in lease.ips if ip not in book.mine)
        collisions += [f"{ip} is held by {whom} here, by {lease.owner.key} there" for ip, whom in holders if whom]
    if not collisions and not dry_run:  # guard: adopts-what-is-free (collisions), adopts-dry (dry_run)
        for lease in leases:
            if here[lease.owner.key] is None:
                table.put(None, lease)
    return collisions


def given_twice(leases: Sequence[Lease]) -> Iterator[str]:
    """In words, the addresses that several of the leases have."""
    owners = dict[Address, list[str]]()
    for lease in leases:
        for ip in lease.ips:
            owners.setdefault(ip, []).append(str(lease.owner.key))
    return (f"{ip} is of {' and '.join(keys)} there" for ip, keys in owners.items() if len(keys) > 1)
