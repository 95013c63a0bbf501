"""The keys of a configuration's ipam section: a pydantic model per object, with the keys in camelCase as in JSON.

The keys and the order of the sets (runtimeConfig's, subnet's, ranges') are host-local's; ``exclude``, ``reserved``,
``eui64``, ``embedIPv4``, ``node``, the parent's ``subnet``, ``"gateway": null``, ``rails``, ``align``,
``releaseCooldown``, ``sticky``, ``probe``, ``overlaps`` and ``cluster`` are ours.  Other modules read ipam.type and
ipam.dataDir.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel

from base.protocol import spec, written
from base.protocol.errors import InvalidConfig
from base.protocol.result import Address, Network, Route
from base.protocol.spec import Json
from ipam.pool import Prefix, Range
from ipam.ranges import Span, default_gateway, whole

# Seconds to listen for another host that uses an address: default, least, most.
PROBE, PROBE_LEAST, PROBE_MOST = 0.3, 0.03, 10.0


def address_of(value: object) -> Address:
    text = str(value)  # ipaddress would make every number below 2**32 an IPv4 address
    with suppress(ValueError):
        return written.address(text)
    raise ValueError("not an IP address; write it in full, as in 10.0.0.5 or fd00::5")


def _subnet(value: object) -> Network:
    address_of(str(value).partition("/")[0])
    try:
        given = written.cidr(str(value))
    except ValueError:
        raise ValueError("not a subnet; write address/length, as in 10.0.0.0/24 or fd00::/64") from None
    if given.ip != given.network.network_address:
        raise ValueError(f"host bits are set; write {given.network}")
    return given.network


class Parent(StrEnum):
    """A subnet that this node's parent has: the interface under the pod's."""

    IPV4 = "parent-ipv4"
    IPV6 = "parent-ipv6"

    @property
    def version(self) -> int:
        return 4 if self is Parent.IPV4 else 6


def _place(value: object) -> Network | Parent:
    if str(value).startswith("parent"):
        with suppress(ValueError):
            return Parent(str(value))
        raise ValueError(f"not a subnet; write {Parent.IPV4} or {Parent.IPV6} for a subnet of the parent")
    return _subnet(value)


def _excluded(value: object) -> Span:
    text = str(value)
    if "/" in text:
        return whole(_subnet(text))
    first, dash, last = text.partition("-")
    low, high = address_of(first), address_of(last if dash else first)
    if low.version != high.version or int(low) > int(high):
        raise ValueError("not a range; write lowest-highest, as in 10.0.0.5-10.0.0.9")
    return Span.of(low, high)


def _name(value: object) -> str:
    if not isinstance(value, str) or (why := spec.bad_ifname(value, spec.ALTNAME)):
        raise ValueError(f"cannot name an interface: {why if isinstance(value, str) else 'not a string'}")
    return value


def _pci_address(value: object) -> str:
    if not _PCI_ADDRESS.fullmatch(str(value)):
        raise ValueError("not a PCI address; write it as lspci -D does, 0000:3b:00.2")
    return str(value).lower()


_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]", re.IGNORECASE)
_Name = Annotated[str, PlainValidator(_name)]
_PciAddress = Annotated[str, PlainValidator(_pci_address)]


def _listening(value: object) -> float:
    """The value of ``probe`` in seconds.  Raises ValueError, also for a number in a string."""
    if isinstance(value, bool):
        return PROBE if value else 0.0
    if not isinstance(value, int | float) or not (value == 0 or PROBE_LEAST <= value <= PROBE_MOST):
        raise ValueError(f"neither true, false, nor {PROBE_LEAST:g} to {PROBE_MOST:g} seconds to listen")
    return float(value)


_Address = Annotated[IPv4Address | IPv6Address, PlainValidator(address_of)]
_Subnet = Annotated[IPv4Network | IPv6Network, PlainValidator(_subnet)]
_Place = Annotated[IPv4Network | IPv6Network | Parent, PlainValidator(_place)]
_Excluded = Annotated[Span, PlainValidator(_excluded)]
_Seconds = Annotated[int, Field(strict=True, ge=0, le=10 * 366 * 86400)]
_Listening = Annotated[float, PlainValidator(_listening)]
_U32 = Annotated[int, Field(strict=True, ge=0, lt=2**32)]


class Section(BaseModel):
    """An object that refuses unknown keys, so that no misspelled key is ignored."""

    # Deferred, so that it is built once, as part of Conf.
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _tolerate(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        context: Json = info.context or {}
        strict = context.get("strict", True)
        return {k: v for k, v in data.items() if k in known or (strict and not k.startswith("cni.dev/"))}


class Bounds(Section):
    range_start: _Address | None = None
    """The first address to allocate.
    Default: the subnet's second; of a /31, /32, /127 or /128 its first
    Refused: 7: outside the subnet, above `rangeEnd`"""
    range_end: _Address | None = None
    """The last address to allocate.
    Default: the subnet's last; of IPv4 its last but one, or of a /31 or /32 its last
    Refused: 7: outside the subnet"""
    gateway: _Address | None = None
    """The gateway in the result, which no pod gets; `null` for no gateway.
    Default: the subnet's first host address; of a /31, /32, /127 or /128 none
    Refused: 7: outside the subnet, unless link-local IPv6; an address that no host can have"""
    exclude: list[_Excluded] | None = None
    """Addresses, CIDRs or `first-last` that are never allocated.
    Default: none
    Refused: 7: outside the subnet, nothing left"""
    reserved: list[_Excluded] | None = None
    """Addresses, CIDRs or `first-last` that are allocated only on request.
    Default: none
    Refused: 7: outside the subnet"""
    eui64: Annotated[bool, Field(strict=True)] | None = None
    """Derive the address from the subnet and the modified EUI-64 of the interface's MAC or the InfiniBand port's GUID.
    For sites where firewalls and DNS need a device's address before a pod has it.
    Default: `false`
    Refused: 7: not an IPv6 /64, with `rangeStart`, `rangeEnd`, `exclude`, `reserved` or `align`, another range on
    its node; 101: no such interface; 102: held by another attachment"""
    embed_ipv4: Annotated[bool, Field(strict=True)] | None = Field(None, alias="embedIPv4")
    """Derive the address from the subnet and the IPv4 address of the same ADD, which becomes its last 32 bits
    ([parent](addresses.md#subnets-of-the-parent)).
    Default: `false`
    Refused: 7: no set of IPv4 addresses; not an IPv6 prefix of at most 96 bits; with `eui64`, `rangeStart`, `rangeEnd`,
    `exclude`, `reserved` or `align`; another range on its node.  102: held by another attachment"""
    node: Annotated[str, Field(min_length=1)] | None = None
    """The name of the only node that has this range, as `uname -n` shows it
    ([a range per node](addresses.md#a-range-per-node)).
    Default: none: all nodes have it
    Refused: 7: empty, with `rails` or `ipam.cluster`; a set without a range for this node"""

    @property
    def derivation(self) -> str:
        """The key with which something else determines the address; empty if it is chosen."""
        return "eui64" if self.eui64 else "embedIPv4" if self.embed_ipv4 else ""

    def range(self, key: str, place: Network | Prefix, hops: Sequence[Address]) -> Range:
        subnet, prefix = (place.subnet, place) if isinstance(place, Prefix) else (place, None)
        default = prefix.gateway if prefix else default_gateway(subnet)
        gateway = self.gateway if "gateway" in self.model_fields_set else default
        # A route's gateway is a router of the fabric, or a pod that requests the address.
        routers = () if self.derivation else (Span.of(hop, hop) for hop in hops if hop in subnet and hop != gateway)
        spans = tuple(self.exclude or ()), (*(self.reserved or ()), *routers)
        derived = bool(self.eui64), bool(self.embed_ipv4)
        return Range(key, subnet, self.range_start, self.range_end, gateway, *spans, *derived, prefix)


class RangeKeys(Bounds):
    subnet: _Place
    """CIDR; IPv4 or IPv6 of any length, /31, /32, /127 and /128 too.  `parent-ipv4` and `parent-ipv6` stand for the
    subnet of [the parent](addresses.md#subnets-of-the-parent) on each node.
    Refused: 7: host bits set; the parent has no such subnet, or no address left"""


# A range as written: its key, its keys, and its subnet.
Item = tuple[str, Bounds, Network | Parent]


def listed(key: str, sets: list[list[RangeKeys]]) -> Iterator[tuple[str, list[Item]]]:
    for i, items in enumerate(sets):
        yield f"{key}[{i}]", [(f"{key}[{i}][{j}]", item, item.subnet) for j, item in enumerate(items)]


class Sets(Bounds):
    """One range in place, and sets of ranges."""

    subnet: _Place | None = None
    """One range, as the first set; the other keys of a range can stand beside it.
    Default: none
    Refused: 7: as of a range; those keys without it"""
    ranges: list[list[RangeKeys]] | None = None
    """Range sets, each a list of ranges.  An attachment gets one address from each set, from its ranges in order.
    Default: none
    Refused: 7: empty, two families in a set, overlaps anywhere"""

    def written(self, key: str) -> Iterator[tuple[str, list[Item]]]:
        """The key and the ranges of every set."""
        if self.subnet is not None:
            yield key, [(key, self, self.subnet)]
        elif stray := self.model_fields_set & Bounds.model_fields.keys():
            names = ", ".join(sorted(f"{Bounds.model_fields[name].alias}" for name in stray))
            raise InvalidConfig(
                f"{key}.{names}: of no effect without {key}.subnet; set that, or move it into {key}.ranges"
            )
        yield from listed(f"{key}.ranges", self.ranges or [])


class RailKeys(Sets):
    pf: _Name | None = None
    """The device is this PF, a VF of it, or a master that sends through it, such as its VLAN.
    Value: interface
    Refused: 7: no interface's name"""
    master: _Name | None = None
    """The device is a child of this `master`.
    Value: interface
    Refused: 7: no interface's name"""
    pci_address: _PciAddress | None = None
    """The device is, or sends through, this function or a VF of it: `0000:3b:00.2`.
    Value: PCI address
    Refused: 7: malformed"""
    numa_node: Annotated[int, Field(strict=True, ge=0)] | None = None
    """The device is, or sends through, a function of this NUMA node."""

    def device(self) -> dict[str, str | int | None]:
        """The properties that can identify the rail's devices."""
        return {"pf": self.pf, "master": self.master, "pciAddress": self.pci_address, "numaNode": self.numa_node}


class RouteKeys(Section):
    dst: _Subnet
    """The destination, a CIDR.
    Refused: 7: host bits set"""
    gw: _Address | None = None
    """The gateway, which is allocated only on request.
    Default: that of the first address of its family, unless `scope` is 253 (on-link)"""
    mtu: _U32 | None = None
    """The route's MTU, in bytes.
    Default: none"""
    advmss: _U32 | None = None
    """The MSS to advertise.
    Default: none"""
    priority: _U32 | None = None
    """The metric.
    Default: the kernel's"""
    table: _U32 | None = None
    """The routing table.
    Default: the main one; with `policyRouting` or `multiRail` the interface's"""
    scope: _U32 | None = None
    """The scope, as a number.
    Default: the kernel's"""

    def route(self) -> Route:
        return Route(self.dst, self.gw, self.mtu, self.advmss, self.priority, self.table, self.scope)


class ClusterKeys(Section):
    backend: Literal["kubernetes", "etcd"]
    """The backend that records the owner of each block: the cluster's API server, or an etcd.  The
    [policy file](node.md#the-policy-file) has its address and the credentials.
    Refused: 7: this node has blocks of another backend"""
    block_size: Annotated[int, Field(strict=True, ge=1, le=4096)] = 16
    """The host numbers per block.  The first node that allocates an address fixes it forever.
    Refused: 7: another than the network's, more than a range set has"""
    sticky: str | None = None
    """Host numbers that are reserved for names, as in `"256-511"`: a StatefulSet's pod has the same one on every node
    ([sticky](addresses.md#sticky-addresses-on-all-nodes)).  The first node that allocates an address fixes it forever.
    Default: none
    Refused: 7: another than the network's, malformed, no number that all range sets have, without `ipam.sticky`"""


class IpamKeys(Sets):
    type: Any = None
    """`hpn-ipam`, or the name of another program in `CNI_PATH`.
    Value: text
    Default: required"""
    data_dir: Any = None
    """Absolute path.  The leases are in `<dataDir>/<name>`.
    Value: text
    Default: `/var/lib/cni/hpn/ipam`
    Refused: 7: relative, not safe; 5: cannot be written"""
    rails: list[RailKeys] | None = None
    """Rails instead of `ranges` and `subnet`: the device's rail provides the addresses ([Rails](addresses.md#rails)).
    Default: none
    Refused: 7: empty, beside `ranges`, `subnet` or `ipRanges`"""
    align: Annotated[bool, Field(strict=True)] | None = None
    """With `rails`: a container's addresses have the same host number on all rails ([Rails](addresses.md#rails)).
    Default: `false`
    Refused: 7: without `rails`, or with rails that cannot be aligned"""
    routes: list[RouteKeys] | None = None
    """Routes for the result: below.
    Default: none"""
    resolv_conf: str | None = None
    """A resolv.conf for the result's `dns`, if the [policy file](node.md#the-policy-file) allows its path.
    Default: none
    Refused: 7: not allowed, unreadable, longer than 64 KiB"""
    release_cooldown: _Seconds | None = None
    """Seconds for which no attachment gets an address after its release
    ([sticky](addresses.md#sticky-and-releasecooldown)).
    Default: 0"""
    sticky: _Seconds | None = None
    """Seconds for which only the same pod's interface gets an address after its release
    ([sticky](addresses.md#sticky-and-releasecooldown)).
    Default: 0
    Refused: 4: no name of a pod"""
    probe: _Listening | None = None
    """Probe whether other hosts on the link use an address before its allocation
    ([probe](addresses.md#probe)).  A number is the seconds to listen; `true` is 0.3.
    Value: `true`, `false`, 0.03 to 10
    Default: `false`
    Refused: 7: InfiniBand, ipvlan, or what has no ARP; 101: no such interface, no carrier"""
    overlaps: Annotated[bool, Field(strict=True)] | None = None
    """Its addresses may be another network's too, or another node's: on separate links, or with ranges apart
    ([overlaps](addresses.md#ranges-that-overlap)).
    Default: `false`"""
    cluster: ClusterKeys | None = None
    """One pool for all nodes of a cluster ([below](#cluster)): each node allocates from blocks that it has claimed.
    Default: none: the node does not share its addresses
    Refused: 7: subnets that overlap and begin apart"""


class RuntimeKeys(BaseModel):
    model_config = ConfigDict(defer_build=True)

    ip_ranges: list[list[RangeKeys]] | None = Field(None, alias="ipRanges")


class Conf(BaseModel):
    """The keys of a configuration that hpn-ipam reads."""

    model_config = ConfigDict(defer_build=True)

    ipam: IpamKeys
    runtime: RuntimeKeys | None = Field(None, alias="runtimeConfig")
