"""Rules of policy routing (man 8 ip-rule, include/uapi/linux/fib_rules.h), and the routing tables in use.

Packed by hand as in links.py, and tested against pyroute2's encoder and decoder too.  Failure is OSError.
"""

import errno
import socket
import struct
from typing import Final

from base.kernel.addresses import RTA_TABLE, RTPROT_STATIC
from base.kernel.netlink import NLM_F_CREATE, NLM_F_EXCL, Change, attr, attributes, read_u32, u32
from base.kernel.rtnl import Rtnl
from base.protocol.result import Address

RTM_GETROUTE: Final = 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
FRA_SRC, FRA_TABLE, FRA_PROTOCOL = 2, 15, 21
FR_ACT_TO_TBL: Final = 1
_FRA_PRIORITY, _FRA_SUPPRESS_IFGROUP, _FRA_SUPPRESS_PREFIXLEN = 6, 13, 14
_INVERT: Final = 2  # FIB_RULE_INVERT
# Attributes that are no condition of a rule.
_NO_CONDITION: Final = {_FRA_PRIORITY, _FRA_SUPPRESS_IFGROUP, _FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_PROTOCOL}

# struct fib_rule_hdr: family, dst_len, src_len, tos, table, two reserved, action, flags.  struct rtmsg begins with the
# same five fields, and has the same twelve bytes.
RULE = struct.Struct("=BBBBBxxBI")
_TABLE: Final = 4
RT_TABLE_COMPAT: Final = 252  # stands for a table number that does not fit


def adding(source: Address, table: int) -> Change:
    """The change that is equivalent to: ip rule add from SOURCE lookup TABLE protocol static.  The kernel puts the rule
    before the main table's rule and before all rules added earlier."""
    return f"adding rule from {source} lookup {table}", RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule(source, table)


def remove(inside: Rtnl, source: Address, table: int) -> None:
    """Equivalent to: ip rule delete from SOURCE lookup TABLE protocol static.  Ignore a missing rule.  Raises
    OSError."""
    remove_as_is(inside, rule(source, table))


def remove_as_is(inside: Rtnl, body: bytes) -> None:
    """Remove the rule that a message describes.  Ignore a missing rule.  Raises OSError."""
    try:
        inside.change(RTM_DELRULE, 0, body)
    except OSError as e:
        # A kernel without IPv6, or without IPv6 rules, refused to add the rule too.
        if e.errno not in (errno.ENOENT, errno.EAFNOSUPPORT):
            raise


def tables_in_use(inside: Rtnl) -> set[int]:
    """The tables that any rule or any route of any family names.  Raises OSError, also if a pod has more routes than
    the request's budget allows to read."""
    everything = bytes(RULE.size)
    return {
        table_of(body, key)
        for kind, key in ((RTM_GETRULE, FRA_TABLE), (RTM_GETROUTE, RTA_TABLE))
        for body in inside.dump(kind, everything)
    }


def tables_of_all(inside: Rtnl, family: int) -> set[int]:
    """The tables of rules without a condition, which apply to all packets.  Raises OSError."""
    bodies = inside.dump(RTM_GETRULE, RULE.pack(family, 0, 0, 0, 0, 0, 0))
    return {table_of(body, FRA_TABLE) for body in bodies if _is_for_all(body)}


def _is_for_all(body: bytes) -> bool:
    _, to, source, tos, _, action, flags = RULE.unpack_from(body)
    conditions = attributes(body[RULE.size :]).keys() - _NO_CONDITION
    return action == FR_ACT_TO_TBL and not (to or source or tos or flags & _INVERT or conditions)


def rule(source: Address, table: int) -> bytes:
    """The body of RTM_NEWRULE and RTM_DELRULE.  RTPROT_STATIC distinguishes our rule from a person's."""
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    # Only the attribute holds a table above 255; the header has one byte.
    body = RULE.pack(family, 0, source.max_prefixlen, 0, table if table < 256 else 0, FR_ACT_TO_TBL, 0)
    return (
        body + attr(FRA_SRC, source.packed) + attr(FRA_TABLE, u32(table)) + attr(FRA_PROTOCOL, bytes([RTPROT_STATIC]))
    )


def table_of(body: bytes, key: int) -> int:
    """The table in a rule's or a route's message.  ``key`` is the attribute for it (FRA_TABLE, RTA_TABLE).  The header
    holds a table up to 255, too."""
    if body[_TABLE] not in (0, RT_TABLE_COMPAT):
        return body[_TABLE]  # ten times as fast, and a pod may have a million routes
    named = attributes(body[RULE.size :]).get(key)
    return read_u32(named) if named else body[_TABLE]
