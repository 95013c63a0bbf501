"""Sockets of root at paths: one that appears only when it listens, with a gRPC server, and one for datagrams."""

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from grpclib.const import Handler

from base.grpc import Server
from base.kernel import unix_sockets
from base.state import durable, trust

_BACKLOG: Final = 64
_ROOM: Final = 128  # bytes of a datagram; the longest has 40
_AT_ONCE: Final = 64  # datagrams read before other callbacks get a turn


class Unusable(OSError):
    """The path cannot have a socket; ``strerror`` names the reason and the remedy."""


def bind(path: Path) -> socket.socket:
    """A listening socket at ``path``, for connections of root only.  It replaces the previous file.

    It listens before it gets its name, so that kubelet, which connects at once, is never refused.  The first name
    begins with a point; kubelet ignores such names (pluginwatcher/plugin_watcher.go).  Raises Unusable, OSError.
    """
    refuse_weak(path.parent)
    hidden = path.with_name(f".{path.name}")
    hidden.unlink(missing_ok=True)
    sock = unix_sockets.listen(hidden, _BACKLOG)
    try:
        hidden.rename(path)
    except BaseException:
        sock.close()
        with suppress(OSError):
            hidden.unlink()
        raise
    return sock


def refuse_weak(folder: Path) -> None:
    """Raise Unusable if others than root can put a file into the directory, or replace the directory.

    Raises OSError.
    """
    if weak := trust.weak_spot(str(folder)):
        words, remedy = weak
        raise Unusable(errno.EPERM, f"{words}, and put a socket of their own there; {remedy}")


def inode(path: Path) -> int:
    """The inode number of the socket at the path, which identifies it later; 0 if there is none."""
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def remove(path: Path, made: int) -> None:
    """Remove the socket at the path if its inode number is still ``made``."""
    with suppress(OSError):
        if inode(path) == made:
            path.unlink()


class Endpoint:
    """A gRPC server at ``path``, which appears only when it listens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server: Server | None = None
        self._inode = 0

    def open(self, methods: Mapping[str, Handler]) -> None:
        """Make the socket with these methods, and replace the previous one.

        Raises Unusable, OSError; then the previous one goes on.
        """
        listener = bind(self.path)
        self._stop()
        self._inode = inode(self.path)
        self.server = Server(listener, methods)

    def close(self) -> None:
        """Remove the socket, so that peers notice at once."""
        if self.server:
            remove(self.path, self._inode)
        self._stop()

    def _stop(self) -> None:
        if self.server:
            self.server.close()
        self.server = None


class Datagrams:
    """A socket at ``path`` to which only root can send.  Calls ``receive`` with the pending datagrams."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, receive: Callable[[Sequence[bytes]], None]) -> None:
        """Raises OSError, IoFailure, InvalidConfig."""
        self._loop, self._path, self._receive = loop, path, receive
        durable.directory(path.parent)
        trust.refuse_unless_ours(str(path.parent))
        path.unlink(missing_ok=True)
        self._sock = unix_sockets.bind(path, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._inode = inode(path)
        loop.add_reader(self._sock.fileno(), self._read)

    def close(self) -> None:
        """Close and remove the socket; commands then send nothing."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        remove(self._path, self._inode)

    def _read(self) -> None:
        found = list[bytes]()
        try:
            for _ in range(_AT_ONCE):
                found.append(self._sock.recv(_ROOM))
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
        self._receive(found)
