"""Sockets with a path that only root may connect to (man 7 unix: connecting requires the permission to write); and a
socket's peer.

Apart from files.py: only daemons listen, and importing the module socket takes milliseconds.
"""

import os
import socket
import struct
from pathlib import Path
from typing import Final

UCRED: Final = struct.Struct("=iII")  # struct ucred: process, user, group
_OTHERS: Final = 0o177  # only the owner may read or write


def listen(path: Path, backlog: int) -> socket.socket:
    """A stream socket that listens at ``path``, where nothing may exist yet.  Raises OSError."""
    sock = bind(path, socket.SOCK_STREAM)
    try:
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def bind(path: Path, kind: int) -> socket.socket:
    """A socket of that kind (man 2 socket, type) at ``path``, where nothing may exist yet.  Raises OSError.

    The umask sets the mode, because a later chmod would leave time to connect.  The umask belongs to the process: no
    other thread may make files meanwhile.
    """
    sock = socket.socket(socket.AF_UNIX, kind)
    mask = os.umask(_OTHERS)
    try:
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def peer(sock: socket.socket) -> tuple[int, int]:
    """The process and the user of a unix socket's peer (man 7 unix, SO_PEERCRED).  Raises OSError."""
    process, user, _ = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    return process, user
