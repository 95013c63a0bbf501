"""Netlink sockets that accept only the kernel's messages and wait within the request's budget; and the attributes of
all netlink messages (man 7 netlink).

A process with CAP_NET_ADMIN in a namespace can send to every netlink socket in it, and /proc/net/netlink lists the
sockets.  A pod's messages could imitate the kernel's answer, or fill the socket, so that the kernel drops its own.
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

from base.kernel import budget
from base.kernel.netns import run_in

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ACK_TLVS = 0x1, 0x4, 0x300, 0x10, 0x200
NLM_F_EXCL, NLM_F_CREATE = 0x200, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 270, 10, 11, 12
NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP = 1, 2
NLMSGERR_ATTR_MSG: Final = 1
NLA_TYPE_MASK: Final = 0x3FFF
HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr
ATTR: Final = struct.Struct("=HH")  # struct nlattr
_attr_at = ATTR.unpack_from
_SIOCGSKNS: Final = 0x894C
_ROOM: Final = 65536
_FOR_EVER: Final = float("inf")

# One change for the kernel: a phrase for messages ("adding route ..."); the message's type, flags and body.
Change = tuple[str, int, int, bytes]


class AnswerLost(OSError):
    """The kernel's answer was lost or did not come, so it is unknown whether the kernel did what was requested."""


def open_socket(protocol: int, fd: int | None = None) -> socket.socket:
    """A socket of a netlink ``protocol`` (NETLINK_*) in the thread's namespace.  Raises OSError.

    ``fd``: make the socket of this descriptor, and close the descriptor on failure.

    The socket is connected to the kernel, so it refuses unicast messages from others (netlink_getsockbyportid).  It
    still receives what others send to a group that it joins.
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


def answers_strictly(sock: socket.socket, *, wanted: bool = True) -> bool:
    """Make the socket's dumps answer with only what the request names, or stop that; return whether the kernel can.
    Kernels before 4.20 ignore what a dump's request names.  Raises OSError."""
    try:
        sock.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, wanted)
    except OSError as e:
        if e.errno == errno.ENOPROTOOPT:
            return False
        raise
    return True


def open_beside(sock: socket.socket) -> socket.socket:
    """Another socket of the same protocol, in the same namespace as ``sock``.  Raises OSError."""
    namespace = fcntl.ioctl(sock, _SIOCGSKNS)
    try:
        return run_in(namespace, partial(open_socket, sock.proto))
    finally:
        os.close(namespace)


def receive(sock: socket.socket, request: bytes = b"", seconds: float = _FOR_EVER) -> Iterator[bytes]:
    """Send the request, if any; then yield each datagram of the kernel, until the caller stops or ``seconds`` are over.

    Without ``seconds``, the kernel owes an answer.  While it stays silent, it waits for its own lock: in ``sendto``, in
    ``recvfrom`` (between two parts of a list), or in another thread's ``sendto``.  Such a wait does not count.  A wait
    that another sender's message ends does count.

    Raises AnswerLost if a message was lost, or if the budget is spent; another OSError if the request was not sent.
    """
    since = time.monotonic()
    if request:
        sock.sendto(request, (0, 0))
        budget.excuse(since)
    began, since, idle = budget.clock(), time.monotonic(), 0.0
    try:
        while True:
            # Mostly the kernel has answered before ``sendto`` returns.
            try:
                data, (sender, _) = sock.recvfrom(_ROOM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not _wait(sock, began, since, seconds):
                    return
                continue
            except OSError as e:
                raise AnswerLost(e.errno, f"{e.strerror}: the kernel's answer was lost") from e
            if not sender:
                if seconds == _FOR_EVER:
                    budget.excuse(since)
                idle = budget.clock()
                yield data
                idle = 0.0
            since = time.monotonic()
            if budget.clock() - began > seconds:
                return
            if _rest(began) <= 0:
                raise _late()
    finally:
        # A failure's traceback may hold this generator, where it stopped, until after later requests.
        budget.spend((idle or budget.clock()) - began)


def attr(kind: int, payload: bytes) -> bytes:
    """One attribute: struct nlattr and its payload, padded to four bytes."""
    return ATTR.pack(ATTR.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def u32(value: int) -> bytes:
    """A number as an attribute's payload."""
    return struct.pack("=I", value)


def text(value: str) -> bytes:
    """A string as an attribute's payload, with a final zero byte.  A name in sysfs may not be UTF-8."""
    return os.fsencode(value) + b"\0"


def attributes(data: bytes) -> dict[int, bytes]:
    """Attributes as type (without its flag bits) -> payload.  Of a repeated type, the last one counts."""
    found, offset, end = dict[int, bytes](), 0, len(data)
    while offset + 4 <= end:
        length, kind = _attr_at(data, offset)
        if length < 4:
            break
        found[kind & NLA_TYPE_MASK] = data[offset + 4 : offset + length]
        offset += length + (-length & 3)
    return found


def pairs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes as (type without its flag bits, payload), in order, including repeated ones."""
    offset = 0
    while offset + ATTR.size <= len(data):
        length, kind = _attr_at(data, offset)
        if length < ATTR.size:
            break
        yield kind & NLA_TYPE_MASK, data[offset + ATTR.size : offset + length]
        offset += length + (-length & 3)


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The messages of one datagram: type, flags, sequence number and body of each."""
    offset = 0
    while offset < len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
        yield kind, flags, sequence, data[offset + HEADER.size : offset + length]
        offset += length + (-length & 3)


def raise_error(body: bytes, flags: int) -> None:
    """Raise the OSError in an NLMSG_ERROR's body (struct nlmsgerr); return if it is an acknowledgement.  The error's
    text includes the kernel's own message (NLMSGERR_ATTR_MSG)."""
    number = -int.from_bytes(body[:4], sys.byteorder, signed=True)
    if not number:
        return
    message = attributes(body[4 + HEADER.size :]).get(NLMSGERR_ATTR_MSG) if flags & NLM_F_ACK_TLVS else None
    raise OSError(number, os.strerror(number) + (f" ({read_text(message)})" if message else ""))


def read_u32(payload: bytes) -> int:
    """``u32``'s inverse; 0 for an empty payload."""
    return int.from_bytes(payload[:4], sys.byteorder)


def read_text(payload: bytes) -> str:
    """``text``'s inverse, also for bytes that are not UTF-8: distinct names stay distinct, and each can be sent
    back."""
    return os.fsdecode(payload.rstrip(b"\0"))


def _wait(sock: socket.socket, began: float, since: float, seconds: float) -> bool:
    """Wait for a message; return false if ``seconds`` since ``began`` pass first.  Raises AnswerLost when the budget is
    spent; or, if the kernel owes an answer, when the time for the kernel is spent."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    rest, own = max(_rest(began), 0), began + seconds - budget.clock()
    if own != _FOR_EVER:
        if not poll.poll(max(min(rest, own), 0) * 1000):
            if own <= rest:
                return False
            raise _late()
    elif not poll.poll((rest + budget.kernel_left()) * 1000):
        budget.excuse(since)
        raise AnswerLost(
            errno.ETIMEDOUT,
            f"the kernel's answer did not come in {budget.KERNEL_TIMEOUT:.0f} s; "
            "it works on links elsewhere (rtnl_lock)",
        )
    return True


def _rest(began: float) -> float:
    return budget.left() - (budget.clock() - began)


def _late() -> AnswerLost:
    return AnswerLost(
        errno.ETIMEDOUT,
        "the kernel's answer did not end in time; too much happens in the network namespace concerned",
    )
