"""Addresses that nobody else on the link has: reserve, ask the link, and reserve others in place of what is taken.

In that order, so that an ADD that is killed in between leaves a lease that DEL finds.  The store's lock is free
meanwhile, because asking takes long.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Final, NoReturn

from base.protocol.errors import AddressConflict, CheckFailed, CniError, doing
from base.protocol.result import Address, Ip
from base.protocol.spec import Key
from ipam.ranges import Span, count
from ipam.stores import Store

# After so many taken addresses in a row, somebody else gives addresses out of this range.
MOST: Final = 5
# After so many seconds no other address is tried.
LONGEST: Final = 5.0
# For so many seconds nobody gets an address that another host has.
APART: Final = 600
# At most so many addresses are kept back because one MAC answers for them, and at most such a part of a set.
FEW: Final = 4
PART: Final = 4

# The addresses that others on the link have, with their MACs.
Ask = Callable[[Collection[Address]], Mapping[Address, str]]


@dataclass(frozen=True)
class Link:
    """How others on the link are asked, what the link is called, and the sets that addresses are from."""

    ask: Ask
    name: str
    sets: Sequence[Sequence[Span]]

    def to_keep_back(self, taken: Mapping[Address, str], kept: Mapping[Address, str]) -> list[Address]:
        """The taken addresses to keep back beside those that are kept already.

        A host that answers for everything must not empty a set, so the number is bounded.  The other taken addresses go
        to nobody either while somebody answers for them.
        """
        now = dict(kept)
        for address, mac in taken.items():
            spans = next((spans for spans in self.sets if any(address in span for span in spans)), ())
            inside = sum(any(other in span for span in spans) for other in now)
            if inside < count(spans) // PART and Counter(now.values())[mac] < FEW:  # guard: part (inside), few (mac)
                now[address] = mac
        return [address for address in taken if address in now and address not in kept]


def resolve(
    store: Store,
    key: Key,
    requested: Sequence[Address],
    reserve: Callable[[], tuple[Ip, ...]],
    link: Link,
    log: list[str],
) -> tuple[Ip, ...]:
    """Reserve until nobody else on the link is found to have the addresses; what ``reserve`` gave at last.

    Raises AddressConflict for a requested address, and after too many tries.  Then a key that held nothing before holds
    nothing again.
    """
    had, ips, began = _holds(store, key), tuple[Ip, ...](), monotonic()
    found, kept, unique = dict[Address, str](), dict[Address, str](), set[Address]()
    try:
        while True:
            with doing(f"giving others: {_words(found)}") if found else nullcontext():
                ips = reserve()
            new = {ip.address.ip for ip in ips} - unique
            taken = link.ask(new)
            if not taken:  # guard: not-before-it-is-asked = True
                return ips
            again = taken.keys() <= found.keys()
            found |= taken
            unique |= new - taken.keys()
            # A requested address is not declined: the attachment can have it as soon as the other host has gone.
            if others := {address: mac for address, mac in taken.items() if address not in requested}:
                kept |= store.decline(key, others, APART, link.to_keep_back)  # guard: conceded
                log.extend(_said(others, kept))
            _refuse_requested(taken, requested)
            # guard below: slow (LONGEST), not-for-ever = again
            if again or len(found) >= MOST or monotonic() - began > LONGEST:
                _refuse(found, kept | found, link)
    except BaseException as failure:
        if ips and not had:  # guard: holds-nothing-then, keeps-what-it-had (had)
            try:
                store.release(key, unused=True)
            except CniError as e:
                failure.add_note(f"and what it holds is held until DEL: {e}")
        raise


def _said(taken: Mapping[Address, str], kept: Mapping[Address, str]) -> list[str]:
    """For the log."""
    for_now = {address: mac for address, mac in taken.items() if address in kept}
    skipped = {address: mac for address, mac in taken.items() if address not in kept}
    return [
        *([f"{_words(for_now)}; nobody is given it for {APART} s"] if for_now else []),
        *([f"{_words(skipped)}; skipped, for enough is kept back already"] if skipped else []),
    ]


def _refuse_requested(taken: Mapping[Address, str], requested: Sequence[Address]) -> None:
    """Raises AddressConflict if another host has a requested address: another try would not help."""
    if wrong := {address: mac for address, mac in taken.items() if address in requested}:  # guard: requested
        raise AddressConflict(f"requested address {_words(wrong)}; find that host, or request another")


def _refuse(found: Mapping[Address, str], claimed: Mapping[Address, str], link: Link) -> NoReturn:
    mac, times = Counter(claimed.values()).most_common(1)[0]
    why = f"{_words(found)}; exclude what others have, or give this network a range of its own"
    if times > FEW:
        why = (
            f"one host on {link.name} (MAC {mac}) answers for {times} addresses of this network, lately for "
            f"{', '.join(map(str, found))}; it lies, answers for others (proxy ARP), or the range is its own: find and "
            "stop it, or give this network another range; what is kept back is freed by: hpn ipam gc"
        )
    raise AddressConflict(f"ipam.probe: {why}")


def _holds(store: Store, key: Key) -> bool:
    try:
        return bool(store.check(key))
    except CheckFailed:
        return False


def _words(taken: Mapping[Address, str]) -> str:
    return ", ".join(f"{address} is in use by another host on the link (MAC {mac})" for address, mac in taken.items())
