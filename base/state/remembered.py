"""What a process has read of files that seldom change.  A warm worker then reads only those that are new or changed."""

import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
# Files; a node has at most a thousand attachments.
_MOST: Final = 8192


class Remembered(Generic[T]):
    """``read``'s value of a file, until the file is another one or has changed."""

    def __init__(self, read: Callable[[str], T]) -> None:
        self._read = read
        self._known = dict[str, tuple[tuple[int, ...], T]]()

    def get(self, file: str) -> T:
        """The file's value.  Raises what ``read`` raises, and OSError if there is no file."""
        now = os.stat(file, follow_symlinks=False)
        version = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
        known = self._known.get(file)
        if known and known[0] == version:
            return known[1]
        value = self._read(file)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[file] = version, value
        return value
