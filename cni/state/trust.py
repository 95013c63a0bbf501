"""Whether nobody but root can change what a path leads to.

Who may write to a directory may put another in place of anything in it, and root would read, write and believe that.
In a sticky directory, such as /tmp, only a file's owner may do so: what root made there is safe.
"""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from cni.protocol.errors import InvalidConfig

_OTHERS_WRITE: Final = 0o022
_OTHERS: Final = 0o077
_LINKS: Final = 40  # as the kernel has it

# The directories that were found good, and which ones they were then: a whole way takes ten times as long as one look.
# Who makes a parent writable to others later is noticed as soon as they put another directory there.
_good: dict[str, tuple[int, int, int, int]] = {}
_GOOD_MOST: Final = 256


def refuse_unless_ours(folder: str) -> None:
    """Raise InvalidConfig unless ``folder``, which files of ours are in, is for us alone, and all that leads to it is
    for nobody else to change.  Raises OSError."""
    found = os.stat(folder)
    known = (found.st_dev, found.st_ino, found.st_uid, found.st_mode)
    if _good.get(folder) == known:
        return
    refuse_unless_safe(folder)
    if found.st_mode & _OTHERS:
        raise InvalidConfig(
            f"directory {folder} has mode {stat.S_IMODE(found.st_mode):o}, and state is kept in those of mode 700 "
            f"only; if nothing else is in it: chmod 700 {folder}, else choose another stateDir or ipam.dataDir"
        )
    if len(_good) >= _GOOD_MOST:
        _good.clear()
    _good[folder] = known


def refuse_unless_safe(folder: str) -> None:
    """Raise InvalidConfig where others than root could put another directory in this one's place.  Raises OSError."""
    if weak := weak_spot(folder):
        path, why = weak
        raise InvalidConfig(
            f"{folder}: others than root can change {path} ({why}), so no state is kept there; "
            f"chown root:root {path}; chmod go-w {path}; or choose another stateDir or ipam.dataDir"
        )


def weak_spot(folder: str) -> tuple[str, str] | None:
    """What on the way to the directory others than root can change, and why; None for nothing.  Raises OSError."""
    return next(((path, why) for path, found in _way(folder) if (why := _why_not(found))), None)


def is_trusted(uid: int) -> bool:
    """Whether an owner may change what we do: root, and who we are."""
    return uid == 0 or uid == os.geteuid()


def _why_not(found: os.stat_result) -> str:
    if not is_trusted(found.st_uid):
        return f"owner {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX or not found.st_mode & _OTHERS_WRITE:
        return ""
    return f"mode {stat.S_IMODE(found.st_mode):o}"


def _way(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and link that is passed on the way to the directory, from / on."""
    at, rest, links = "", folder.split("/")[::-1], 0
    yield "/", os.stat("/")
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at).rstrip("/")  # at has no links in it
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
