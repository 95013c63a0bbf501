"""Addresses that need the interface: made of its MAC, or probed for on its link.

Imported only if a configuration asks for one of these.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, NoReturn

from base.kernel import links, probe
from base.kernel.links import Link
from base.kernel.rtnl import wait_for_carrier
from base.protocol.errors import AddressConflict, CheckFailed, CniError, InvalidConfig, LinkUnavailable, doing
from base.protocol.result import Address, Ip
from base.protocol.spec import Key, Request, configuration
from base.state import pod as pods
from base.state.pod import Pod
from ipam import models
from ipam.allocation import Allocation
from ipam.pool import eui64_addresses
from ipam.ranges import Span, count
from ipam.stores import Store

# Seconds.  A VF has its carrier after its PF's next interrupt; the switch's port was up before.
CARRIER_TIMEOUT: Final = 2.0
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


def hold(allocation: Allocation, *, again: bool) -> tuple[Ip, ...]:
    """The addresses held.  Those made of the interface's MAC are requested too, and all are probed for if the
    configuration says so, or if nobody knows the leases of the block that they are in.

    ``again``: where there is no interface yet, the caller asks again when there is one.

    Raises LinkUnavailable where there is no such interface (yet), or no carrier; BadEnvironment, InvalidConfig,
    AddressConflict, and what Allocation.hold does.
    """
    request, pool, sets = allocation.request, allocation.pool, allocation.sets
    ifname = request.key.ifname
    with ExitStack() as stack:
        pod = stack.enter_context(pods.open_netns(request))
        link = pod.rtnl.link(ifname)
        if link is None:  # guard: the-link-is-there
            if not (pool.needs_link or again):
                return allocation.hold_unprobed(f"{ifname} is not there", pool.requested)
            raise LinkUnavailable(
                f"CNI_IFNAME={ifname}: {request.netns} has no such interface yet, which ipam.probe and eui64 need; "
                "remove these, or attach with a plugin that makes it before it asks for addresses"
            )
        own = eui64_addresses(sets, link.mac)
        if own:
            stack.enter_context(doing(f"giving {ifname} the address of its MAC {link.mac} (eui64)"))
        requested = (*pool.requested, *own)
        if not pool.probe:
            if pool.needs_link and (ips := allocation.hold(requested)):
                return ips
            stack.enter_context(doing("probing for addresses of a block whose leases nobody knows (ipam.cluster)"))
            if why := _not_probeable(link):
                return allocation.hold_unprobed(f"{link.name} {why}", requested)
        refuse_unless_probeable(link)
        with _up(pod, link):
            ask = partial(probe.find_owners, pod.fd, link, seconds=pool.probe or models.PROBE)
            asked = Prober(ask, _name(request, link), [s.all_spans for s in sets])
            hold = partial(allocation.hold, requested)
            ips = resolve(allocation.store, request.key, requested, hold, asked, allocation.log)
        allocation.note_probed(ips)
        return ips


def _name(request: Request, link: Link) -> str:
    """The link's name for people."""
    master = configuration(request).get("master")
    return f"the link of {link.name}" + (f" (master {master})" if isinstance(master, str) else "")


def refuse_unless_probeable(link: Link) -> None:
    """Raises InvalidConfig if nobody could answer a probe, or we could not hear the answer."""
    if why := _not_probeable(link):  # guard: somebody-answers
        raise InvalidConfig(f"ipam.probe: {link.name} {why}; remove ipam.probe")


def _not_probeable(link: Link) -> str:
    if link.infiniband:
        return "is InfiniBand, whose frames its driver alone can make"
    if link.kind == "ipvlan":
        # An answer to a probe goes to 0.0.0.0, which no ipvlan has (ipvlan_addr_lookup).
        return "is an ipvlan, and answers to who has no address yet go to its master"
    if not link.arp or len(link.mac) != 17:
        return "has neither ARP nor neighbour discovery"
    return ""


@contextmanager
def _up(pod: Pod, link: Link) -> Iterator[None]:
    """Have the link up and with carrier, and restore it afterwards: it still has to go up for good, which announces its
    addresses (arp_notify).  Raises LinkUnavailable, OSError."""
    if link.up and link.carrier:
        yield
        return
    pod.rtnl.set_up(link.index)
    try:
        if not wait_for_carrier(pod.rtnl, link.index, CARRIER_TIMEOUT):  # guard: carrier
            raise LinkUnavailable(
                f"{link.name} has no carrier after {CARRIER_TIMEOUT:.0f} s, and ipam.probe nobody to ask; "
                "see to its cable or master, or remove ipam.probe"
            )
        yield
    finally:
        if not link.up:  # guard: down-again
            pod.rtnl.set_link(link.index, mask=links.IFF_UP)


@dataclass(frozen=True)
class Prober:
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
    link: Prober,
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


def _refuse(found: Mapping[Address, str], claimed: Mapping[Address, str], link: Prober) -> NoReturn:
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
