"""RDMA netlink (include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c): devices and their namespaces.

There is no family header: attributes follow struct nlmsghdr.  A device moves between namespaces only in exclusive mode.
The kernel takes it from the calling thread's namespace, not from the socket's (rdma_dev_change_netns).  So a socket is
opened, used and closed in one ``netns.run_in``.

A dump loses devices while others move, because the kernel sends one device per receive and goes on by position.  So a
device is asked for by its index, which is stable, and a name that is missing is asked for again.

Functions raise OSError.
"""

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from base.kernel import netlink
from base.kernel.netlink import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    attr,
    attributes,
    messages,
    pairs,
    read_text,
    read_u32,
    text,
    u32,
)
from base.kernel.netns import run_in

NETLINK_RDMA: Final = 20
NLDEV: Final = 5 << 10  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 0)
GET, SET, NEWLINK, DELLINK, SYS_GET, SYS_SET, RES_CTX_GET = (NLDEV + n for n in (1, 2, 3, 4, 6, 7, 22))
DEV_INDEX, DEV_NAME, CAP_FLAGS, RES_PID, NDEV_NAME, LINK_TYPE, NETNS_MODE, NET_NS_FD = 1, 2, 4, 28, 51, 65, 66, 68
RES_CTX, RES_CTX_ENTRY = 86, 87

_MISSES: Final = 20  # dumps without a device before it is called absent; while others move, one in five loses one
T = TypeVar("T")


def is_exclusive() -> bool | None:
    """Equivalent to: rdma system show netns.  Whether that is "exclusive"; None where the kernel has no RDMA."""
    try:
        with _socket() as sock:
            (answer,) = _call(sock, SYS_GET, 0, b"")
    except OSError as e:
        if e.errno == errno.EPROTONOSUPPORT:  # ib_core is not loaded
            return None
        raise
    mode = attributes(answer).get(NETNS_MODE)
    return mode is not None and mode[0] == 0


def set_exclusive(exclusive: bool) -> None:  # noqa: FBT001
    """Equivalent to: rdma system set netns exclusive, or shared.  Raises OSError, EBUSY while there is a namespace
    besides the first (rdma_compatdev_set)."""
    with _socket() as sock:
        _call(sock, SYS_SET, NLM_F_ACK, attr(NETNS_MODE, bytes([not exclusive])))


def index_of(name: str, ns_fd: int | None = None) -> int | None:
    """The index of the device with that name in a namespace, our own by default; None if it is not there."""

    def look() -> int | None:
        with _socket() as sock:
            for _ in range(_MISSES):
                found = {
                    read_text(a[DEV_NAME]): read_u32(a[DEV_INDEX])
                    for a in map(attributes, _call(sock, GET, NLM_F_DUMP, b""))
                }
                if name in found:
                    return found[name]
                time.sleep(0.002)
        return None

    return _in(ns_fd, look)


def name_of(index: int, ns_fd: int | None = None) -> str:
    """The name of the device with that index in a namespace, our own by default; empty if it is not there."""

    def look() -> str:
        with _socket() as sock:
            try:
                (answer,) = _call(sock, GET, 0, attr(DEV_INDEX, u32(index)))
            except OSError as e:
                if e.errno == errno.EINVAL:  # no such device, or not here
                    return ""
                raise
            return read_text(attributes(answer)[DEV_NAME])

    return _in(ns_fd, look)


def capabilities(index: int) -> int:
    """What the device can: bits of enum ib_device_cap_flags.  Raises OSError, EINVAL if the device is not there."""
    with _socket() as sock:
        (answer,) = _call(sock, GET, 0, attr(DEV_INDEX, u32(index)))
    return int.from_bytes(attributes(answer)[CAP_FLAGS], sys.byteorder)


def move(index: int, *, to: int, of: int | None = None) -> None:
    """Equivalent to: rdma dev set DEV netns NS, from the namespace ``of`` (ours by default) to the namespace ``to``."""

    def act() -> None:
        with _socket() as sock:
            _call(sock, SET, NLM_F_ACK, set_netns(index, to))

    _in(of, act)


def rename(index: int, name: str, ns_fd: int | None = None) -> None:
    """Equivalent to: rdma dev set DEV name NAME, in a namespace, our own by default.

    Raises OSError, EEXIST if a device of any namespace has the name.
    """

    def act() -> None:
        with _socket() as sock:
            _call(sock, SET, NLM_F_ACK, attr(DEV_INDEX, u32(index)) + attr(DEV_NAME, text(name)))

    _in(ns_fd, act)


def new_link(kind: str, name: str, netdev: str, ns_fd: int) -> None:
    """Equivalent to: rdma link add NAME type KIND netdev NETDEV, in that namespace.

    Raises OSError: EEXIST if the netdev has one, ENFILE if any device of the system has the name, EINVAL if the kernel
    does not know the kind.
    """
    body = attr(DEV_NAME, text(name)) + attr(LINK_TYPE, text(kind)) + attr(NDEV_NAME, text(netdev))

    def act() -> None:
        with _socket() as sock:
            _call(sock, NEWLINK, NLM_F_ACK, body)

    run_in(ns_fd, act)


def delete_link(index: int) -> None:
    """Equivalent to: rdma link delete DEV.  It waits for processes that have the device open.

    Raises OSError, EINVAL if it is not there.
    """
    with _socket() as sock:
        _call(sock, DELLINK, NLM_F_ACK, attr(DEV_INDEX, u32(index)))


def users(index: int) -> list[int]:
    """The processes that have the device open, as in: rdma resource show ctx.  Raises OSError, EINVAL if the device is
    not there."""
    with _socket() as sock:
        answers = _call(sock, RES_CTX_GET, NLM_F_DUMP, attr(DEV_INDEX, u32(index)))
    entries = [
        attributes(entry)
        for answer in answers
        for kind, entry in pairs(attributes(answer)[RES_CTX])
        if kind == RES_CTX_ENTRY
    ]
    return [read_u32(entry[RES_PID]) for entry in entries if RES_PID in entry]


def set_netns(index: int, ns_fd: int) -> bytes:
    """SET's body for a move to the namespace of a descriptor."""
    return attr(DEV_INDEX, u32(index)) + attr(NET_NS_FD, u32(ns_fd))


def _in(ns_fd: int | None, work: Callable[[], T]) -> T:
    return work() if ns_fd is None else run_in(ns_fd, work)


def _socket() -> socket.socket:
    return netlink.open_socket(NETLINK_RDMA)


def _call(sock: socket.socket, kind: int, flags: int, body: bytes) -> list[bytes]:
    """Send one message; the bodies of its answers.  Raises OSError."""
    request = HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, 1, 0) + body
    bodies, hearing = list[bytes](), netlink.receive(sock, request)
    while True:
        for answer, _, _, payload in messages(next(hearing)):
            if answer == NLMSG_ERROR:
                if number := -struct.unpack_from("=i", payload)[0]:
                    raise OSError(number, os.strerror(number))
                return bodies
            if answer == NLMSG_DONE:
                return bodies
            bodies.append(payload)
        if not flags & (NLM_F_DUMP | NLM_F_ACK):
            return bodies
