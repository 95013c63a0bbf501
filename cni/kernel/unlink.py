"""Remove a link and go on when it is gone, not when the kernel has done away with it.

RTM_DELLINK returns only after a wait of 20 ms for whoever may still look at the link (rcu_barrier in
netdev_run_todo), long after it has left the namespace, announced that, and freed its name and MAC.
"""

import _thread
import errno
import os
import socket
import struct
from contextlib import suppress
from typing import Final

from cni.kernel.patience import attempts
from cni.kernel.rtnl import (
    LINK,
    NLM_F_ACK,
    NLMSG_ERROR,
    RTM_DELLINK,
    SOL_NETLINK,
    Rtnl,
    messages,
    raise_error,
)

NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP = 1, 2
RTNLGRP_LINK: Final = 1
_PATIENCE: Final = 30  # seconds; the kernel takes milliseconds
_POLL: Final = 0.005


def delete(inside: Rtnl, index: int) -> None:
    """Equivalent to: ip link delete, in the socket's namespace.  Raises OSError."""
    request = inside.packed(RTM_DELLINK, NLM_F_ACK, LINK.pack(0, 0, index, 0, 0))
    inside.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PATIENCE, 0))
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        # To ask and to be told takes one socket, but asking lasts longer than we do.  Not a Thread: its start waits
        # for it to run, and we have the link's end to wait for.
        _thread.start_new_thread(_ask, (os.dup(inside.sock.fileno()), request))
        while not _has_ended(inside, index):
            pass
    finally:
        inside.sock.setsockopt(SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)


def _ask(fd: int, request: bytes) -> None:
    try:
        os.write(fd, request)
    finally:
        os.close(fd)


def _has_ended(inside: Rtnl, index: int) -> bool:
    """Whether what came next was its end's announcement, or the answer that it had ended.  Raises OSError."""
    try:
        data = inside.sock.recv(65536)
    except BlockingIOError as e:
        raise OSError(errno.ETIMEDOUT, f"the kernel did not say in {_PATIENCE} s that the link is gone") from e
    except OSError as e:
        if e.errno != errno.ENOBUFS:
            raise
        return _is_absent(inside, index)
    for kind, flags, sequence, body in messages(data):
        if kind == NLMSG_ERROR and sequence == inside.sequence:
            raise_error(body, flags)
            return True
        # Of a bridge (AF_BRIDGE) it says that the link is its port no more.
        if kind == RTM_DELLINK and LINK.unpack_from(body)[::2][:2] == (socket.AF_UNSPEC, index):
            return True
    return False


def _is_absent(inside: Rtnl, index: int) -> bool:
    """More was announced than there was room for: look for it, for the announcement and the answer may be lost."""
    # The kernel drops answers, too, until all is read that there was room for.
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)
    with suppress(BlockingIOError):
        while inside.sock.recv(65536, socket.MSG_DONTWAIT):
            pass
    for _ in attempts(_PATIENCE, _POLL):
        if inside.link(index=index) is None:
            return True
    raise OSError(errno.ETIMEDOUT, f"the link is there after {_PATIENCE} s still")
