"""Events of the kernel.  A device appeared, disappeared or got a driver (lib/kobject_uevent.c; man 7 udev lists the
keys).  An entry of a directory appeared or disappeared (man 7 inotify).

Two kinds of processes can forge a device's event.  One with CAP_NET_ADMIN in this network namespace sends to the group,
with a port number.  One with CAP_SYS_ADMIN sends through the kernel, with a process id (uevent_net_rcv).  Both could do
worse to the host.  Still, an event is only a reason to check the device.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from base.kernel import netlink
from base.kernel.syscalls import checked, libc
from base.kernel.unix_sockets import UCRED

NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL: Final = 1  # the kernel's group; udev's is 2
_CREDENTIALS: Final = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
_ROOM: Final = 65536
IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_Q_OVERFLOW, IN_IGNORED, IN_ONLYDIR = 0x400, 0x800, 0x4000, 0x8000, 0x1000000
_EVENT: Final = struct.Struct("=iIII")  # struct inotify_event: watch, mask, cookie, length of the name


def open_devices() -> socket.socket:
    """A socket that receives the events of the thread's network namespace.  Raises OSError."""
    sock = netlink.open_socket(NETLINK_KOBJECT_UEVENT)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.setsockopt(netlink.SOL_NETLINK, netlink.NETLINK_ADD_MEMBERSHIP, _KERNEL)
    except BaseException:
        sock.close()
        raise
    return sock


def receive_device(sock: socket.socket) -> Mapping[str, str]:
    """The next event's variables: ACTION, DEVPATH, SUBSYSTEM and others; empty if the kernel did not send the event.
    Raises BlockingIOError if there is no event now, OSError ENOBUFS if events were lost."""
    data, ancillary, _, (port, _) = sock.recvmsg(_ROOM, socket.CMSG_SPACE(UCRED.size), socket.MSG_DONTWAIT)
    senders = [UCRED.unpack(credentials)[0] for level, kind, credentials in ancillary if (level, kind) == _CREDENTIALS]
    return variables(data) if port == 0 and senders == [0] else {}


def variables(data: bytes) -> Mapping[str, str]:
    """Decode an event: "add@/devices/...", then its variables as "KEY=value", each ended by a zero byte."""
    _, *parts = data.decode(errors="replace").split("\0")
    return dict(part.split("=", 1) for part in parts if "=" in part)


def open_directories() -> int:
    """A descriptor that becomes readable at an event in a watched directory.  Raises OSError."""
    try:
        return checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as e:
        if not _has_descriptors():
            raise
        raise _full(e, errno.EMFILE, "root has no inotify instance left; raise fs.inotify.max_user_instances") from e


def watch_directory(fd: int, directory: str, mask: int) -> int:
    """Watch a directory for the events in ``mask`` (IN_*); return the watch's number.  Raises OSError."""
    try:
        return checked(libc.inotify_add_watch(fd, os.fsencode(directory), mask | IN_ONLYDIR))
    except OSError as e:
        raise _full(e, errno.ENOSPC, "root has no inotify watch left; raise fs.inotify.max_user_watches") from e


def _has_descriptors() -> bool:
    """Whether the process may open one more file.  The limit of inotify instances has the same error number."""
    with suppress(OSError):
        os.close(os.open("/", os.O_PATH))
        return True
    return False


def _full(error: OSError, number: int, why: str) -> OSError:
    """The error, with this text if it has this number: the kernel's own is that of full disks or tables of files."""
    return OSError(number, why) if error.errno == number else error


def unwatch_directory(fd: int, number: int) -> None:
    """End a watch.  It may have ended by itself."""
    libc.inotify_rm_watch(fd, number)


def read_directories(fd: int) -> Iterator[tuple[int, int, str]]:
    """The pending events: the watch's number, the mask, and the entry's name (empty for the directory itself)."""
    with suppress(BlockingIOError):
        while data := os.read(fd, _ROOM):
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                yield number, mask, os.fsdecode(data[offset - length : offset].rstrip(b"\0"))
