"""Directories below a root, opened by descriptors, one after the other.

So no link leads out of the root.  A link is refused if somebody else than root has made it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cni.protocol.errors import InvalidConfig
from cni.state import durable

_HANDLE: Final = os.O_PATH | os.O_CLOEXEC
_LINKS: Final = 40  # as many as the kernel follows (man 7 path_resolution)


@contextmanager
def open_folder(root: str, path: str, *, make: bool = False) -> Iterator[int]:
    """The directory at ``path`` below the root, open; missing ones are made (mode 755) if ``make``.

    Raises OSError, and InvalidConfig if others than root could put another directory in its place.
    """
    way = [os.open(root, _HANDLE | os.O_DIRECTORY)]
    try:
        _walk(way, root, path, make=make)
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=way[-1])
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        for one in way:
            os.close(one)


def _walk(way: list[int], root: str, path: str, *, make: bool) -> None:
    """Go down from the root; ``way`` has a descriptor of each directory on the way, and no link."""
    trusted = {0, os.geteuid(), os.fstat(way[0]).st_uid}
    rest, links = path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name == "..":
            _back(way, 1 if len(way) > 1 else 0)
        if name in ("", ".", ".."):
            continue
        try:
            below = _step(way[-1], name, make=make)
        except OSError as e:  # which names only the last step
            raise OSError(e.errno, e.strerror, f"{root.rstrip('/')}/{path.lstrip('/')}") from e
        found = os.fstat(below)
        if not stat.S_ISLNK(found.st_mode):
            way.append(below)
            _refuse_unless_safe(found, trusted, root, path, name)
            continue
        target = os.readlink("", dir_fd=below)
        os.close(below)
        links += 1
        if links > _LINKS:  # guard: endless
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if found.st_uid not in trusted:  # guard: link-owner
            raise InvalidConfig(
                f"{root}: {name} on the way to {path} is a link that user {found.st_uid} made; remove it"
            )
        _back(way, len(way) - 1 if target.startswith("/") else 0)  # guard: below-the-root
        rest += target.split("/")[::-1]


def _back(way: list[int], steps: int) -> None:
    for _ in range(steps):
        os.close(way.pop())


def _step(at: int, name: str, *, make: bool) -> int:
    flags = _HANDLE | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    # Not chmod afterwards: who owns the directory could have put a link in its place by then, which that would follow.
    umask = os.umask(0o022)
    try:
        os.mkdir(name, 0o755, dir_fd=at)
        durable.sync_directory(f"/proc/self/fd/{at}")
    except FileExistsError:  # another install has made it meanwhile
        pass
    finally:
        os.umask(umask)
    return os.open(name, flags, dir_fd=at)


def _refuse_unless_safe(found: os.stat_result, trusted: set[int], root: str, path: str, name: str) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    # A group may have been given the right on purpose, as staff in Debian's /usr/local.
    is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in trusted or is_open:  # guard: owner (trusted), mode (is_open)
        why = f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}"
        raise InvalidConfig(
            f"{root}: others than root can change {name} on the way to {path} ({why}); chown root:root and chmod o-w it"
        )
