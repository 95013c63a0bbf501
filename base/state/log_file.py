"""The log's file: appended to by several processes at once, and bounded.

When it has grown beyond LIMIT, the command that notices gives it the name FILE.old, in the place of the one before, and
begins a new one.  Those who have the old one open may still write to it: their lines are in FILE.old.  FILE.1 is a name
that logrotate gives, and its older files are not ours to replace.
"""

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from base.protocol.errors import InvalidConfig
from base.state.node import Place

# Bytes: some 50,000 commands.
LIMIT: Final = 1 << 24
OLD: Final = ".old"


@dataclass
class LogFile:
    """A log that is open for one ``append``, and until ``close``."""

    place: Place
    fd: int

    def append(self, text: str, lines: list[str]) -> None:
        """Append the text by one write.  ``lines`` gets one more if the file is too long and stays so.

        Raises OSError, ENOSPC also if only a part of the text could be written.
        """
        self._begin_another_if_full(lines)
        data = text.encode()
        if os.write(self.fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        os.close(self.fd)

    def _begin_another_if_full(self, lines: list[str]) -> None:
        """A command can take long: others may have begun another file, or two, since it was opened.

        If another cannot be opened, the text goes to the one that is open.
        """
        found = os.fstat(self.fd)
        if found.st_nlink and found.st_size < LIMIT:  # guard: bound (st_size), removed (st_nlink)
            return
        try:
            if found.st_nlink and (why := self._why_it_stays(found.st_size)):
                name = os.path.basename(os.path.normpath(self.place.path))
                lines.append(f"logFile {self.place.path!r} is full and cannot become {name}{OLD}: {why}")
            another = self.place.open_for_append()
        except FileNotFoundError:  # somebody has removed its directory
            return
        except OSError as e:  # guard: goes-on = IndexError
            lines.append(f"logFile {self.place.path!r} cannot be begun again: {e.strerror}; this went to the old one")
            return
        os.close(self.fd)
        self.fd = another

    def _why_it_stays(self, size: int) -> str:
        """Make it FILE.old.  Returns why that cannot be; nothing if it was done, or another process is at it.

        Raises OSError.
        """
        if not self.place.names:  # guard: beside
            return "the node allows this file, but not its directory; allow that, or have logrotate move the file"
        with self.place.folder() as (folder, name):
            try:
                _rename(folder, name, self.fd)
            except BlockingIOError:
                # Whoever may read the file can hold its lock for ever.
                # guard below: not-in-silence (size < 2 * LIMIT -> size)
                return "" if size < 2 * LIMIT else "another process holds its lock; see: lslocks"
            except OSError as e:
                return e.strerror or repr(e)
        return ""


def open_for_append(place: Place) -> LogFile:
    """Open the log, and make it if there is none.

    Raises OSError; InvalidConfig for a name that is kept for the older file, which another network may have.
    """
    if os.path.normpath(place.path).endswith(OLD):  # guard: older-name
        raise InvalidConfig(f"logFile {place.path!r} ends in {OLD}, as a log that was full does; give it another name")
    return LogFile(place, place.open_for_append())


def _rename(folder: int, name: str, fd: int) -> None:
    """Make it FILE.old, unless another process has done so.  Raises OSError, BlockingIOError if another is at it."""
    with suppress(FileNotFoundError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when it is closed  # guard: alone (LOCK_NB)
        ours, there = os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):  # guard: same = True
            os.rename(name, f"{name}{OLD}", src_dir_fd=folder, dst_dir_fd=folder)
