"""Datagrams by which commands tell hpn node something.  Where it counts commands (hpn node --metrics), how one ended:

    1 ADD macvlan 0 3512\\n      the format's version, the verb, the kind or "-", the code (0: success), microseconds

And at another socket, that this node has little room in a network whose addresses the nodes of a cluster share:

    1 LOW\\n

or that an attachment is gone whose number other nodes may wait for (ipam/cluster/reconcile/reconcile.py):

    1 FREED\\n

Each is sent at the command's end and never waited for.  Where nobody listens there is no socket, and looking for it
costs two microseconds.  A datagram that finds the queue full is lost.
"""

import os
import time
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, socket  # the module socket takes milliseconds
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from base.protocol.spec import VERBS, Reply

SOCKET: Final = "/run/hpn/node/commands.sock"
ROOM: Final = "/run/hpn/node/room.sock"
LOW: Final = b"1 LOW\n"
FREED: Final = b"1 FREED\n"
# A runtime asks for VERSION at any time, and it does nothing.
_COUNTED: Final = VERBS.keys() - {"VERSION"}


def send(command: str, reply: Reply, began: float, kind: Callable[[], str] = str) -> None:
    """Tell it of a command that began at a time of the monotonic clock; ``kind`` is asked only if somebody listens."""
    if command not in _COUNTED:
        return
    # guard below: nobody-there (OSError -> BlockingIOError)
    with suppress(OSError):  # the pod has its interface, whoever hears of it
        os.stat(SOCKET)
        took = time.monotonic() - began
        _tell(f"1 {command} {kind() or '-'} {reply.code} {took * 1e6:.0f}\n".encode(), SOCKET)


def send_low(is_low: Callable[[], bool]) -> None:
    """Tell it if this node has little room in a network; ``is_low`` is asked only if somebody listens."""
    _tell_if(is_low, LOW)


def send_freed(is_freed: Callable[[], bool]) -> None:
    """Tell it if this node may have a number to give up; ``is_freed`` is asked only if somebody listens."""
    _tell_if(is_freed, FREED)


def _tell_if(is_so: Callable[[], bool], line: bytes) -> None:
    with suppress(OSError):
        os.stat(ROOM)
        if is_so():
            _tell(line, ROOM)


def _tell(line: bytes, where: str) -> None:
    """Raises OSError."""
    sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)  # guard: nobody-waits (SOCK_NONBLOCK)
    try:
        sock.sendto(line, where)
    finally:
        sock.close()
