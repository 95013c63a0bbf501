"""The private flags of an interface's driver, which ``ethtool --show-priv-flags`` shows (include/uapi/linux/ethtool.h).

By ioctl, as the offloads.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_STRINGS, _SET_INFO, _FLAGS = 0x1B, 0x37, 0x27  # ETHTOOL_GSTRINGS, GSSET_INFO, GPFLAGS
_PRIVATE: Final = 2  # ETH_SS_PRIV_FLAGS
_INFO: Final = struct.Struct("=IIQI")  # struct ethtool_sset_info with one number
_NAMES: Final = struct.Struct("=III")  # struct ethtool_gstrings: the command, the set, the number of names
_VALUE: Final = struct.Struct("=II")  # struct ethtool_value
_NAME: Final = 32  # bytes of a name
_MOST: Final = 32  # flags, as a value has bits
_IFREQ: Final = struct.Struct("16sP16x")  # struct ifreq: a name, and a pointer


def read(name: str) -> Mapping[str, bool]:
    """The flags of the interface's driver by name; none if it has none, or there is no such interface."""
    try:
        asked = _call(name, _INFO.pack(_SET_INFO, 0, 1 << _PRIVATE, 0))
        _, _, there, count = _INFO.unpack(asked)
        if not there or not 0 < count <= _MOST:
            return {}
        names = _call(name, _NAMES.pack(_STRINGS, _PRIVATE, count) + bytes(count * _NAME))
        _, values = _VALUE.unpack(_call(name, _VALUE.pack(_FLAGS, 0)))
    except OSError:
        return {}
    return decoded(names[_NAMES.size :], values)


def decoded(names: bytes, values: int) -> Mapping[str, bool]:
    """The flags, from their names of 32 bytes each, and their values by bit."""
    parts = [names[at : at + _NAME] for at in range(0, len(names), _NAME)]
    texts = [part.partition(b"\0")[0].decode("ascii", "replace") for part in parts]
    return {text: bool(values >> at & 1) for at, text in enumerate(texts)}


def _call(name: str, message: bytes) -> bytes:
    """Send the message; return the kernel's answer, of the same length.  Raises OSError."""
    buffer = ctypes.create_string_buffer(message, len(message))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, _IFREQ.pack(os.fsencode(name)[:15], ctypes.addressof(buffer)))
    return buffer.raw
