"""One datagram that tells hpn node how a command ended, where hpn node counts commands (hpn node --metrics).

    1 ADD macvlan 0 3512\\n      the format's version, the verb, the kind or "-", the code (0: success), microseconds

It is sent at the command's end and never waited for.  Where nobody listens there is no socket, and looking for it costs
two microseconds.  A datagram that finds the queue full is lost.
"""

import os
import time
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, socket  # the module socket takes milliseconds
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cni.protocol.spec import VERBS, Reply

SOCKET: Final = "/run/hpn/node/commands.sock"
# A runtime asks for VERSION at any time, and it does nothing.
_COUNTED: Final = VERBS.keys() - {"VERSION"}


def send(command: str, reply: Reply, began: float, kind: Callable[[], str] = str) -> None:
    """Tell it of a command that began at a time of the monotonic clock; ``kind`` is asked only if somebody listens."""
    if command not in _COUNTED:
        return
    with suppress(OSError):  # the pod has its interface, whoever hears of it
        os.stat(SOCKET)
        took = time.monotonic() - began
        sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
        try:
            sock.sendto(f"1 {command} {kind() or '-'} {reply.code} {took * 1e6:.0f}\n".encode(), SOCKET)
        finally:
            sock.close()
