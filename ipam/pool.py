"""The pool of a network: its ranges, checked, and their usable addresses.  Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from itertools import islice, pairwise
from typing import Final

from base.protocol.errors import InvalidConfig, combine
from base.protocol.result import Address, Ip, Network, Route
from base.protocol.spec import Json
from ipam.ranges import Span, assignable, common, subtract, unassignable, whole

_UNIVERSAL = 0x02
_EMBEDDABLE: Final = 96  # bits of a prefix, beside those of an IPv4 address
NEVER: Final = "addresses that no host can have (network, broadcast, multicast, loopback, unspecified, IPv4 in IPv6)"


@dataclass(frozen=True)
class Prefix:
    """A subnet that ``parent``, the interface under the pod's, has on this node.

    ``own`` are the parent's addresses in it.  ``gateway`` is the parent's next hop, or as of any subnet, and
    ``routers`` are its other next hops.
    """

    parent: str
    subnet: Network
    own: tuple[Address, ...]
    gateway: Address | None
    routers: tuple[Address, ...] = ()


@dataclass(frozen=True)
class Range:
    """A subnet and its usable part, as configured, with the default gateway."""

    key: str  # its place in the configuration: ipam.ranges[0][1]
    subnet: Network
    start: Address | None = None
    end: Address | None = None
    gateway: Address | None = None
    exclude: tuple[Span, ...] = ()
    reserved: tuple[Span, ...] = ()
    # Whether the address is derived from the interface's MAC.
    eui64: bool = False
    # Whether the address has the IPv4 address of the same ADD as its last 32 bits.
    embeds: bool = False
    # The subnet's origin, if the configuration names the parent.
    prefix: Prefix | None = None

    @property
    def derivation(self) -> tuple[str, str] | None:
        """The key with which something else determines the address, and that; None if it is chosen."""
        return ("eui64", "MAC") if self.eui64 else ("embedIPv4", "IPv4 address") if self.embeds else None

    @property
    def is_derived(self) -> bool:
        return self.eui64 or self.embeds

    @property
    def own(self) -> tuple[Span, ...]:
        """The addresses that the parent has itself, and those of its other routers."""
        taken = (*self.prefix.own, *self.prefix.routers) if self.prefix else ()
        return tuple(Span.of(address, address) for address in taken)

    @property
    def span(self) -> Span:
        if self.embeds:
            return Span.of(_embedded(self.subnet, IPv4Address(1)), _embedded(self.subnet, IPv4Address(2**32 - 1)))
        default = assignable(self.subnet)
        first = default.first if self.start is None else int(self.start)
        return Span(default.version, first, default.last if self.end is None else int(self.end))

    @property
    def never(self) -> tuple[Span, ...]:
        return unassignable(self.subnet)

    def ip(self, address: Address) -> Ip:
        # By number: given an address, ipaddress would format and parse it.
        interface = IPv4Interface if address.version == 4 else IPv6Interface
        return Ip(interface((int(address), self.subnet.prefixlen)), self.gateway)


@dataclass(frozen=True)
class RangeSet:
    """Ranges that together provide one address per attachment; ``usable`` are the usable spans of each range.

    ``all_spans`` joins these, and ``spans`` leaves out the addresses reserved for requests.
    """

    key: str
    ranges: tuple[Range, ...]
    usable: tuple[tuple[Span, ...], ...]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        pairs = zip(self.ranges, self.usable, strict=True)
        return tuple(part for r, spans in pairs for span in spans for part in subtract(span, r.reserved))

    @cached_property
    def all_spans(self) -> tuple[Span, ...]:
        return tuple(span for spans in self.usable for span in spans)

    # These are cached, because the ADDs of a node share the set, and each would compute them several times.

    @cached_property
    def subnets(self) -> tuple[str, ...]:
        """As text, for a pool that nodes share."""
        return tuple(str(r.subnet) for r in self.ranges if not r.is_derived)

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """A line for the log about each range that has addresses of no host between its rangeStart and rangeEnd."""
        pairs = [(r, common(subtract(r.span, r.exclude), r.never)) for r in self.ranges]
        return tuple(f"{r.key} leaves out {', '.join(map(str, spans))}: {NEVER}" for r, spans in pairs if spans)

    def __contains__(self, address: Address) -> bool:
        return any(address in span for span in self.all_spans)

    def ip(self, address: Address) -> Ip:
        """The address with its subnet's prefix length and its range's gateway, for a result."""
        return next(r.ip(address) for r in self.ranges if address in r.span)


@dataclass(frozen=True)
class Rail:
    """The range sets of devices with this property; ``by`` is pf, master, pciAddress or numaNode."""

    key: str
    by: str
    value: str | int
    sets: tuple[RangeSet, ...]

    def __str__(self) -> str:
        return f"{self.by} {self.value}"


# A rail as configured: its key, its device's properties (one is set), and its sets.
Device = Mapping[str, str | int | None]
Written = tuple[str, Device, Sequence[tuple[str, Sequence[Range]]]]


@dataclass(frozen=True)
class Cluster:
    """The sharing of a pool by all nodes of a cluster.

    ``backend`` is its kind, ``size`` the host numbers per block.  ``sticky`` are the numbers reserved for names,
    which are in no block ("256-511", or empty).  With ``overlaps``, another network may have the same subnets.
    """

    backend: str
    size: int
    sticky: str = ""
    overlaps: bool = False


@dataclass(frozen=True)
class Pool:
    """The usable addresses, the addresses that an ADD requests, and what it copies into the result.

    With rails an ADD allocates from one rail's sets, and ``sets`` are those of all rails.
    """

    sets: tuple[RangeSet, ...]
    requested: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Json = field(default_factory=dict)
    # Seconds, and the sticky name if the request has one.
    cooldown: int = 0
    sticky: int = 0
    sticky_name: str = ""
    rails: tuple[Rail, ...] = ()
    align: bool = False
    # Seconds to listen for other hosts on the link that use an address.
    probe: float = 0.0
    # None for a pool that this node does not share.
    cluster: Cluster | None = None
    # The numbers reserved for names, as a pool of their own; ``sets`` lack them.
    aside: "Pool | None" = None

    @property
    def parents(self) -> tuple[str, ...]:
        """For each set, the interface of this node with a subnet of it; empty if the configuration has all of them."""
        return tuple(next((r.prefix.parent for r in s.ranges if r.prefix), "") for s in self.sets)

    @property
    def needs_link(self) -> bool:
        return bool(self.probe) or any(r.eui64 for s in self.sets for r in s.ranges)


def range_sets(
    written: Sequence[tuple[str, Sequence[Range]]], of_others: Sequence[RangeSet] = ()
) -> tuple[RangeSet, ...]:
    """Check the sets, each with its key, and compute the usable addresses.  ``of_others``: those of other nodes.

    Raises InvalidConfig with all problems.
    """
    ranges = [r for _, members in written for r in members]
    # Comparing ranges requires that each is valid by itself.
    _refuse([why for r in ranges for why in _misplaced(r)] or list(_at_odds(written)))
    # No pod gets a gateway, even if another range of the subnet names it.
    every = (*ranges, *(r for s in of_others for r in s.ranges))
    gateways = [Span.of(r.gateway, r.gateway) for r in every if r.gateway is not None]
    sets = [RangeSet(key, tuple(members), tuple(_usable(r, gateways) for r in members)) for key, members in written]
    pairs = (pair for s in sets for pair in zip(s.ranges, s.usable, strict=True))
    _refuse([_nothing_left(r) for r, usable in pairs if not usable])
    return tuple(sets)


def _usable(r: Range, gateways: Sequence[Span]) -> tuple[Span, ...]:
    return subtract(r.span, [*gateways, *r.exclude, *r.never, *r.own])


def _nothing_left(r: Range) -> str:
    if r.prefix is None:
        return f"{r.key}: gateway, exclude and {NEVER} leave nothing of {r.span}; widen the range or exclude less"
    own, routers = (", ".join(map(str, some)) for some in (r.prefix.own, r.prefix.routers))
    more = f" and the routers {routers}" if routers else ""
    return (
        f"{r.key}: {r.prefix.parent}, the parent, has {own} of {r.subnet}, and with the gateway {r.gateway}{more} no "
        f"address is left for a pod; write a subnet for the pods, or move {r.prefix.parent} itself with "
        "useInterfaceNetwork"
    )


def rails_of(written: Sequence[Written], *, align: bool) -> tuple[Rail, ...]:
    """Check the rails and compute their usable addresses.  Raises InvalidConfig with all problems."""
    _refuse([why for one in written for why in _misnamed(*one)])
    rails, fit = dict[tuple[str, str | int], Rail](), iter(range_sets([s for *_, sets in written for s in sets]))
    for key, device, sets in written:
        ((by, value),) = ((by, value) for by, value in device.items() if value is not None)
        if other := rails.get((by, value)):
            _refuse([f"{key} and {other.key} are both for {other}; merge them, or correct one"])
        rails[by, value] = Rail(key, by, value, tuple(islice(fit, len(sets))))
    _refuse(list(_unalignable(list(rails.values()))) if align else ())
    return tuple(rails.values())


def _misnamed(key: str, device: Device, sets: Sequence[object]) -> Iterator[str]:
    given = [name for name, value in device.items() if value is not None]
    if len(given) != 1:
        names = " and ".join(given) or "none"
        yield f"{key} has {names} of {', '.join(device)}; set exactly one"
    if not sets:
        yield f"{key} has no range; set its subnet or ranges"


def _unalignable(rails: Sequence[Rail]) -> Iterator[str]:
    """Why rails cannot be aligned: a host number must stand for one address on each rail, all different."""
    for s in (s for rail in rails for s in rail.sets):
        if len(s.ranges) > 1:
            yield f"ipam.align: {s.key} has {len(s.ranges)} ranges; an aligned set has one range; remove the others"
        elif derivation := s.ranges[0].derivation:
            name, what = derivation
            yield f"ipam.align: {s.key} has {name}, but each rail's interface has its own {what}; remove one"
    first, families = rails[0], [[s.ranges[0].subnet.version for s in rail.sets] for rail in rails]
    for rail, versions in zip(rails, families, strict=True):
        if versions != families[0]:
            had, has = (", ".join(f"IPv{v}" for v in each) for each in (families[0], versions))
            yield f"ipam.align: {first.key} has sets of {had} and {rail.key} of {has}; give all rails the same"
    ordered = sorted((r for rail in rails for s in rail.sets for r in s.ranges), key=lambda r: whole(r.subnet))
    for low, high in pairwise(ordered):
        if low.subnet.overlaps(high.subnet):
            yield (
                f"ipam.align: {high.key}.subnet {high.subnet} and {low.key}.subnet {low.subnet} overlap, so a host "
                "number is the same address in both; give each rail a subnet of its own, or remove ipam.align"
            )


def _refuse(wrong: Sequence[str]) -> None:
    if wrong:
        raise combine([InvalidConfig(why) for why in wrong])


def _misplaced(r: Range) -> Iterator[str]:
    """Describe parts of a range that are outside its subnet, and contradictions within it."""
    if whole(r.subnet) in r.never:
        yield f"{r.key}.subnet {r.subnet} has only {NEVER}; choose another"
        return
    parts = {"rangeStart": r.start, "rangeEnd": r.end, "gateway": r.gateway}
    spans = {name: Span.of(address, address) for name, address in parts.items() if address is not None}
    spans |= {f"exclude[{i}]": span for i, span in enumerate(r.exclude)}
    spans |= {f"reserved[{i}]": span for i, span in enumerate(r.reserved)}
    outside = {name: span for name, span in spans.items() if not whole(r.subnet).covers(span)}
    # The kernel resolves a link-local gateway on the interface itself (RFC 4861, 6.2.1: routers announce theirs).
    if r.gateway is not None and r.subnet.version == 6 and r.gateway.version == 6 and r.gateway.is_link_local:
        outside.pop("gateway", None)
    for name, span in outside.items():
        yield f"{r.key}.{name} {span} is outside {r.key}.subnet {r.subnet}; choose one inside"
    # The first address of an IPv6 subnet is its routers' (RFC 4291, 2.6.1).
    if r.gateway not in (None, r.subnet.network_address if r.subnet.version == 6 else None) and any(
        r.gateway in span for span in r.never
    ):
        yield f"{r.key}.gateway {r.gateway} is one of the {NEVER}; choose another, or null for none"
    if not outside and r.span.first > r.span.last:
        name = "rangeStart" if r.start is not None else "rangeEnd"
        yield f"{r.key}.{name} leaves {r.span}, which is not a range; rangeStart must not be above rangeEnd"
    if r.eui64 and (r.subnet.version, r.subnet.prefixlen) != (6, 64):
        yield f"{r.key}.eui64 true with subnet {r.subnet}, which is not an IPv6 /64; change the subnet, or remove eui64"
    if r.embeds and (r.subnet.version == 4 or r.subnet.prefixlen > _EMBEDDABLE):
        yield (
            f"{r.key}.embedIPv4 true with subnet {r.subnet}, which is not an IPv6 prefix of at most {_EMBEDDABLE} "
            "bits; change the subnet, or remove embedIPv4"
        )
    if r.eui64 and r.embeds:
        yield f"{r.key} has eui64 and embedIPv4, which both determine the address; remove one"
    if r.derivation and (r.start or r.end or r.exclude or r.reserved):
        name, what = r.derivation
        remedy = "remove rangeStart, rangeEnd, exclude and reserved"
        yield f"{r.key}.{name} true: the {what} determines the address; {remedy}"


def _at_odds(written: Sequence[tuple[str, Sequence[Range]]]) -> Iterator[str]:
    """Describe conflicts between ranges that are valid by themselves."""
    if not written:
        yield "ipam has no range; set ipam.subnet or ipam.ranges"
    for key, members in written:
        if not members:
            yield f"{key} [] has no range; add one or remove the set"
        if len({r.subnet.version for r in members}) > 1:
            subnets = ", ".join(str(r.subnet) for r in members)
            yield f"{key} mixes IPv4 and IPv6 ({subnets}); a set provides one address; make it two sets"
    # In ascending order, a range that overlaps any other overlaps a neighbour.
    ordered = sorted((r for _, members in written for r in members), key=lambda r: r.span)
    for low, high in pairwise(ordered):
        if low.span.overlaps(high.span):
            yield f"{high.key} {high.span} overlaps {low.key} {low.span}; set rangeStart and rangeEnd apart"


def interface_id(mac: str) -> bytes:
    """Return the modified EUI-64 of an interface, as in the kernel's link-local addresses.

    The MAC has 6 bytes (RFC 4291, appendix A), or IPoIB's 20, which end with the port's GUID (RFC 4391, section 8).
    """
    link_layer = bytes.fromhex(mac.replace(":", ""))
    if len(link_layer) == 6:
        return bytes([link_layer[0] ^ _UNIVERSAL]) + link_layer[1:3] + b"\xff\xfe" + link_layer[3:]
    guid = link_layer[-8:]
    # Set, not inverted as for a MAC, because some GUIDs have the bit already (RFC 4391, section 8).
    return bytes([guid[0] | _UNIVERSAL]) + guid[1:]


def embedding(s: RangeSet, address: Address) -> Address:
    """The address of an ``embedIPv4`` set with that IPv4 address as its last 32 bits; the bits between are 0."""
    return _embedded(s.ranges[0].subnet, address)


def _embedded(subnet: Network, address: Address) -> Address:
    return IPv6Address(int(subnet.network_address) | int(address))


def eui64_addresses(sets: Sequence[RangeSet], mac: str) -> tuple[Address, ...]:
    """The interface's address in each set with ``eui64``."""
    subnets = [r.subnet for s in sets for r in s.ranges if r.eui64]
    return tuple(IPv6Address(subnet.network_address.packed[:8] + interface_id(mac)) for subnet in subnets)
