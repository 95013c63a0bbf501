"""Files of a node, read below a root."""

import errno
import os
from pathlib import Path
from typing import Final

from base.kernel import cpus, files

# /proc/sys refuses reads that exceed the kernel's largest allocation (proc_sys_call_handler).
_PIECE: Final = 1 << 16
_PIECES: Final = 256
BOOT: Final = "/proc/sys/kernel/random/boot_id"


class Reader:
    """``unread`` maps unreadable paths to the reason.  A missing file is not among them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unread = dict[str, str]()

    def at(self, path: str) -> str:
        """The node's path below the root."""
        return str(self.root / path.lstrip("/"))

    def first(self, *paths: str) -> str:
        """The first of these paths of the node that exists there; the first of all if there is none."""
        return next((path for path in paths if os.path.lexists(self.at(path))), paths[0])

    @property
    def is_this_kernel(self) -> bool:
        """True if the files are those of the running kernel, so that system calls describe the same machine."""
        boot = self.line(self.at(BOOT))
        return boot != "" and boot == self.line(BOOT)

    def data(self, path: str) -> bytes | None:
        """The contents of a file; None if it is unreadable, or not a regular file."""
        try:
            fd = files.open_regular(path, os.O_RDONLY)
            try:
                return _read(fd)
            finally:
                os.close(fd)
        except OSError as e:
            self._note(path, e)
            return None

    def line(self, path: str) -> str:
        """The contents as text without surrounding spaces; empty for None."""
        return (self.data(path) or b"").decode(errors="replace").strip()

    def number(self, path: str) -> int | None:
        """The contents as a number; None if they are none."""
        try:
            return int(self.line(path))
        except ValueError:
            return None

    def ranges(self, path: str) -> frozenset[int]:
        """The processors of a list such as "0-3,8"; empty if it is none."""
        try:
            return frozenset(cpus.parse(self.line(path)))
        except ValueError:
            return frozenset()

    def names(self, folder: str) -> tuple[str, ...]:
        """The sorted names in a directory."""
        try:
            return tuple(sorted(os.listdir(folder)))
        except OSError as e:
            self._note(folder, e)
            return ()

    def stat(self, path: str) -> os.stat_result | None:
        """The file at the path, after links; None if it does not exist or cannot be reached."""
        try:
            return os.stat(path)
        except OSError as e:
            self._note(path, e)
            return None

    def _note(self, path: str, error: OSError) -> None:
        if error.errno in (errno.EACCES, errno.EPERM):
            self.unread[path] = os.strerror(error.errno)


def _read(fd: int) -> bytes:
    """The contents of a file, up to 16 MiB."""
    pieces = list[bytes]()
    while len(pieces) < _PIECES and (piece := os.read(fd, _PIECE)):
        pieces.append(piece)
    return b"".join(pieces)
