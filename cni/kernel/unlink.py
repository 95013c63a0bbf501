"""Remove a link and go on when it is gone, not when the kernel has done away with it.

RTM_DELLINK returns only after a wait of 20 ms for whoever may still look at the link (rcu_barrier in
netdev_run_todo), long after it has left the namespace, announced that, and freed its name and MAC.
"""

import _thread
import os
import select
import socket
from contextlib import suppress
from typing import Final

from cni.kernel import rtnl
from cni.kernel.rtnl import HEADER, LINK, RTM_DELLINK, SOL_NETLINK, Rtnl

NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP = 1, 2
RTNLGRP_LINK: Final = 1


def delete(inside: Rtnl, ns_fd: int, index: int) -> None:
    """Equivalent to: ip link delete, in the namespace of both.  Raises OSError."""
    fd, failed = os.dup(ns_fd), list[OSError]()
    ended, end = socket.socketpair()

    def work() -> None:
        try:
            with rtnl.opened(fd) as other:
                other.change(RTM_DELLINK, 0, LINK.pack(0, 0, index, 0, 0))
        except OSError as e:
            failed.append(e)
        finally:
            end.close()
            os.close(fd)

    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        # Not a Thread: its start waits for it to run, and we have the link's end to wait for.
        _thread.start_new_thread(work, ())
        with ended:
            _await_end_of(index, inside.sock, ended)
    finally:
        inside.sock.setsockopt(SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)
    if failed:
        raise failed[0]


def _await_end_of(index: int, announcements: socket.socket, ended: socket.socket) -> None:
    """Until the link's end is announced, or whoever ends it has ended."""
    poll = select.poll()
    poll.register(announcements, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if announcements.fileno() in ready:
            with suppress(OSError):  # ENOBUFS: more was announced than there was room for
                if _is_end_of(index, announcements.recv(65536)):
                    return
        if ended.fileno() in ready:
            return


def _is_end_of(index: int, message: bytes) -> bool:
    """A bridge's announcement that it has lost the link as a port is not that."""
    _, kind, _, _, _ = HEADER.unpack_from(message)
    family, _, which, _, _ = LINK.unpack_from(message, HEADER.size)
    return (kind, family, which) == (RTM_DELLINK, socket.AF_UNSPEC, index)
