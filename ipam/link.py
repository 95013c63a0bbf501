"""Allocate addresses that need the interface: derived from its MAC, or probed for on its link.

Probing reserves addresses, asks the link, and reserves others instead of those in use.  In that order, so that an ADD
killed half way leaves a lease that DEL finds.  The store's lock is free meanwhile, because asking takes long.

Imported only for a configuration that needs it.
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
from base.state import owned
from base.state import pod as pods
from base.state.pod import Pod
from ipam import models
from ipam.allocation import Allocation
from ipam.pool import eui64_addresses
from ipam.ranges import Span, count
from ipam.stores import Store

# Seconds.  A VF gets its carrier after its PF's next interrupt; the switch's port is up already.
CARRIER_TIMEOUT: Final = 2.0
# So many addresses in use in a row mean that another allocator uses this range.
MOST: Final = 5
# Seconds after which no other address is tried.
LONGEST: Final = 5.0
# Seconds for which an address that another host uses is kept back.
APART: Final = 600
# The most addresses kept back per MAC, and the largest part of a set that is kept back (1/PART).
FEW: Final = 4
PART: Final = 4

# Returns the addresses that other hosts on the link use, with their MACs.
Ask = Callable[[Collection[Address]], Mapping[Address, str]]


def hold(allocation: Allocation, *, again: bool) -> tuple[Ip, ...]:
    """Hold addresses and return them.  Addresses derived from the MAC count as requested.  Probe for all of them if the
    configuration demands it, or if the leases of their block are unknown.

    ``again``: if the interface does not exist yet, the caller repeats the call once it does.

    Raises LinkUnavailable if the interface does not exist (yet) or has no carrier; BadEnvironment, InvalidConfig,
    AddressConflict, and what Allocation.hold raises.
    """
    request, pool, sets = allocation.request, allocation.pool, allocation.sets
    ifname = request.key.ifname
    with ExitStack() as stack:
        pod = stack.enter_context(pods.open_netns(request))
        link = pod.rtnl.link(ifname)
        if link is None:
            if not (pool.needs_link or again):
                return allocation.hold_unprobed(f"{ifname} is not there", allocation.requested)
            raise LinkUnavailable(
                f"CNI_IFNAME={ifname}: {request.netns} has no such interface yet, which ipam.probe and eui64 need; "
                "remove these, or use a main plugin that creates the interface before it calls IPAM"
            )
        own = eui64_addresses(sets, link.mac)
        if own:
            stack.enter_context(doing(f"allocating the address of {ifname} by its MAC {link.mac} (eui64)"))
        requested = (*allocation.requested, *own)
        if not pool.probe:
            if pool.needs_link and (ips := allocation.hold(requested)):
                return ips
            stack.enter_context(doing("probing for addresses of a block with unknown leases (ipam.cluster)"))
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
    """The link's name in messages."""
    master = configuration(request).get("master")
    return f"the link of {link.name}" + (f" (master {master})" if isinstance(master, str) else "")


def refuse_unless_probeable(link: Link) -> None:
    """Raise InvalidConfig if no probe can be sent on this link, or no answer can arrive."""
    if why := _not_probeable(link):
        raise InvalidConfig(f"ipam.probe: {link.name} {why}; remove ipam.probe")


def _not_probeable(link: Link) -> str:
    if link.infiniband:
        return "is InfiniBand, and only its driver can build frames"
    if link.kind == "ipvlan":
        # An answer to a probe goes to 0.0.0.0, which no ipvlan holds (ipvlan_addr_lookup).
        return "is an ipvlan, and answers to a sender without an address go to its master"
    if not link.arp or len(link.mac) != 17:
        return "has neither ARP nor neighbour discovery"
    return ""


@contextmanager
def _up(pod: Pod, link: Link) -> Iterator[None]:
    """Set the link up and wait for its carrier; restore it afterwards, because the kernel announces the addresses when
    it goes up for good (arp_notify).  Raises LinkUnavailable, OSError."""
    if link.up and link.carrier:
        yield
        return
    pod.rtnl.set_up(link.index)
    try:
        if not wait_for_carrier(pod.rtnl, link.index, CARRIER_TIMEOUT):
            raise LinkUnavailable(
                f"{link.name} has no carrier after {CARRIER_TIMEOUT:.0f} s, so ipam.probe cannot ask other hosts; "
                "check its cable or master, or remove ipam.probe"
            )
        yield
    finally:
        if not link.up:
            pod.rtnl.set_link(link.index, mask=links.IFF_UP)


