"""What all netlink sockets of ours have in common (man 7 netlink): they hear the kernel alone, and wait no longer than
the request may.

Whoever has CAP_NET_ADMIN in a namespace may send to every netlink socket in it, and /proc/net/netlink lists them.  What
a pod sends could pass for the kernel's answer, or fill the socket so that the kernel drops its own.
"""

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from cni.kernel import budget
from cni.kernel.netns import run_in

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ACK_TLVS = 0x1, 0x4, 0x300, 0x10, 0x200
NLM_F_EXCL, NLM_F_CREATE = 0x200, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLMSGERR_ATTR_MSG: Final = 1
NLA_TYPE_MASK: Final = 0x3FFF
HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr
ATTR: Final = struct.Struct("=HH")  # struct nlattr
_attr_at = ATTR.unpack_from
_SIOCGSKNS: Final = 0x894C
_ROOM: Final = 65536

# What it is, in words; a message's type, flags and body.
Change = tuple[str, int, int, bytes]


class AnswerLost(OSError):
    """The kernel's answer was lost, or did not come: whether it did what it was asked is not known."""


def open_socket(protocol: int, fd: int | None = None) -> socket.socket:
    """A socket in the thread's namespace, or the one with this descriptor, which is closed if it is none.  Raises
    OSError.

    Connected to the kernel, it refuses everybody else's messages (netlink_getsockbyportid), but not what is sent to a
    group that it joins.
    """
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol, fd)
    except BaseException:
        if fd is not None:
            os.close(fd)
        raise
    try:
        sock.connect((0, 0))
        sock.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def open_beside(sock: socket.socket) -> socket.socket:
    """A new one of the same protocol, in the same namespace.  Raises OSError."""
    namespace = fcntl.ioctl(sock, _SIOCGSKNS)
    try:
        return run_in(namespace, partial(open_socket, sock.proto))
    finally:
        os.close(namespace)


def receive(sock: socket.socket, request: bytes = b"") -> Iterator[bytes]:
    """Send the request, if there is one; then all that the kernel says, for as long as the caller listens.

    Raises AnswerLost where something was lost, and where the caller would have to wait longer than the request may;
    other OSErrors where nothing was sent.
    """
    if request:
        sock.sendto(request, (0, 0))
    began = time.monotonic()
    try:
        while True:
            # The kernel has mostly answered before ``sendto`` returned.
            try:
                data, (sender, _) = sock.recvfrom(_ROOM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(sock, began)
                continue
            except OSError as e:
                raise AnswerLost(e.errno, f"{e.strerror}: the kernel's answer was lost") from e
            if not sender:
                yield data
            if _rest(began) <= 0:
                raise _late()
    finally:
        budget.spend(time.monotonic() - began)


def attr(kind: int, payload: bytes) -> bytes:
    """struct nlattr and its payload, padded to four bytes."""
    return ATTR.pack(ATTR.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def attributes(data: bytes) -> dict[int, bytes]:
    """Attribute type (without its flag bits) -> payload; of a repeated type the last."""
    found, offset, end = dict[int, bytes](), 0, len(data)
    while offset + 4 <= end:
        length, kind = _attr_at(data, offset)
        if length < 4:
            break
        found[kind & NLA_TYPE_MASK] = data[offset + 4 : offset + length]
        offset += length + (-length & 3)
    return found


def pairs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in their order, repeated ones too."""
    offset = 0
    while offset + ATTR.size <= len(data):
        length, kind = _attr_at(data, offset)
        if length < ATTR.size:
            break
        yield kind & NLA_TYPE_MASK, data[offset + ATTR.size : offset + length]
        offset += length + (-length & 3)


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Of what was received each message's type, flags, sequence number and body."""
    offset = 0
    while offset < len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
        yield kind, flags, sequence, data[offset + HEADER.size : offset + length]
        offset += length + (-length & 3)


def raise_error(body: bytes, flags: int) -> None:
    """Raise what an NLMSG_ERROR says (struct nlmsgerr), if it is an error and not an acknowledgement."""
    number = -int.from_bytes(body[:4], sys.byteorder, signed=True)
    if not number:
        return
    said = attributes(body[4 + HEADER.size :]).get(NLMSGERR_ATTR_MSG) if flags & NLM_F_ACK_TLVS else None
    raise OSError(number, os.strerror(number) + (f" ({read_text(said)})" if said else ""))


def read_u32(payload: bytes) -> int:
    return int.from_bytes(payload[:4], sys.byteorder)


def read_text(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode(errors="replace")


def _wait(sock: socket.socket, began: float) -> None:
    """Until something has come.  Raises AnswerLost."""
    looking = select.poll()
    looking.register(sock, select.POLLIN)
    rest = _rest(began)
    if rest <= 0 or not looking.poll(rest * 1000):
        raise _late()


def _rest(began: float) -> float:
    return budget.left() - (time.monotonic() - began)


def _late() -> AnswerLost:
    return AnswerLost(
        errno.ETIMEDOUT, "the kernel's answer did not come, or did not end, in time; too much is going on in the pod"
    )
