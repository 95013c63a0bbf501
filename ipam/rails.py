"""Find an attachment's rail by its device in /sys, and allocate addresses with the same host number on all rails.

A host number is an address minus its subnet's first address.  With ``align`` a number belongs to one container on every
rail from its first attachment on, so the later attachments find their address free.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.kernel import rtnl, sysfs
from base.protocol import arguments, spec
from base.protocol.errors import AddressHeld, AddressUnavailable, InvalidConfig, PoolExhausted
from base.protocol.result import Address, Ip
from base.protocol.spec import Config
from ipam import leases
from ipam.pool import Pool, Rail, RangeSet
from ipam.ranges import Span, common, next_free, whole
from ipam.stores import Book

# An attachment's device: for each property of a rail, the matching values.
Device = Mapping[str, Sequence[str | int]]
# Plugins with a master, by default the one of the default route.  They ignore the device that Multus adds.
_OVER_A_MASTER = {"macvlan", "ipvlan"}


def device_of(conf: Config, root: Path = sysfs.SYS, *, by: Collection[str] = ()) -> Device:
    """The attachment's device; empty if the configuration names none.  Raises InvalidConfig.

    Its sources are the main plugin's configuration, of whichever plugin, and /sys.  ``by`` are the properties that
    matter, by default all: a master is known without /sys.
    """
    master, pf = interface_of(conf), rtnl.real_name(interface(conf.get("pf")))
    if master:
        under = [] if by == {"master"} or conf.get("linkInContainer") else sysfs.functions_under(master, root)
        # A bond's packets leave by several devices, so only its name identifies the rail.
        return {"master": [master], **(_behind(under[0], root) if len(under) == 1 else {})}
    device = arguments.chosen_device(conf, "deviceID", "pciBusID")
    if isinstance(device, str) and device and not defaults_to_a_master(conf):
        # A subfunction is a part of a PCI function.
        function = sysfs.function(sysfs.pci_of(device, root) or device.lower(), root)
        return _behind(function, root) if function else {"pciAddress": [device.lower()]}
    if pf:
        function = sysfs.function(sysfs.address_of(pf, root), root)
        return {**(_behind(function, root) if function else {}), "pf": [pf]}
    return {}


def _behind(function: sysfs.PciFunction, root: Path) -> Device:
    """The properties of a function; a VF has those of its PF too."""
    pf = sysfs.function(function.pf, root) if function.pf else function
    node = sysfs.numa_node(function.address, root)
    return {
        **({"pf": pf.netdevs} if pf and pf.netdevs else {}),
        "pciAddress": [function.address, *([function.pf] if function.pf else [])],
        **({"numaNode": [node]} if node >= 0 else {}),
    }


def interface_of(conf: Config) -> str:
    """The interface that the configuration names; empty if none."""
    # host-device moves a device, other kinds keep a master; a rail names either.
    named = interface(conf.get("device" if "host-device" in (conf.get("kind"), conf.get("type")) else "master"))
    return named if conf.get("linkInContainer") else rtnl.real_name(named)


def defaults_to_a_master(conf: Config) -> bool:
    return not _OVER_A_MASTER.isdisjoint(str(conf.get(key)) for key in ("kind", "type")) or "mode" in conf


def interface(name: Any) -> str:
    return name if isinstance(name, str) and not spec.bad_ifname(name, spec.ALTNAME) else ""


def rail_of(rails: Sequence[Rail], device: Device) -> int:
    """The index of the one rail that has the device.  Raises InvalidConfig."""
    found = [at for at, rail in enumerate(rails) if rail.value in device.get(rail.by, ())]
    if not found:
        names = [rtnl.real_name(f"{rail.value}") if rail.by in ("pf", "master") else "" for rail in rails]
        found = [at for at, rail in enumerate(rails) if names[at] and names[at] in device.get(rail.by, ())]
    if len(found) == 1:
        return found[0]
    what = ", ".join(f"{key} {' or '.join(map(str, values))}" for key, values in device.items())
    if not what:
        raise InvalidConfig("ipam.rails: the attachment names no device, so no rail; set master, deviceID or pf")
    if not found:
        raise InvalidConfig(
            f"ipam.rails: the attachment has {what}, and the rails are {', '.join(map(str, rails))}; "
            "add a rail for it, or correct one"
        )
    both = " and ".join(f"{rails[at].key} ({rails[at]})" for at in found)
    raise InvalidConfig(f"ipam.rails: the attachment has {what}, which is on {both}; leave one of them")


def requested_of(pool: Pool, at: int) -> tuple[Address, ...]:
    """The rail's requested addresses, of those that one ADD requests for all rails.  With ``align``, an address of
    another rail requests the same host number here.  Raises AddressUnavailable for an address of no rail."""
    found = list[Address]()
    for address in pool.requested:
        there = [
            (rail, s, column)
            for rail in pool.rails
            for column, s in enumerate(rail.sets)
            if any(address in one.subnet for one in s.ranges)
        ]
        if not there:
            subnets = ", ".join(str(one.subnet) for rail in pool.rails for s in rail.sets for one in s.ranges)
            raise AddressUnavailable(f"requested address {address} is of no rail; request one of {subnets}")
        _, s, column = there[0]
        if pool.rails[at] in (rail for rail, *_ in there):
            found.append(address)
        elif pool.align and (same := _address(pool.rails[at].sets[column], int(address) - _base(s))):
            found.append(same)
    return tuple(dict.fromkeys(found))


def choose(pool: Pool, at: int, requested: Sequence[Address], book: Book) -> tuple[Ip, ...]:
    """Like leases.choose.  With ``align``, the address with the container's number must be available."""
    own = pool.rails[at].sets
    if not pool.align:
        return leases.choose(own, requested, book)
    asked = leases.asked_for(own, requested, book)
    columns = zip(*(rail.sets for rail in pool.rails), strict=True)
    return tuple(s.ip(_pick(s, column, asked.get(s.key), book)) for s, column in zip(own, columns, strict=True))


