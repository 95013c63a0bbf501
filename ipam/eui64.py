"""IPv6 addresses made of an interface's MAC, or of an InfiniBand port's GUID: the subnet's /64 and a modified EUI-64
(RFC 4291, appendix A; RFC 4391, section 8, for InfiniBand).  Pure."""

from collections.abc import Sequence
from ipaddress import IPv6Address

from base.protocol.result import Address
from ipam.pool import RangeSet

_UNIVERSAL = 0x02


def interface_id(mac: str) -> bytes:
    """The interface identifier, as the kernel makes it for link-local addresses: of a MAC of 6 bytes, or of IPoIB's 20
    bytes, whose last 8 are the port's GUID."""
    link_layer = bytes.fromhex(mac.replace(":", ""))
    if len(link_layer) == 6:
        return bytes([link_layer[0] ^ _UNIVERSAL]) + link_layer[1:3] + b"\xff\xfe" + link_layer[3:]
    guid = link_layer[-8:]
    # Set, not inverted as in a MAC, because some GUIDs have the bit already (RFC 4391, section 8).
    return bytes([guid[0] | _UNIVERSAL]) + guid[1:]


def addresses(sets: Sequence[RangeSet], mac: str) -> tuple[Address, ...]:
    """The interface's address in each set with ``eui64``."""
    subnets = [r.subnet for s in sets for r in s.ranges if r.eui64]
    return tuple(IPv6Address(subnet.network_address.packed[:8] + interface_id(mac)) for subnet in subnets)
