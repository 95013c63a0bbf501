"""A directory whose entries come and go (man 7 inotify)."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_IGNORED, IN_ONLYDIR = 0x400, 0x800, 0x8000, 0x1000000
_EVENT: Final = struct.Struct("=iIII")  # struct inotify_event: watch, mask, cookie, length of the name
_ROOM: Final = 65536
_libc = ctypes.CDLL(None, use_errno=True)


def open_watch() -> int:
    """A descriptor that is readable when something has happened.  Raises OSError."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def watch(fd: int, directory: str, mask: int) -> int:
    """Watch a directory for what ``mask`` names (IN_*); the watch's number.  Raises OSError."""
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(directory), mask | IN_ONLYDIR))


def unwatch(fd: int, number: int) -> None:
    """End a watch, which may have ended by itself."""
    _libc.inotify_rm_watch(fd, number)


def events(fd: int) -> Iterator[tuple[int, int, str]]:
    """What has happened: the watch's number, the mask, and the entry's name (empty for the directory itself)."""
    with suppress(BlockingIOError):
        while data := os.read(fd, _ROOM):
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                yield number, mask, os.fsdecode(data[offset - length : offset].rstrip(b"\0"))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
