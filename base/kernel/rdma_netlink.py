"""RDMA netlink (include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c): devices and their namespaces.

There is no family header: attributes follow struct nlmsghdr.  A device moves between namespaces only in exclusive mode.
The kernel takes the device from the calling thread's namespace, not from the socket's (rdma_dev_change_netns).  So one
``netns.run_in`` opens, uses and closes a socket.

The kernel sends one device per receive and continues by position, so a dump loses devices while others move.  So
functions address a device by its index, which is stable, and repeat a dump that lacks a name.

Functions raise OSError.
"""

import errno
import sys
import time
from typing import Final

from base.kernel import netlink
from base.kernel.netlink import NLM_F_ACK, NLM_F_DUMP, attr, attributes, pairs, read_text, read_u32, text, u32
from base.kernel.netns import run_in
from base.kernel.rtnl import Rtnl

NETLINK_RDMA: Final = 20
NLDEV: Final = 5 << 10  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 0)
GET, SET, NEWLINK, DELLINK, SYS_GET, SYS_SET, RES_CTX_GET = (NLDEV + n for n in (1, 2, 3, 4, 6, 7, 22))
DEV_INDEX, DEV_NAME, CAP_FLAGS, RES_PID, NDEV_NAME, LINK_TYPE, NETNS_MODE, NET_NS_FD = 1, 2, 4, 28, 51, 65, 66, 68
RES_KERN_NAME: Final = 29
# Resources of a device: the message's type, and the attributes of the list and of an entry.
RESOURCES: Final = {
    "qp": (NLDEV + 10, 19, 20),
    "cq": (NLDEV + 12, 35, 36),
    "mr": (NLDEV + 13, 40, 41),
    "ctx": (RES_CTX_GET, 86, 87),
}
KERNEL, UNSEEN = -1, 0  # in place of a thread

_MISSES: Final = 20  # dumps without a device before it counts as absent; while others move, one dump in five loses one


def is_exclusive() -> bool | None:
    """Equivalent to: rdma system show netns.  True for "exclusive"; None if the kernel has no RDMA."""
    try:
        (answer,) = _call(SYS_GET, 0, b"")
    except OSError as e:
        if e.errno == errno.EPROTONOSUPPORT:  # ib_core is not loaded
            return None
        raise
    mode = attributes(answer).get(NETNS_MODE)
    return mode is not None and mode[0] == 0


def set_exclusive(exclusive: bool) -> None:  # noqa: FBT001
    """Equivalent to: rdma system set netns exclusive, or shared.  Raises OSError, EBUSY while any namespace exists
    besides the first (rdma_compatdev_set)."""
    _call(SYS_SET, NLM_F_ACK, attr(NETNS_MODE, bytes([not exclusive])))


def index_of(name: str, ns_fd: int | None = None) -> int | None:
    """The index of the device with that name in a namespace, by default ours; None if it is not there."""
    for _ in range(_MISSES):
        found = indexes(ns_fd)
        if name in found:
            return found[name]
        time.sleep(0.002)
    return None


def indexes(ns_fd: int | None = None) -> dict[str, int]:
    """The devices of a namespace, by default ours: name -> index.  One that moves meanwhile may hide another."""
    devices = map(attributes, _call(GET, NLM_F_DUMP, b"", ns_fd))
    return {read_text(device[DEV_NAME]): read_u32(device[DEV_INDEX]) for device in devices}


def name_of(index: int, ns_fd: int | None = None) -> str:
    """The name of the device with that index in a namespace, by default ours; empty if it is not there."""
    try:
        (answer,) = _call(GET, 0, attr(DEV_INDEX, u32(index)), ns_fd)
    except OSError as e:
        if e.errno == errno.EINVAL:  # no such device, or not here
            return ""
        raise
    return read_text(attributes(answer)[DEV_NAME])


def capabilities(index: int) -> int:
    """The device's capabilities: bits of enum ib_device_cap_flags.  Raises OSError, EINVAL if it is not there."""
    (answer,) = _call(GET, 0, attr(DEV_INDEX, u32(index)))
    return int.from_bytes(attributes(answer)[CAP_FLAGS], sys.byteorder)


def move(index: int, *, to: int, of: int | None = None) -> None:
    """Equivalent to: rdma dev set DEV netns NS, from the namespace ``of`` (by default ours) to the namespace ``to``."""
    _call(SET, NLM_F_ACK, attr(DEV_INDEX, u32(index)) + attr(NET_NS_FD, u32(to)), of)


def rename(index: int, name: str, ns_fd: int | None = None) -> None:
    """Equivalent to: rdma dev set DEV name NAME, in a namespace, by default ours.  Raises OSError, EEXIST if a device
    of any namespace has the name."""
    _call(SET, NLM_F_ACK, attr(DEV_INDEX, u32(index)) + attr(DEV_NAME, text(name)), ns_fd)


def new_link(kind: str, name: str, netdev: str, ns_fd: int) -> None:
    """Equivalent to: rdma link add NAME type KIND netdev NETDEV, in that namespace.

    Raises OSError.  EEXIST: the netdev has one.  ENFILE: a device of the system has the name.  EINVAL: the kernel does
    not know the kind.
    """
    body = attr(DEV_NAME, text(name)) + attr(LINK_TYPE, text(kind)) + attr(NDEV_NAME, text(netdev))
    _call(NEWLINK, NLM_F_ACK, body, ns_fd)


def delete_link(index: int) -> None:
    """Equivalent to: rdma link delete DEV.  It waits for processes that have the device open.  Raises OSError, EINVAL
    if the device is not there."""
    _call(DELLINK, NLM_F_ACK, attr(DEV_INDEX, u32(index)))


def users(index: int) -> list[int]:
    """The processes that have the device open, as in: rdma resource show ctx.  Raises OSError, EINVAL if the device is
    not there."""
    return [thread for thread in creators(index, "ctx") if thread not in (KERNEL, UNSEEN)]


def creators(index: int, resource: str) -> list[int]:
    """The thread that made each of the device's resources, as in: rdma resource show qp.  Raises OSError, EINVAL if the
    device is not there.

    It is KERNEL for the kernel's own.  The kernel numbers a thread as our PID namespace does (fill_res_name_pid).  A
    thread outside of that, or one that has ended, is UNSEEN.  A resource lives until its process ends.  The kernel
    continues by position, so a list may miss resources while others end.
    """
    kind, table, entry = RESOURCES[resource]
    entries = [
        attributes(body)
        for answer in _call(kind, NLM_F_DUMP, attr(DEV_INDEX, u32(index)))
        for found, body in pairs(attributes(answer)[table])
        if found == entry
    ]
    return [KERNEL if RES_KERN_NAME in one else read_u32(one.get(RES_PID, b"")) for one in entries]


def _call(kind: int, flags: int, body: bytes, ns_fd: int | None = None) -> list[bytes]:
    """Send one message in a namespace, by default ours; the bodies of its answers.  Raises OSError."""

    def work() -> list[bytes]:
        with _socket() as sock:
            return list(sock.dump(kind, body)) if flags & NLM_F_DUMP else [sock.call(kind, flags, body)]

    return work() if ns_fd is None else run_in(ns_fd, work)


def _socket() -> Rtnl:
    return Rtnl(netlink.open_socket(NETLINK_RDMA))
