"""Questions about a link by ioctl (man 7 netdevice), because these answers wait for nobody.

RTM_GETLINK waits while anybody changes any link of the system (rtnl_lock).  Where many pods are deleted at once, that
is a tenth of a DEL.  The ioctls read names and MACs under RCU and other locks (net/core/dev_ioctl.c).
"""

import fcntl
import os
import socket
import struct
from typing import Final

SIOCGIFNAME, SIOCGIFHWADDR = 0x8910, 0x8927
_BY_INDEX: Final = struct.Struct("=16xi20x")  # struct ifreq: a name, and a union
_BY_NAME: Final = struct.Struct("=16s24x")
_ADDRESS: Final = struct.Struct("=18x6s")  # the MAC in struct ifreq's struct sockaddr


def name_of(sock: socket.socket, index: int, mac: str) -> str:
    """The name of the link with this index and MAC ("02:00:00:00:00:01") in the socket's namespace.

    It is empty if there is no such link, or the kernel does not say; then RTM_GETLINK may know more.
    """
    try:
        name = fcntl.ioctl(sock, SIOCGIFNAME, _BY_INDEX.pack(index))[:16]
        (address,) = _ADDRESS.unpack_from(fcntl.ioctl(sock, SIOCGIFHWADDR, _BY_NAME.pack(name)))
    except OSError:
        return ""
    return os.fsdecode(name.rstrip(b"\0")) if address.hex(":") == mac else ""
