"""Datagrams from commands to hpn node.  If it counts commands (hpn node --metrics), a command's end:

    1 ADD macvlan 0 3512\\n      the format's version, the verb, the kind or "-", the code (0: success), microseconds

To another socket, that this node has little room in a network of shared addresses:

    1 LOW\\n

or that an attachment is gone whose number other nodes may wait for (ipam/cluster/reconcile/reconcile.py):

    1 FREED\\n

A command sends each at its end and never waits.  Without a listener there is no socket, and the check for it takes two
microseconds.  A datagram is lost if the queue is full.
"""

import os
import time
from _socket import AF_UNIX, SOCK_DGRAM, SOCK_NONBLOCK, socket  # the module socket takes milliseconds
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from base.protocol.spec import VERBS, Reply

SOCKET: Final = "/run/hpn/node/commands.sock"
ROOM: Final = "/run/hpn/node/room.sock"
LOW: Final = b"1 LOW\n"
FREED: Final = b"1 FREED\n"
# A runtime may request VERSION at any time, and it changes nothing.
_COUNTED: Final = VERBS.keys() - {"VERSION"}


def send(command: str, reply: Reply, began: float, kind: Callable[[], str] = str) -> None:
    """Report a command that began at a time of the monotonic clock; ``kind`` is called only if there is a listener."""
    if command not in _COUNTED:
        return
    with suppress(OSError):  # the pod has its interface, with or without a listener
        os.stat(SOCKET)
        took = time.monotonic() - began
        _send(f"1 {command} {kind() or '-'} {reply.code} {took * 1e6:.0f}\n".encode(), SOCKET)


def send_low(is_low: Callable[[], bool]) -> None:
    """Report that this node has little room in a network; ``is_low`` is called only if there is a listener."""
    _send_if(is_low, LOW)


def send_freed(is_freed: Callable[[], bool]) -> None:
    """Report that this node may have a number to release; ``is_freed`` is called only if there is a listener."""
    _send_if(is_freed, FREED)


def _send_if(is_so: Callable[[], bool], line: bytes) -> None:
    with suppress(OSError):
        os.stat(ROOM)
        if is_so():
            _send(line, ROOM)


def _send(line: bytes, where: str) -> None:
    """Raises OSError."""
    sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK)
    try:
        sock.sendto(line, where)
    finally:
        sock.close()
