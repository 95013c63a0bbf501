"""IPv6 addresses made of an interface's MAC, or of an InfiniBand port's GUID: the subnet's /64 and a modified EUI-64
(RFC 4291, appendix A; RFC 4391, section 8, for InfiniBand).  Pure."""

from collections.abc import Sequence
from ipaddress import IPv6Address

from cni.protocol.result import Address
from ipam.pool import RangeSet

_UNIVERSAL = 0x02


def interface_id(mac: str) -> bytes:
    """Of a MAC of 6 bytes, or of IPoIB's 20, whose last 8 are the port's GUID: as the kernel makes its link-local
    address of it."""
    link_layer = bytes.fromhex(mac.replace(":", ""))
    if len(link_layer) == 6:
        return bytes([link_layer[0] ^ _UNIVERSAL]) + link_layer[1:3] + b"\xff\xfe" + link_layer[3:]
    guid = link_layer[-8:]
    # Not the other way round for one that is set, as of a MAC: some GUIDs have it set already (RFC 4391, section 8).
    return bytes([guid[0] | _UNIVERSAL]) + guid[1:]


def addresses(sets: Sequence[RangeSet], mac: str) -> tuple[Address, ...]:
    """The address that each set with ``eui64`` gives the interface."""
    subnets = [r.subnet for s in sets for r in s.ranges if r.eui64]
    return tuple(IPv6Address(subnet.network_address.packed[:8] + interface_id(mac)) for subnet in subnets)
