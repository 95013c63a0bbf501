"""Addresses that nobody else on the link has: reserve, ask the link, and reserve others in place of what is taken.

In that order, so that whoever is killed in between leaves a lease that DEL finds; and without the store's lock, for
to ask takes long.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Final

from cni.errors import AddressConflict, CheckFailed, CniError, doing
from cni.result import Address, Ip
from cni.spec import Key
from ipam.stores import Store

# With so many that are taken in a row, somebody else gives addresses out of this range.
MOST: Final = 5
# Seconds that nobody is given an address which another host has.
APART: Final = 600

# Which of the addresses others on the link have, and their MACs.
Ask = Callable[[Collection[Address]], Mapping[Address, str]]


def resolved(
    store: Store,
    key: Key,
    requested: Sequence[Address],
    reserve: Callable[[], tuple[Ip, ...]],
    ask: Ask,
    log: list[str],
) -> tuple[Ip, ...]:
    """What ``reserve`` gives the key, once ``ask`` finds nobody else to have it.

    Raises AddressConflict for a requested address and after so many tries.  Who held nothing before holds nothing then.
    """
    had, ips = _holds(store, key), tuple[Ip, ...]()
    found, unique = dict[Address, str](), set[Address]()
    try:
        while True:
            with doing(f"giving others: {_words(found)}") if found else nullcontext():
                ips = reserve()
            new = {ip.address.ip for ip in ips} - unique
            taken = ask(new)
            if not taken:
                return ips
            found |= taken
            unique |= new - taken.keys()
            # Who asks for an address means that one, and is to have it as soon as the other has gone.
            if others := {address: mac for address, mac in taken.items() if address not in requested}:
                store.concede(key, others, APART)
                log.append(f"{_words(others)}; nobody is given it for {APART} s")
            _refuse(taken, found, requested)
    except BaseException as failure:
        if ips and not had:
            try:
                store.release(key, unused=True)
            except CniError as e:
                failure.add_note(f"and what it holds is held until DEL: {e}")
        raise


def _refuse(taken: Mapping[Address, str], found: Mapping[Address, str], requested: Sequence[Address]) -> None:
    """Raises AddressConflict where another try would not help."""
    if wrong := {address: mac for address, mac in taken.items() if address in requested}:
        raise AddressConflict(f"requested address {_words(wrong)}; find that host, or request another")
    if len(found) >= MOST:
        raise AddressConflict(
            f"ipam.probe: {_words(found)}; exclude what others have, or give this network a range of its own"
        )


def _holds(store: Store, key: Key) -> bool:
    try:
        return bool(store.check(key))
    except CheckFailed:
        return False


def _words(taken: Mapping[Address, str]) -> str:
    return ", ".join(f"{address} is in use by another host on the link (MAC {mac})" for address, mac in taken.items())
