"""Data Center Bridging: the Ethernet priorities for which an interface is lossless (man 8 dcb,
include/uapi/linux/dcbnl.h, net/dcb/dcbnl.c)."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from base.kernel.netlink import attr, attributes, pairs, text
from base.kernel.rtnl import Rtnl

RTM_GETDCB: Final = 78
DCB_CMD_IEEE_GET: Final = 21
DCB_ATTR_IFNAME, DCB_ATTR_IEEE = 1, 13
DCB_ATTR_IEEE_PFC, DCB_ATTR_IEEE_APP_TABLE, DCB_ATTR_DCB_APP_TRUST_TABLE = 2, 3, 11
_SELECTORS: Final = {5: "dscp", 255: "pcp"}
_MESSAGE: Final = struct.Struct("=BBH")  # struct dcbmsg: family, command, padding
_APP: Final = struct.Struct("=BBH")  # struct dcb_app: selector, priority, protocol
_PRIORITIES: Final = 8


@dataclass(frozen=True)
class Dcb:
    """An interface's settings for priorities.

    - ``pfc``: the priorities with Priority-based Flow Control, for which a switch drops no packet.
    - ``dscp``: DSCPs with a priority of their own: (DSCP, priority).
    - ``trust``: the fields that select a packet's priority, "dscp" or "pcp", in order.  It is empty if the driver does
      not report them; most drivers then use the DSCP if any DSCP has a priority.
    """

    pfc: tuple[int, ...] = ()
    dscp: tuple[tuple[int, int], ...] = ()
    trust: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Such as "PFC on 3; DSCP 24-31 to 3, 48 to 6"."""
        settings = [f"PFC on {', '.join(map(str, self.pfc))}" if self.pfc else "no PFC"]
        settings += [f"DSCP {', '.join(_runs(self.dscp))}"] if self.dscp else []
        settings += [f"trust {' '.join(self.trust)}"] if self.trust else []
        return "; ".join(settings)


def get(rtnl: Rtnl, ifname: str) -> Dcb | None:
    """Equivalent to: dcb pfc show dev IFNAME prio-pfc; dcb app show dev IFNAME; dcb apptrust show dev IFNAME.  None if
    the driver's answer holds none of these.  Raises OSError, EOPNOTSUPP if the driver has no DCB."""
    return parse(rtnl.call(RTM_GETDCB, 0, _MESSAGE.pack(0, DCB_CMD_IEEE_GET, 0) + attr(DCB_ATTR_IFNAME, text(ifname))))


def parse(body: bytes) -> Dcb | None:
    """Decode the answer's body."""
    found = attributes(attributes(body[_MESSAGE.size :]).get(DCB_ATTR_IEEE, b""))
    pfc = found.get(DCB_ATTR_IEEE_PFC, b"")
    if len(pfc) < 2:  # struct ieee_pfc: the number of supported priorities, and the mask of enabled ones
        return None
    apps = [
        _APP.unpack_from(data) for _, data in pairs(found.get(DCB_ATTR_IEEE_APP_TABLE, b"")) if len(data) >= _APP.size
    ]
    dscp = {protocol: priority for selector, priority, protocol in apps if _SELECTORS.get(selector) == "dscp"}
    trusted = (data[0] for _, data in pairs(found.get(DCB_ATTR_DCB_APP_TRUST_TABLE, b"")) if data)
    return Dcb(
        tuple(number for number in range(_PRIORITIES) if pfc[1] >> number & 1),
        tuple(sorted(dscp.items())),
        tuple(_SELECTORS.get(selector, f"{selector}") for selector in trusted),
    )


def _runs(dscp: Iterable[tuple[int, int]]) -> Iterator[str]:
    """Join consecutive DSCPs that have the same priority."""
    for _, run in groupby(enumerate(dscp), lambda one: (one[1][0] - one[0], one[1][1])):
        members = [pair for _, pair in run]
        (first, priority), (last, _) = members[0], members[-1]
        yield f"{first}-{last} to {priority}" if last > first else f"{first} to {priority}"
