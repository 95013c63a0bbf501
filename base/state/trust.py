"""Whether only root can change what a path leads to; and files that only root could have written.

A user who can write to a directory can replace anything in it, and root would read, write and trust the replacement.
In a sticky directory, such as /tmp, only a file's owner can replace it, so root's files there are safe.
"""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from base.kernel import files
from base.protocol.errors import InvalidConfig

_OTHERS_WRITE: Final = 0o022
_OTHERS: Final = 0o077
_LIMIT: Final = 1 << 16
_LINKS: Final = 40  # as many as the kernel follows (man 7 path_resolution)

# Directories found safe: path -> device, inode, owner and mode then.  Checking the whole path takes ten times as long
# as checking the directory.  If others get write access to a parent later, that is noticed as soon as they replace the
# directory.
_good: dict[str, tuple[int, int, int, int]] = {}
_GOOD_MOST: Final = 256


def refuse_unless_ours(folder: str) -> None:
    """Raise InvalidConfig unless only root can use ``folder``, and only root can change what leads to it.  Raises
    OSError."""
    found = os.stat(folder)
    known = (found.st_dev, found.st_ino, found.st_uid, found.st_mode)
    if _good.get(folder) == known:
        return
    refuse_unless_safe(folder)
    if found.st_mode & _OTHERS:
        raise InvalidConfig(
            f"directory {folder} has mode {stat.S_IMODE(found.st_mode):o}, but state is kept only in directories of "
            f"mode 700; if nothing else is in it: chmod 700 {folder}; else choose another ipam.dataDir"
        )
    if len(_good) >= _GOOD_MOST:
        _good.clear()
    _good[folder] = known


def refuse_unless_safe(folder: str) -> None:
    """Raise InvalidConfig if others than root could replace this directory.  Raises OSError."""
    if weak := weak_spot(folder):
        why, remedy = weak
        raise InvalidConfig(f"{folder}: {why}, so no state is kept there; {remedy}; or choose another ipam.dataDir")


def weak_spot(folder: str) -> tuple[str, str] | None:
    """The first directory or link on the path that others than root can change, and the remedy; None if there is none.
    Raises OSError."""
    for path, found in _way(folder):
        if why := _why_not(found):
            return f"others than root can change {path} ({why})", f"chown root:root {path}; chmod go-w {path}"
    return None


def is_trusted(uid: int) -> bool:
    """Whether this owner may change what we do: root, and our own user."""
    return uid == 0 or uid == os.geteuid()


def read_trusted(path: str, limit: int = _LIMIT, also: int = 0) -> bytes | None:
    """The contents of the administrator's file; None if there is none.  Raises as ``read_owned``."""
    found = read_owned(path, limit, also)
    return None if found is None else found[0]


def read_owned(path: str, limit: int = _LIMIT, also: int = 0) -> tuple[bytes, int] | None:
    """The contents of the administrator's file, and its owner; None if there is none.  Raises InvalidConfig if others
    than root and the user ``also`` can write it; OSError, also above ``limit`` bytes."""
    try:
        fd = files.open_regular(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = os.fstat(fd)
        # The file may be a secret, so the remedy gives no permission.
        remedies = [] if is_trusted(found.st_uid) or found.st_uid == also else [f"chown root:root {path}"]
        remedies += [f"chmod go-w {path}"] if found.st_mode & _OTHERS_WRITE else []
        if remedies:
            raise InvalidConfig(
                f"{path} can be written by others than root (owner {found.st_uid}, mode {found.st_mode & 0o7777:o}); "
                f"check its contents, then: {'; '.join(remedies)}"
            )
        return files.read_all(fd, limit), found.st_uid
    finally:
        os.close(fd)


def _why_not(found: os.stat_result) -> str:
    if not is_trusted(found.st_uid):
        return f"owner {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX or not found.st_mode & _OTHERS_WRITE:
        return ""
    return f"mode {stat.S_IMODE(found.st_mode):o}"


def _way(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and link on the path to the directory, from / on.  Raises OSError."""
    at, rest, links = "", folder.split("/")[::-1], 0
    yield "/", os.stat("/")
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at).rstrip("/")  # ``at`` has no links in it
        elif name not in ("", "."):
            path = f"{at}/{name}"
            found = os.lstat(path)
            yield path, found
            if not stat.S_ISLNK(found.st_mode):
                at = path
                continue
            target = os.readlink(path)
            at = "" if target.startswith("/") else at
            rest.extend(target.split("/")[::-1])
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), folder)
