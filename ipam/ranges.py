"""Arithmetic with spans of addresses, as integers: the cost is independent of the size.  Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

from base.protocol.result import Address, Network


@dataclass(frozen=True, order=True)
class Span:
    """The addresses from first to last, both included, of one IP version."""

    version: int
    first: int
    last: int

    @classmethod
    def of(cls, first: Address, last: Address) -> "Span":
        return cls(first.version, int(first), int(last))

    def __contains__(self, address: Address) -> bool:
        return self.version == address.version and self.first <= int(address) <= self.last

    def __str__(self) -> str:
        first, last = self.address(self.first), self.address(self.last)
        return str(first) if first == last else f"{first}-{last}"

    def address(self, number: int) -> Address:
        # ip_address() would make every number below 2**32 an IPv4 address.
        return IPv4Address(number) if self.version == 4 else IPv6Address(number)

    def covers(self, other: "Span") -> bool:
        return self.version == other.version and self.first <= other.first and other.last <= self.last

    def overlaps(self, other: "Span") -> bool:
        return self.version == other.version and self.first <= other.last and other.first <= self.last


def whole(subnet: Network) -> Span:
    return Span.of(subnet.network_address, subnet.broadcast_address)


def assignable(subnet: Network) -> Span:
    """The addresses for hosts: without the subnet's first one (RFC 4291, 2.6.1 for IPv6) and IPv4's broadcast.

    Both addresses of a point-to-point link (RFC 3021, RFC 6164); the one of a host route.
    """
    span = whole(subnet)
    if _is_tiny(subnet):
        return span
    return Span(span.version, span.first + 1, span.last - (span.version == 4))


# RFC 1122, section 3.2.1.3, and RFC 4291, sections 2.5 and 2.7.
_NEVER: Final = tuple(
    whole(ip_network(network))
    for network in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "::/96",
        "::ffff:0:0/96",
        "ff00::/8",
    )
)


def unassignable(subnet: Network) -> tuple[Span, ...]:
    """The subnet's addresses that no host can have, in any position of the subnet."""
    return common([whole(subnet)], joined([*subtract(whole(subnet), [assignable(subnet)]), *_NEVER]))


def default_gateway(subnet: Network) -> Address | None:
    """The first assignable address, as in host-local; None for a subnet of one or two addresses."""
    return None if _is_tiny(subnet) else subnet.network_address + 1


def _is_tiny(subnet: Network) -> bool:
    return subnet.max_prefixlen - subnet.prefixlen <= 1


def subtract(span: Span, holes: Iterable[Span]) -> tuple[Span, ...]:
    """The rest of the span without the holes, in ascending order."""
    left, first = list[Span](), span.first
    for hole in sorted(hole for hole in holes if hole.overlaps(span)):
        if first < hole.first:
            left.append(Span(span.version, first, hole.first - 1))
        first = max(first, hole.last + 1)
    if first <= span.last:
        left.append(Span(span.version, first, span.last))
    return tuple(left)


def common(spans: Iterable[Span], others: Sequence[Span]) -> tuple[Span, ...]:
    """The intersection."""
    pairs = ((one, other) for one in spans for other in others if one.overlaps(other))
    return tuple(Span(a.version, max(a.first, b.first), min(a.last, b.last)) for a, b in pairs)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same addresses as ascending spans that neither overlap nor touch."""
    found = list[Span]()
    for span in sorted(spans):
        if found and found[-1].version == span.version and span.first <= found[-1].last + 1:
            found[-1] = Span(span.version, found[-1].first, max(found[-1].last, span.last))
        else:
            found.append(span)
    return tuple(found)


def elsewhere(addresses: Iterable[Address], sets: Iterable[Sequence[Span]], given: Sequence[Address]) -> list[Address]:
    """Those of the addresses that are in none of the sets that ``given`` came from."""
    used = [span for spans in sets if any(one in span for one in given for span in spans) for span in spans]
    return [address for address in addresses if not any(address in span for span in used)]


def count(spans: Iterable[Span]) -> int:
    return sum(span.last - span.first + 1 for span in spans)


def next_free(
    spans: Sequence[Span], after: Address | None, first_free: Callable[[Span], Address | None]
) -> Address | None:
    """The first free address, round robin from the one after ``after``; None if all are held.

    The order is that of the spans.  If ``after`` is in none, the search starts at the beginning.
    """
    return next((found for span in _round(spans, after) if (found := first_free(span))), None)


def _round(spans: Sequence[Span], after: Address | None) -> Iterator[Span]:
    at = next((i for i, span in enumerate(spans) if after is not None and after in span), None)
    if at is None or after is None:
        yield from spans
        return
    # The span of ``after`` comes twice: first the part behind it, last the part up to it.
    here, number = spans[at], int(after)
    if number < here.last:
        yield Span(here.version, number + 1, here.last)
    yield from spans[at + 1 :]
    yield from spans[:at]
    yield Span(here.version, here.first, number)
