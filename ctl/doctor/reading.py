"""Files of a node, read below a root; what may not be read is noted."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import cpus, files
from base.protocol.location import STATE_DIR
from base.state import places

# /proc/sys refuses to be read by more than the kernel can allocate in one piece (proc_sys_call_handler).
_PIECE: Final = 1 << 16  # guard: pieces = 1 << 24
_PIECES: Final = 256
_BOOT: Final = "/proc/sys/kernel/random/boot_id"


class Reader:
    """``unread`` has what could not be read, and why; a file that is not there is no such thing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unread = dict[str, str]()

    def at(self, path: str) -> str:
        """Where the node's path is below the root."""
        return str(self.root / path.lstrip("/"))

    @property
    def is_this_kernel(self) -> bool:
        """Whether the files are those of the kernel that runs, and can be asked for more than they say."""
        boot = self.line(self.at(_BOOT))
        return boot != "" and boot == self.line(_BOOT)  # guard: another-kernel = True

    def data(self, path: str) -> bytes | None:
        """What is in a file; None where it cannot be read or is no regular file."""
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
        """The same as text without spaces around it; empty for None."""
        return (self.data(path) or b"").decode(errors="replace").strip()

    def number(self, path: str) -> int | None:
        """The same as a number; None where it is none."""
        try:
            return int(self.line(path))
        except ValueError:
            return None

    def ranges(self, path: str) -> frozenset[int]:
        """The processors of a list such as "0-3,8"; empty where it is none."""
        try:
            return frozenset(cpus.parse(self.line(path)))
        except ValueError:
            return frozenset()

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in a directory, in order."""
        try:
            return tuple(sorted(os.listdir(folder)))
        except OSError as e:
            self._note(folder, e)
            return ()

    def state_dirs(self) -> list[Path]:
        """The default state directory, then those that attachments noted (base/state/places.py)."""
        notes, found = self.at(places.ELSEWHERE), set[Path]()
        for name in self.names(notes):
            with suppress(OSError):  # the attachment ended meanwhile
                found.add(Path(self.at(os.readlink(f"{notes}/{name}"))))
        return [Path(self.at(STATE_DIR)), *sorted(found)]

    def stat(self, path: str) -> os.stat_result | None:
        """What a path leads to; None where that is not there, or cannot be said."""
        try:
            return os.stat(path)
        except OSError as e:
            self._note(path, e)
            return None

    def _note(self, path: str, error: OSError) -> None:
        if error.errno in (errno.EACCES, errno.EPERM):  # guard: unread
            self.unread[path] = os.strerror(error.errno)


def _read(fd: int) -> bytes:
    """All of a file, or its beginning if it is longer than anything that matters here."""
    pieces = list[bytes]()
    while len(pieces) < _PIECES and (piece := os.read(fd, _PIECE)):
        pieces.append(piece)
    return b"".join(pieces)
