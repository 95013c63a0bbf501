"""Choose an attachment's addresses: the requested one, else the one it holds, else the next free one; and the terms
after their release.  Pure."""

import json
from collections.abc import Sequence
from ipaddress import IPv4Address

from base.protocol.errors import AddressHeld, AddressUnavailable, BadEnvironment, PoolExhausted
from base.protocol.result import Address, Ip
from ipam.pool import NEVER, Pool, RangeSet, embedding
from ipam.ranges import Span, count, next_free, unassignable
from ipam.stores import Book, Terms

# A pod's namespace and name have at most 63 and 253 characters; a line of the store has room for this many.
STICKY_MAX = 400


def choose(sets: Sequence[RangeSet], requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
    """One address from each set, in their order.

    The attachment keeps an address that still fits, so that a repeated ADD returns the same.
    Raises AddressUnavailable for a requested address, PoolExhausted for a set.
    """
    asked = asked_for(sets, requested, book)
    first, embedding_it = _embedding(sets)
    given = dict[str, Address]()
    for s in sets:
        if s not in embedding_it:
            beside = embedding_it if s is first else ()
            before = kept(s, book)
            if before and not _is_embeddable(before, beside, book):
                before = None
            given[s.key] = asked.get(s.key) or before or _next(s, book, beside)
    if first:
        given |= {s.key: _embedded(s, given[first.key], asked.get(s.key), book) for s in embedding_it}
    return tuple(s.ip(given[s.key]) for s in sets if s.key in given)


def _embedding(sets: Sequence[RangeSet]) -> tuple[RangeSet | None, list[RangeSet]]:
    """The sets whose addresses embed an IPv4 address, after the set that it comes from; None without such sets."""
    found = [s for s in sets if s.ranges[0].embeds]
    return next((s for s in sets if s.ranges[0].subnet.version == 4), None) if found else None, found


def with_embedded(sets: Sequence[RangeSet], requested: Sequence[Address]) -> Sequence[Address]:
    """The requested addresses, and the IPv4 address that one of them embeds, unless its set's is requested too."""
    first, embedding_it = _embedding(sets)
    if not first or any(one in first for one in requested):
        return requested
    return (*requested, *list(_embedded_in(embedding_it, requested))[:1])


def _embedded_in(embedding_it: Sequence[RangeSet], requested: Sequence[Address]) -> dict[Address, Address]:
    """Map each IPv4 address that a requested address of these sets embeds to that one."""
    return {IPv4Address(int(one) & 0xFFFFFFFF): one for one in requested if any(one in s for s in embedding_it)}


def _is_embeddable(ipv4: Address, sets: Sequence[RangeSet], book: Book) -> bool:
    """Whether the attachment can have each set's address with the IPv4 address in it."""
    return all((one := embedding(s, ipv4)) in s and _is_ours(one, book) for s in sets)


def _is_ours(address: Address, book: Book) -> bool:
    """Whether the attachment has the address, or no other one has it."""
    return address in book.mine or not book.holder(address)


def _embedded(s: RangeSet, ipv4: Address, asked: Address | None, book: Book) -> Address:
    """The set's address with the IPv4 address in it."""
    address = embedding(s, ipv4)
    because = f"{s.ranges[0].key}.embedIPv4 true: this ADD has {ipv4}"
    if asked not in (None, address):
        raise AddressUnavailable(f"{because}, and requested address {asked} is not {address}; request one of them only")
    if address not in s:
        raise AddressUnavailable(f"{because}, and {address} {why_not([s], address)}; exclude {ipv4} from its range")
    if not _is_ours(address, book) and (owner := book.holder(address)):
        raise AddressHeld(f"{because}, and {address} is held by {owner}; request another address, or delete that")
    return address


def asked_for(sets: Sequence[RangeSet], requested: Sequence[Address], book: Book) -> dict[str, Address]:
    """Map the key of each set to the address requested from it.  Raises AddressUnavailable."""
    asked = dict[str, Address]()
    embedded = _embedded_in(_embedding(sets)[1], requested)
    for address in requested:
        range_set = next((s for s in sets if address in s), None)
        what = f"requested address {address}"
        if whole := embedded.get(address):
            what += f" ({whole} has it, by embedIPv4)"
        if range_set is None:
            raise AddressUnavailable(f"{what} {why_not(sets, address)}; request another")
        if range_set.key in asked:
            raise AddressUnavailable(
                f"requested addresses {asked[range_set.key]} and {address} are both in {range_set.key}, "
                "and a range set provides one address; request one of each set"
            )
        if address not in book.mine and (owner := book.holder(address)):
            raise AddressHeld(f"{what} is held by {owner}; request another or delete that")
        asked[range_set.key] = address
    return asked


def why_not(sets: Sequence[RangeSet], address: Address) -> str:
    """Why no set has the address; the most specific reason."""
    ranges = [r for s in sets for r in s.ranges]
    reasons = [
        *(f"is the gateway of {r.key}" for r in ranges if address == r.gateway),
        *(f"is {r.prefix.parent}'s own, the parent's" for r in ranges if r.prefix and address in r.prefix.own),
        *(f"is a router of {r.prefix.parent}, the parent" for r in ranges if r.prefix and address in r.prefix.routers),
        *(
            f"is excluded by {r.key}.exclude"
            for r in ranges
            if address in r.span and any(address in hole for hole in r.exclude)
        ),
        *(
            f"is one of the {NEVER} in {r.key}.subnet {r.subnet}"
            for r in ranges
            if any(address in span for span in unassignable(r.subnet))
        ),
        *(f"is outside {r.span}, rangeStart to rangeEnd of {r.key}" for r in ranges if address in r.subnet),
        f"is in no range: {', '.join(f'{r.key} is {r.subnet}' for r in ranges)}",
    ]
    return reasons[0]


def kept(range_set: RangeSet, book: Book) -> Address | None:
    """The set's address that the attachment holds already."""
    return next((address for address in book.mine if address in range_set), None)


def _next(range_set: RangeSet, book: Book, embedding_it: Sequence[RangeSet] = ()) -> Address:
    """The next free address.  In these sets, the addresses with it in them are free too."""

    def first_free(span: Span) -> Address | None:
        while (address := book.first_free(span)) and not _is_embeddable(address, embedding_it, book):
            span = Span(span.version, int(address) + 1, span.last)
        return address

    after = next((address for address in book.last if address in range_set), None)
    address = next_free(range_set.spans, after, first_free if embedding_it else book.first_free)
    if address is None:
        subnets = ", ".join(str(r.subnet) for r in range_set.ranges)
        raise PoolExhausted(
            f"{range_set.key} ({subnets}): all {count(range_set.spans)} addresses are held; "
            "widen the range, release unused addresses (GC), or wait for those that are kept back",
            range_set.key,
        )
    return address


def terms(pool: Pool, pod: str, place: str) -> Terms:
    """The terms after the addresses' release.  Raises BadEnvironment if ``sticky`` is set and no name is known."""
    if not pool.sticky:
        return Terms(pool.cooldown)
    name = pool.sticky_name or pod
    if not name:
        raise BadEnvironment(
            "ipam.sticky: CNI_ARGS has no K8S_POD_NAME and no STICKY, and args.cni no sticky; set one of them"
        )
    name = f"{name}:{place}" if place else name
    if len(json.dumps(name)) > STICKY_MAX:
        raise BadEnvironment(f"ipam.sticky: {name!r} is longer than {STICKY_MAX} characters; give a shorter STICKY")
    return Terms(pool.cooldown, name, pool.sticky)
