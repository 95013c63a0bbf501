"""The kernel's word that a device came, went or got a driver (lib/kobject_uevent.c; man 7 udev has the keys).

Two can send what looks like one: a process with CAP_NET_ADMIN in this network namespace, to the group, and one with
CAP_SYS_ADMIN, through the kernel itself (uevent_net_rcv).  The first has a port number, and the second a process id.
Both may do worse things to the host.  Still an event is only a reason to look at the device.
"""

import socket
import struct
from collections.abc import Mapping
from typing import Final

from cni.kernel import netlink

NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL: Final = 1  # the kernel's group; udev's is 2
_ADD_MEMBERSHIP: Final = 1
_UCRED: Final = struct.Struct("=iII")  # struct ucred: process, user, group
_ROOM: Final = 65536


def open_socket() -> socket.socket:
    """A socket that hears the events of the thread's network namespace.  Raises OSError."""
    sock = netlink.open_socket(NETLINK_KOBJECT_UEVENT)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, _KERNEL)
    except BaseException:
        sock.close()
        raise
    return sock


def receive(sock: socket.socket) -> Mapping[str, str]:
    """The next event's variables: ACTION, DEVPATH, SUBSYSTEM and others; none for one that is not the kernel's.

    Raises BlockingIOError if there is none now, OSError ENOBUFS if some were lost.
    """
    data, about, _, (port, _) = sock.recvmsg(_ROOM, socket.CMSG_SPACE(_UCRED.size), socket.MSG_DONTWAIT)
    senders = [_UCRED.unpack(said)[0] for level, kind, said in about if (level, kind) == _CREDENTIALS]
    # guard below: a-port-of-its-own (port), the-kernels-process (senders)
    return variables(data) if port == 0 and senders == [0] else {}


def variables(data: bytes) -> Mapping[str, str]:
    """An event's variables, from its bytes: "add@/devices/..." and then "KEY=value", each ended by a zero byte."""
    _, *words = data.decode(errors="replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


_CREDENTIALS: Final = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
