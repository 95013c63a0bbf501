"""Numbers and addresses in texts: as Go's strconv.Atoi and net.ParseCIDR read them, without signs.

``int`` also reads "+24", "2_4", " 24" and digits of other scripts.  ``ipaddress`` also reads a netmask, a scope, and an
address without its length.  So texts of configurations, claims, results and command lines are read here.  Pure.
"""

import re
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface
from typing import Final

_PKEY: Final = re.compile(r"0x[0-9a-f]{1,4}|[0-9]{1,5}", re.IGNORECASE)


def number(text: str) -> int:
    """A decimal number.  Raises ValueError."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a number; write digits")
    return int(text)


def partition_key(text: str) -> int:
    """InfiniBand's "0x8001", or "32769".  Raises ValueError."""
    if not _PKEY.fullmatch(text):
        raise ValueError(f"{text!r} is not a partition key; write it as 0x8001")
    return int(text, 16 if text[1:2] in ("x", "X") else 10)


def address(text: str) -> IPv4Address | IPv6Address:
    """An address without a scope, which would name an interface.  Raises ValueError."""
    if "%" in text:
        raise ValueError(f"{text!r} has a scope; write only the address")
    return ip_address(text)


def cidr(text: str) -> IPv4Interface | IPv6Interface:
    """An address with its prefix length.  Raises ValueError."""
    ip, _, length = text.partition("/")
    try:
        return ip_interface((f"{address(ip)}", number(length)))
    except ValueError:
        raise ValueError(f"{text!r} is not an address with its length; write it as in 10.0.0.5/24") from None


def host(text: str) -> IPv4Address | IPv6Address:
    """An address, with or without a prefix length.  Raises ValueError."""
    return cidr(text).ip if "/" in text else address(text)
