"""Remove a link, and return as soon as it has left its namespace.

RTM_DELLINK returns 20 ms later, because the kernel waits for readers that may still look at the link (rcu_barrier in
netdev_run_todo).  Long before that, the link has left the namespace, which is announced, and its name and MAC are free.
"""

import _thread
import errno
import os
import socket
from typing import Final

from cni.kernel import netlink
from cni.kernel.budget import REQUEST, attempts
from cni.kernel.links import LINK, RTM_DELLINK
from cni.kernel.netlink import NLM_F_ACK, NLMSG_ERROR, SOL_NETLINK, attributes, messages, raise_error
from cni.kernel.rtnl import Rtnl

NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP = 1, 2
RTNLGRP_LINK: Final = 1
IFLA_NEW_NETNSID: Final = 45
_POLL: Final = 0.005


def delete(inside: Rtnl, index: int) -> None:
    """Equivalent to: ip link delete, for the link of that index in the socket's namespace.  Raises OSError."""
    request = inside.pack(RTM_DELLINK, NLM_F_ACK, LINK.pack(0, 0, index, 0, 0))
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        try:
            # A thread sends the request, because sending lasts those 20 ms.  Not threading.Thread: its start() waits
            # until the thread runs.
            _thread.start_new_thread(_send, (os.dup(inside.sock.fileno()), request))
            _wait_for_end(inside, index)
        finally:
            _stop_listening(inside.sock)
    except netlink.AnswerLost:
        # Anybody may send to this group, and the kernel drops messages when the socket is full: look for the link.
        inside.reopen()
        _look_until_gone(inside, index)  # guard: looked-for


def _send(fd: int, request: bytes) -> None:
    try:
        os.write(fd, request)
    finally:
        os.close(fd)


def _wait_for_end(inside: Rtnl, index: int) -> None:
    """Return at the link's announcement that it is gone, or at the request's answer.  Raises OSError."""
    hearing = netlink.receive(inside.sock)
    while True:
        for kind, flags, sequence, body in messages(next(hearing)):
            if kind == NLMSG_ERROR and sequence == inside.sequence:
                raise_error(body, flags)  # guard: answer
                return
            # With AF_BRIDGE the message says that the link has left a bridge.  With IFLA_NEW_NETNSID it says that the
            # link was moved to another namespace.
            if (
                kind == RTM_DELLINK
                # guard below: of-this-link (index -> LINK.unpack_from(body)[2])
                # guard below: not-a-bridges (socket.AF_UNSPEC -> LINK.unpack_from(body)[0])
                and LINK.unpack_from(body)[::2][:2] == (socket.AF_UNSPEC, index)
                and IFLA_NEW_NETNSID not in attributes(body[LINK.size :])  # guard: not-moved
            ):
                return


def _look_until_gone(inside: Rtnl, index: int) -> None:
    """Look for the link until it is gone.  Raises OSError when the budget is spent."""
    for _ in attempts(REQUEST, _POLL):
        if inside.link(index=index) is None:
            return
    raise OSError(errno.ETIMEDOUT, "the link is still there after all the time that the request may wait")


def _stop_listening(sock: socket.socket) -> None:
    """Leave the group, and drop what was announced meanwhile, so that it does not pass for the next answer.

    Raises OSError.
    """
    sock.setsockopt(SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)
    while True:
        try:
            sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno != errno.ENOBUFS:  # messages were lost; the kernel drops answers until the socket is empty
                raise