@dataclass(frozen=True)
class Prober:
    """Asks other hosts on the link, which has a ``name`` in messages, for addresses of ``sets``."""

    ask: Ask
    name: str
    sets: Sequence[Sequence[Span]]

    def to_keep_back(self, taken: Mapping[Address, str], kept: Mapping[Address, str]) -> list[Address]:
        """The addresses in use to keep back, in addition to those kept back already.

        A host that answers for every address must not empty a set, so their number is bounded.  The others are not
        allocated either while a host answers for them.
        """
        now = dict(kept)
        for address, mac in taken.items():
            spans = next((spans for spans in self.sets if any(address in span for span in spans)), ())
            inside = sum(any(other in span for span in spans) for other in now)
            if inside < count(spans) // PART and Counter(now.values())[mac] < FEW:
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
    """Call ``reserve`` until no other host on the link uses the addresses; return them.

    Raises AddressConflict for a requested address, and after too many tries.  A key that held nothing before then holds
    nothing again.
    """
    had, ips, began = _holds(store, key), tuple[Ip, ...](), monotonic()
    found, kept, unique = dict[Address, str](), dict[Address, str](), set[Address]()
    try:
        while True:
            with doing(f"allocating others: {_in_use(found)}") if found else nullcontext():
                ips = reserve()
            new = {ip.address.ip for ip in ips} - unique
            taken = link.ask(new)
            if not taken:
                return ips
            again = taken.keys() <= found.keys()
            found |= taken
            unique |= new - taken.keys()
            # A requested address is not declined, so that it is available once the other host has gone.
            if others := {address: mac for address, mac in taken.items() if address not in requested}:
                kept |= store.decline(key, others, APART, link.to_keep_back)
                log.extend(_log_lines(others, kept))
            _refuse_requested(taken, requested)
            if again or len(found) >= MOST or monotonic() - began > LONGEST:
                _refuse(found, kept | found, link)
    except BaseException as failure:
        if ips and not had:
            try:
                store.release(key, unused=True)
            except CniError as e:
                failure.add_note(f"and its addresses stay held until DEL: {e}")
        raise


def _log_lines(taken: Mapping[Address, str], kept: Mapping[Address, str]) -> list[str]:
    for_now = {address: mac for address, mac in taken.items() if address in kept}
    skipped = {address: mac for address, mac in taken.items() if address not in kept}
    return [
        *([f"{_in_use(for_now)}; not allocated for {APART} s"] if for_now else []),
        *([f"{_in_use(skipped)}; skipped, because enough addresses are kept back already"] if skipped else []),
    ]


def _refuse_requested(taken: Mapping[Address, str], requested: Sequence[Address]) -> None:
    """Raise AddressConflict if another host uses a requested address, because another try cannot help."""
    if wrong := {address: mac for address, mac in taken.items() if address in requested}:
        raise AddressConflict(f"requested address {_in_use(wrong)}; find that host, or request another")


def _refuse(found: Mapping[Address, str], claimed: Mapping[Address, str], link: Prober) -> NoReturn:
    mac, times = Counter(claimed.values()).most_common(1)[0]
    why = f"{_in_use(found)}; exclude the addresses of others, or give this network a range of its own"
    if times > FEW:
        why = (
            f"one host on {link.name} (MAC {mac}) answers for {times} addresses, lately "
            f"{', '.join(map(str, found))}: it lies, proxies ARP, or uses the range; stop it or change the range, "
            "then free the addresses: hpn ipam gc"
        )
    raise AddressConflict(f"ipam.probe: {why}")


def _holds(store: Store, key: Key) -> bool:
    try:
        return bool(store.check(key))
    except CheckFailed:
        return False


def _in_use(taken: Mapping[Address, str]) -> str:
    def user(address: Address) -> str:
        owner = owned.of_address(address)
        return f"{owner} of this node" if owner else "another host"

    return ", ".join(
        f"{address} is in use by {user(address)} on the link (MAC {mac})" for address, mac in taken.items()
    )