def _pick(own: RangeSet, column: Sequence[RangeSet], asked: Address | None, book: Book) -> Address:
    """An address of the set ``own``; ``column`` are the aligned sets of all rails."""
    sibling, number = next(_numbers(column, book.siblings), (None, 0))
    if sibling is None:
        if asked is not None:
            _refuse_foreign(own, column, asked, book)
        return asked or leases.kept(own, book) or _next(own, column, book)
    address = _address(own, number)
    because = f"ipam.align: this container has {sibling}, host number {number}"
    if address is None:
        raise AddressUnavailable(f"{because}, which is outside of {own.key}; {_REMEDY}")
    if asked not in (None, address):
        raise AddressUnavailable(
            f"requested address {asked} differs from {address}, which has its host number; {because}"
        )
    if address not in own:
        raise AddressUnavailable(f"{because}, and {address} {leases.why_not([own], address)}; {_REMEDY}")
    if address not in book.mine and (owner := book.holder(address)):
        raise AddressHeld(f"{because}, and {address} is held by {owner}; delete that, or {_AGAIN}")
    return address


_AGAIN = "delete all attachments of this container and add them again, for another number"
_REMEDY = f"give all rails the same host numbers, or {_AGAIN}"


def _numbers(column: Sequence[RangeSet], addresses: Sequence[Address]) -> Iterator[tuple[Address, int]]:
    """Those of the addresses in the sets' subnets, with their host numbers."""
    for address in addresses:
        for s in column:
            if address in s.ranges[0].subnet:
                yield address, int(address) - _base(s)


def _base(s: RangeSet) -> int:
    return int(s.ranges[0].subnet.network_address)


def _address(s: RangeSet, number: int) -> Address | None:
    """The address with the host number; None if the subnet is too small."""
    subnet = whole(s.ranges[0].subnet)
    return subnet.address(subnet.first + number) if number <= subnet.last - subnet.first else None


def _refuse_foreign(own: RangeSet, column: Sequence[RangeSet], asked: Address, book: Book) -> None:
    """Refuse a number that another container has on any rail: that container may need it here."""
    if asked in book.mine:
        return
    number = int(asked) - _base(own)
    for s in column:
        there = _address(s, number)
        if there and (owner := book.holder(there)):
            raise AddressHeld(
                f"requested address {asked}: host number {number} belongs to another container (ipam.align): "
                f"{there} is held by {owner}; request another or delete that"
            )


def _next(own: RangeSet, column: Sequence[RangeSet], book: Book) -> Address:
    """The address of the set ``own`` with the next number that is free on all rails."""
    shifts = [_base(s) - _base(own) for s in column]
    spans: Sequence[Span] = own.spans
    for s, shift in zip(column, shifts, strict=True):
        spans = common(spans, [Span(p.version, p.first - shift, p.last - shift) for p in s.spans])

    def first_free(span: Span) -> Address | None:
        first = span.first
        while first <= span.last:
            found = [book.first_free(Span(span.version, first + by, span.last + by)) for by in shifts]
            numbers = [int(address) - by for address, by in zip(found, shifts, strict=True) if address is not None]
            if len(numbers) < len(found):
                return None
            first = max(numbers)
            if first == min(numbers):
                return span.address(first)
        return None

    last = next((number for _, number in _numbers(column, book.last)), None)
    address = next_free(spans, None if last is None else _address(own, last), first_free)
    if address is None:
        subnets = ", ".join(str(s.ranges[0].subnet) for s in column)
        raise PoolExhausted(
            f"{own.key}: no host number is free on all of {subnets} (ipam.align); widen the ranges of all rails, "
            "release unused addresses (GC), or wait for those that are kept back",
            *(s.key for s in column),
        )
    return address
