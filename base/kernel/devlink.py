"""devlink, a family of generic netlink (include/uapi/linux/devlink.h, net/devlink/): devices with failed firmware, and
the mode of a PF's switch.

A driver has health reporters.  mlx5's reporter for unresponsive firmware is fw_fatal.  It stays in the state "error"
until an administrator recovers the device.  The kernel announces each change to the group "config".

Functions raise OSError.
"""

import errno
import struct
import sys
from dataclasses import dataclass
from typing import Final

from base.kernel import netlink
from base.kernel.netlink import attr, attributes, pairs, read_text, read_u32, text
from base.kernel.rtnl import Rtnl

NETLINK_GENERIC: Final = 16
ESWITCH_GET, HEALTH_REPORTER_GET, HEALTH_REPORTER_RECOVER = 29, 52, 54
_CTRL, _GETFAMILY = 16, 3  # <linux/genetlink.h>
_FAMILY_ID, _FAMILY_NAME, _MCAST_GROUPS, _GROUP_NAME, _GROUP_ID = 1, 2, 7, 1, 2
_BUS_NAME, _DEV_NAME, _ESWITCH_MODE, _REPORTER, _REPORTER_NAME, _REPORTER_STATE = 1, 2, 25, 114, 115, 116
_MODES: Final = {0: "legacy", 1: "switchdev"}  # enum devlink_eswitch_mode
_ERROR: Final = b"\1"  # enum devlink_health_reporter_state
_FATAL: Final = "fw_fatal"
_GENL: Final = struct.Struct("=BBxx")  # struct genlmsghdr: command, version


@dataclass(frozen=True)
class Family:
    """This kernel's numbers for devlink, and for its group "config"."""

    number: int
    config: int


def family() -> Family | None:
    """devlink's numbers; None if the kernel has no devlink."""
    with _socket() as sock:
        try:
            answer = sock.call(_CTRL, 0, _GENL.pack(_GETFAMILY, 1) + attr(_FAMILY_NAME, text("devlink")))
        except OSError as e:
            if e.errno == errno.ENOENT:
                return None
            raise
    found = attributes(answer[_GENL.size :])
    groups = [attributes(group) for _, group in pairs(found[_MCAST_GROUPS])]
    config = next(read_u32(group[_GROUP_ID]) for group in groups if read_text(group[_GROUP_NAME]) == "config")
    return Family(int.from_bytes(found[_FAMILY_ID][:2], sys.byteorder), config)


def failed(one: Family) -> frozenset[str]:
    """Equivalent to: devlink health show.  The addresses of the devices with failed firmware."""
    with _socket() as sock:
        bodies = list(sock.dump(one.number, _GENL.pack(HEALTH_REPORTER_GET, 1)))
    return frozenset(filter(None, map(failed_device, bodies)))


def eswitch_mode(one: Family, bus: str, device: str) -> str:
    """Equivalent to: devlink dev eswitch show BUS/DEVICE.  The mode, "legacy" or "switchdev"; empty for another one.
    Raises OSError: ENODEV if the driver has no devlink, EOPNOTSUPP if it has no switch, EPERM without privileges."""
    request = _GENL.pack(ESWITCH_GET, 1) + attr(_BUS_NAME, text(bus)) + attr(_DEV_NAME, text(device))
    with _socket() as sock:
        answer = sock.call(one.number, 0, request)
    mode = attributes(answer[_GENL.size :]).get(_ESWITCH_MODE)
    return _MODES.get(int.from_bytes(mode[:2], sys.byteorder), "") if mode else ""


def failed_device(body: bytes) -> str:
    """The device whose firmware failed, according to a message; empty for any other message."""
    command, _ = _GENL.unpack_from(body)
    found = attributes(body[_GENL.size :])
    if command not in (HEALTH_REPORTER_GET, HEALTH_REPORTER_RECOVER) or _REPORTER not in found:
        return ""
    reporter = attributes(found[_REPORTER])
    is_failure = read_text(reporter[_REPORTER_NAME]) == _FATAL and reporter[_REPORTER_STATE][:1] == _ERROR
    return read_text(found[_DEV_NAME]) if is_failure else ""


def is_of_health(body: bytes) -> bool:
    """Whether a message to the group "config" is about a health reporter."""
    command, _ = _GENL.unpack_from(body)
    return bool(command == HEALTH_REPORTER_RECOVER)


def _socket() -> Rtnl:
    # Rtnl serves any netlink protocol: its callers' messages hold what is special to routes.
    return Rtnl(netlink.open_socket(NETLINK_GENERIC))
