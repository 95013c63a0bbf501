"""An interface's offloads, which ``ethtool -k`` shows (include/uapi/linux/ethtool.h, net/ethtool/ioctl.c).

By ioctl, in one call: generic netlink needs its family's number first.
"""

import ctypes
import fcntl
import os
import socket
import struct
from itertools import islice
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_GFEATURES, _SFEATURES = 0x3A, 0x3B
_MOST: Final = 4  # blocks of 32 offloads; Linux has 2
_HEAD: Final = struct.Struct("=II")  # the command, and the number of blocks
_GET: Final = struct.Struct("=IIII")  # available, requested, active, never changed
_SET: Final = struct.Struct("=II")  # which ones to set, and to what
_IFREQ: Final = struct.Struct("16sP16x")  # struct ifreq: a name, and a pointer


def read(name: str) -> tuple[int, ...]:
    """The offloads that are requested, 32 in each number; empty if the interface's driver does not report them."""
    message = bytearray(_HEAD.pack(_GFEATURES, _MOST) + bytes(_MOST * _GET.size))
    try:
        _call(name, message)
    except OSError:
        return ()
    _, blocks = _HEAD.unpack_from(message)
    found = islice(_GET.iter_unpack(message[_HEAD.size :]), blocks)
    return tuple(available & requested for available, requested, _, _ in found)


def write(name: str, wanted: tuple[int, ...], now: tuple[int, ...]) -> None:
    """Request those of ``wanted``, and no others; ``now`` is what ``read`` returned.  What the driver refuses stays.
    Raises OSError."""
    blocks = (_SET.pack(one ^ other, one) for one, other in zip(wanted, now, strict=False))
    _call(name, bytearray(_HEAD.pack(_SFEATURES, len(wanted)) + b"".join(blocks)))


def _call(name: str, message: bytearray) -> None:
    """Send the message; the kernel writes its answer into it.  Raises OSError."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(message))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, _IFREQ.pack(os.fsencode(name), address))
