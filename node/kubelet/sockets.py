"""A socket that appears at its path only when it listens."""

import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import unix_sockets
from base.state import trust

_BACKLOG: Final = 64


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
    if weak := trust.weak_spot(str(folder)):  # guard: weak
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
        if inode(path) == made:  # guard: its-own = True
            path.unlink()
