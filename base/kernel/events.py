"""What the kernel announces: a device came, went or got a driver (lib/kobject_uevent.c; man 7 udev has the keys), and
an entry of a directory came or went (man 7 inotify).

Two can send what looks like an event of a device: a process with CAP_NET_ADMIN in this network namespace, to the group,
and one with CAP_SYS_ADMIN, through the kernel itself (uevent_net_rcv).  The first has a port number, and the second a
process id.  Both may do worse things to the host.  Still an event is only a reason to look at the device.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from base.kernel import netlink

NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL: Final = 1  # the kernel's group; udev's is 2
_ADD_MEMBERSHIP: Final = 1
_UCRED: Final = struct.Struct("=iII")  # struct ucred: process, user, group
_CREDENTIALS: Final = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
_ROOM: Final = 65536
IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_IGNORED, IN_ONLYDIR = 0x400, 0x800, 0x8000, 0x1000000
_EVENT: Final = struct.Struct("=iIII")  # struct inotify_event: watch, mask, cookie, length of the name
_libc = ctypes.CDLL(None, use_errno=True)


def open_devices() -> socket.socket:
    """A socket that hears the events of the thread's network namespace.  Raises OSError."""
    sock = netlink.open_socket(NETLINK_KOBJECT_UEVENT)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, _KERNEL)
    except BaseException:
        sock.close()
        raise
    return sock


def receive_device(sock: socket.socket) -> Mapping[str, str]:
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


def open_directories() -> int:
    """A descriptor that is readable when something has happened.  Raises OSError."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def watch_directory(fd: int, directory: str, mask: int) -> int:
    """Watch a directory for what ``mask`` names (IN_*); the watch's number.  Raises OSError."""
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(directory), mask | IN_ONLYDIR))


def unwatch_directory(fd: int, number: int) -> None:
    """End a watch, which may have ended by itself."""
    _libc.inotify_rm_watch(fd, number)


def read_directories(fd: int) -> Iterator[tuple[int, int, str]]:
    """What has happened: the watch's number, the mask, and the entry's name (empty for the directory itself)."""
    with suppress(BlockingIOError):
        while data := os.read(fd, _ROOM):
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                yield number, mask, os.fsdecode(data[offset - length : offset].rstrip(b"\0"))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
