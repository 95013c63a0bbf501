"""What this process has read of the files in directories.  A warm worker reads only files that have changed.

The kernel reports the changes of all programs (man 7 inotify), and queues a report before the changing call returns.
So no value is older than the question, and a question makes the same system calls for one file and for thousands.
Rejected: a directory's time, because the clock is coarse; a file's inode, because file systems reuse them.
"""

import os
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from base.kernel import events
from base.protocol.errors import CniError

T = TypeVar("T")
Failure = CniError | OSError
_NONE: Final = (-1, -1)
# Questions about a directory before it is watched: the most that a command for one attachment asks.  At its end, the
# kernel takes some 10 ms for an inotify instance with a watch (fsnotify_wait_marks_destroyed), and root has few.
_FEW = 2
_CHANGES: Final = events.IN_CREATE | events.IN_MODIFY | events.IN_DELETE | events.IN_MOVED_FROM | events.IN_MOVED_TO


@dataclass
class _Folder:
    """A directory: the values of its files, by name, and the names of those to read."""

    values: dict[str, Any] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


class _Memory:
    """The directories that one process has read.  Each is known by its device and inode, because another one may come
    to its path."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.fd = -1
        self._folders = dict[tuple[int, int], _Folder]()
        self._watches = dict[int, tuple[int, int]]()
        self._asked = dict[tuple[int, int], int]()

    def folder(self, path: str) -> _Folder:
        """The directory with the names of what has changed; empty if there is none.  Raises OSError."""
        try:
            found = os.stat(path)
            self._note_changes()  # afterwards, or a directory of the same inode could have come between
            known = self._folders.get((found.st_dev, found.st_ino))
            return known or self._open(path)
        except (FileNotFoundError, NotADirectoryError):
            return _Folder()

    def _note_changes(self) -> None:
        for number, mask, name in events.read_directories(self.fd) if self.fd >= 0 else ():
            if mask & events.IN_Q_OVERFLOW:
                self._folders.clear()
            elif mask & events.IN_IGNORED:
                self._folders.pop(self._watches.pop(number, _NONE), None)
            elif known := self._folders.get(self._watches.get(number, _NONE)):
                known.unread.add(name)

    def _open(self, path: str) -> _Folder:
        fd, new = os.open(path, os.O_RDONLY | os.O_DIRECTORY), _Folder()
        try:
            found = os.fstat(fd)
            key = found.st_dev, found.st_ino
            self._asked[key] = self._asked.get(key, 0) + 1
            if self._asked[key] > _FEW and self._watch(f"/proc/self/fd/{fd}", key):
                self._folders[key] = new
            new.unread.update(os.listdir(fd))  # after the watch has begun
        finally:
            os.close(fd)
        return new

    def _watch(self, path: str, key: tuple[int, int]) -> bool:
        """Whether the kernel reports the directory's changes from now on; not if root has no inotify instance left."""
        try:
            if self.fd < 0:
                self.fd = events.open_directories()
            self._watches[events.watch_directory(self.fd, path, _CHANGES)] = key
        except OSError:
            return False
        return True


_memory = _Memory()


def files(folder: str, read: Callable[[str], T | None]) -> list[tuple[str, T | Failure]]:
    """The files of a directory, with the value or the failure of ``read`` for each.  A file with the value None, such
    as one of another purpose, is left out.

    A directory must always have the same ``read``.  A failure is not remembered.  Raises OSError if the directory
    cannot be listed; a missing one has no files.
    """
    failed = list[tuple[str, T | Failure]]()
    with _memory.lock:
        known = _memory.folder(folder)
        for name in list(known.unread):
            known.values.pop(name, None)
            try:
                value = read(f"{folder}/{name}")
            except FileNotFoundError:
                value = None
            except (CniError, OSError) as e:
                failed.append((f"{folder}/{name}", e))
                continue
            known.unread.discard(name)
            if value is not None:
                known.values[name] = value
        return [*((f"{folder}/{name}", value) for name, value in known.values.items()), *failed]


def _begin_anew() -> None:
    """A child process has its parent's descriptor, and would take its reports."""
    global _memory  # noqa: PLW0603  # of the process
    if _memory.fd >= 0:
        os.close(_memory.fd)
    _memory = _Memory()


os.register_at_fork(after_in_child=_begin_anew)
