"""Leases that another IPAM gave: taken over whole or not at all, and in the way where they were not taken over."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path

from base.protocol.errors import InvalidConfig
from base.protocol.result import Address
from ipam.stores.files.book import TableBook
from ipam.stores.files.codec import digest_of
from ipam.stores.files.table import Table
from ipam.stores.holdings import Lease

_SHOWN = 3


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


def refuse_host_locals(directory: Path, names: Sequence[str]) -> None:
    """Raise InvalidConfig if one of the files is named by an address: the directory was host-local's dataDir too, and a
    pod of host-local's may have that address.

    host-local's other files, its lock and ``last_reserved_ip.0``, say of no pod that it lives.
    """
    addresses = sorted(filter(_is_address, names))
    if not addresses:
        return
    shown = ", ".join([*addresses[:_SHOWN], "..."] if len(addresses) > _SHOWN else addresses)
    raise InvalidConfig(
        f"{directory} has files of {len(addresses)} addresses that host-local has given ({shown}), so nothing is given "
        "from there; take them over: "
        f"hpn ipam import --from host-local {directory} --data-dir {directory.parent}"
    )


def _is_address(name: str) -> bool:
    """Whether host-local names a file so that stands for an address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
