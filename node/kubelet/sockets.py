"""A plugin's socket in kubelet's directory: there as a whole, or not at all."""

import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import unix_sockets
from base.state import trust

_BACKLOG: Final = 64


class Unusable(OSError):
    """No socket can be made there; ``strerror`` says why, and what to do."""


def bind(path: Path) -> socket.socket:
    """A socket at ``path`` that listens, and that root alone may connect to.  What was at the path is replaced.

    It gets its name when it listens already, so that kubelet, which looks as soon as there is a name, is never refused.
    kubelet passes over names that begin with a point (pluginwatcher/plugin_watcher.go).  Raises Unusable, OSError.
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
    """Raise Unusable if others than root could put another file into the directory, or another directory in its place.
    Raises OSError."""
    if weak := trust.weak_spot(str(folder)):  # guard: weak
        words, remedy = weak
        raise Unusable(errno.EPERM, f"{words}, and put a socket of their own there; {remedy}")


def inode(path: Path) -> int:
    """By which the socket at the path is told from another one there; 0 if there is none."""
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def remove(path: Path, made: int) -> None:
    """Remove the socket whose inode was ``made``, and no other that is at its path now."""
    with suppress(OSError):
        if inode(path) == made:  # guard: its-own = True
            path.unlink()
