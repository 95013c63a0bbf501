"""Remove a link and go on when it is gone, not when the kernel has done away with it.

RTM_DELLINK returns only after a wait of 20 ms for whoever may still look at the link (rcu_barrier in
netdev_run_todo), long after it has left the namespace, announced that, and freed its name and MAC.
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
    """Equivalent to: ip link delete, in the socket's namespace.  Raises OSError."""
    request = inside.pack(RTM_DELLINK, NLM_F_ACK, LINK.pack(0, 0, index, 0, 0))
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        try:
            # To ask and to be told takes one socket, but asking lasts longer than we do.  Not a Thread: its start
            # waits for it to run, and we have the link's end to wait for.
            _thread.start_new_thread(_ask, (os.dup(inside.sock.fileno()), request))
            _hear_of_its_end(inside, index)
        finally:
            _listen_no_more(inside.sock)
    except netlink.AnswerLost:
        # Others may speak in this group, and the kernel drops what there is no room for: look for the link itself.
        inside.reopen()
        _see_it_gone(inside, index)


def _ask(fd: int, request: bytes) -> None:
    try:
        os.write(fd, request)
    finally:
        os.close(fd)


def _hear_of_its_end(inside: Rtnl, index: int) -> None:
    """By its announcement, or by the answer that it had ended.  Raises OSError."""
    hearing = netlink.receive(inside.sock)
    while True:
        for kind, flags, sequence, body in messages(next(hearing)):
            if kind == NLMSG_ERROR and sequence == inside.sequence:
                raise_error(body, flags)
                return
            # Of a bridge (AF_BRIDGE) it says that the link is its port no more.
            # And one that is moved to another namespace ends in this one, too, and does not end.
            if (
                kind == RTM_DELLINK
                and LINK.unpack_from(body)[::2][:2] == (socket.AF_UNSPEC, index)
                and IFLA_NEW_NETNSID not in attributes(body[LINK.size :])
            ):
                return


def _see_it_gone(inside: Rtnl, index: int) -> None:
    """Raises OSError."""
    for _ in attempts(REQUEST, _POLL):
        if inside.link(index=index) is None:
            return
    raise OSError(errno.ETIMEDOUT, "the link is there still, after all the time that there was to wait for its end")


def _listen_no_more(sock: socket.socket) -> None:
    """Nor find in the next answer's place what was announced meanwhile, which a pod has a say in.  Raises OSError."""
    sock.setsockopt(SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)
    while True:
        try:
            sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno != errno.ENOBUFS:  # it was too full, and is read on: the kernel drops answers until it is empty
                raise
