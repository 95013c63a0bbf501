"""kubelet's directory for the sockets of plugins, which may not be there yet, or be made anew.

Or there is another one by the same path: a directory above it was renamed, something is mounted over one, or a link on
the way leads elsewhere.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import events
from node.kubelet import sockets
from node.log import Topics, cause

AGAIN: Final = 5.0  # seconds until what could not be written or watched is tried again
KUBELET: Final = Path("/var/lib/kubelet")
_GOES: Final = events.IN_DELETE | events.IN_MOVED_FROM
_INSIDE: Final = _GOES | events.IN_ATTRIB
_ITSELF: Final = events.IN_DELETE_SELF | events.IN_MOVE_SELF
_COMES: Final = events.IN_CREATE | events.IN_MOVED_TO
_MOUNTS: Final = "/proc/self/mountinfo"
# A socket's path has at most 107 bytes (man 7 unix); with "/.hpn-", ".sock" and what its maker puts beside them.
_LONGEST: Final = 88
_OURS: Final = ".hpn-"
_LOCK: Final = ".hpn-node.lock"  # kubelet passes over names that begin with a point (plugin_watcher.go)


class Taken(Exception):
    """Another process serves in this directory; the message says which, and what to do."""


class Directory:
    """The directory ``path``.  ``changed`` is called when it has come or gone, or may no longer have what was in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, changed: Callable[[], None]) -> None:
        """Raises OSError."""
        self.path = path
        self._loop, self._changed = loop, changed
        self._fd = events.open_directories()
        self._watched = list[int]()
        self._topics = Topics()
        self._again: asyncio.TimerHandle | None = None
        self._lock = -1
        self._mounts = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        self._urgent = select.epoll()  # readable when the table of mounts has changed, which asyncio cannot wait for
        self._urgent.register(self._mounts, select.EPOLLPRI)
        loop.add_reader(self._fd, self._hear)
        loop.add_reader(self._urgent.fileno(), self._hear_mounts)
        self._look()

    def close(self) -> None:
        """Forget the directory, and let another process have it."""
        if self._again:
            self._again.cancel()
        for fd in (self._fd, self._urgent.fileno()):
            self._loop.remove_reader(fd)
        self._urgent.close()
        for fd in (self._fd, self._mounts):
            os.close(fd)
        self.release()

    def socket(self, resource: str) -> Path:
        """Where the socket of a resource ("rdma/hca") is to be; no other program's sockets are called so."""
        name = resource.replace("/", "_")
        if len(os.fsencode(self.path)) + len(name) > _LONGEST:
            name = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.path / f"hpn-{name}.sock"

    def claim(self) -> bool:
        """Keep other processes of this program out, and remove the sockets of one that was killed; False if the
        directory is not there.

        kubelet asks at a socket that nobody listens at again and again, each time later.  Raises Taken, or OSError if
        the directory cannot be written, or others than root could.
        """
        if not self.path.is_dir():
            self.release()  # guard: nothing-open-in-what-is-gone
            return False
        if self.is_claimed:
            return True
        self.release()
        sockets.refuse_weak(self.path)  # guard: weak
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # guard: one-process = fcntl.flock(fd, fcntl.LOCK_SH)
        except BlockingIOError as e:
            holder = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise Taken(
                f"{self.path}: another hpn node (process {holder}) serves there; stop one of them: systemctl disable "
                "--now hpn-node, or delete the DaemonSet"
            ) from e
        self._lock = fd
        with suppress(OSError):  # the disk is full; the number is only for the sentence above
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        for left in (*self.path.glob("hpn-*.sock"), *self.path.glob(".hpn-*.sock")):
            left.unlink(missing_ok=True)
        return True

    @property
    def is_claimed(self) -> bool:
        """Whether other processes of this program are kept out of the directory that is at the path now."""
        return self._lock >= 0 and _is_at(self._lock, self.path / _LOCK)  # guard: the-lock-that-is-there (_LOCK)

    def release(self) -> None:
        """Let another process have the directory."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _hear(self) -> None:
        heard = list(events.read_directories(self._fd))
        if any(_counts(mask, name) for _, mask, name in heard):
            self._look()
            self._changed()

    def _hear_mounts(self) -> None:
        """Each pod has mounts, and seldom one on the way."""
        if _identity(self.path) != self._seen:  # guard: a-mount
            self._look()
            self._changed()

    def _look(self) -> None:
        """Watch the way to the directory; what cannot be watched is looked at every AGAIN seconds, until it can be."""
        try:
            self._watch_all()
        except OSError as e:  # guard: what-cannot-be-watched = FileExistsError
            self._seen = _identity(self.path)
            self._topics.problem("watch", f"{self.path} cannot be watched: {_unwatched(e)}; looks every {AGAIN:g} s")
            self._again = self._again or self._loop.call_later(AGAIN, self._look_again)
        else:
            self._topics.solved("watch")

    def _look_again(self) -> None:
        self._again = None
        self._look()
        self._changed()

    def _watch_all(self) -> None:
        """Watch the directory, or what there is of the way to it, and all that is above.  Raises OSError."""
        while True:
            for number in self._watched:
                events.unwatch_directory(self._fd, number)
            before, self._watched = _identity(self.path), []
            nearest = next(at for at in (self.path, *self.path.parents) if self._watch(at))
            for above in nearest.parents:  # guard: all-above
                self._watch(above)
            self._seen = _identity(self.path)
            # What has come or gone between the look and the watch would be missed.
            if self._seen == before and (nearest == self.path or not _next(nearest, self.path).is_dir()):
                return

    def _watch(self, at: Path) -> bool:
        """Whether there is such a directory to watch.  Raises OSError."""
        mask = _ITSELF
        if at == self.path:
            mask |= _INSIDE
        elif _next(at, self.path).is_symlink():  # guard: a-link
            mask |= _COMES | _GOES
        elif not _next(at, self.path).is_dir():
            mask |= _COMES
        try:
            self._watched.append(events.watch_directory(self._fd, str(at), mask))
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return False
        return True


def _counts(mask: int, name: str) -> bool:
    """Whether an event is more than the end of a watch, a file's new attributes, or a part of a write of ours.

    A write that fails removes its file again, and would be tried again for that, without end.
    """
    if name.startswith(_OURS) and name != _LOCK:  # guard: nothing-of-its-own
        return False
    # guard below: not-the-end-of-a-watch (not mask)
    return not mask & events.IN_IGNORED and not (mask & events.IN_ATTRIB and name)


def _unwatched(error: OSError) -> str:
    if error.errno == errno.ENOSPC:  # as inotify_add_watch(2) has it
        return "root has no inotify watch left; raise fs.inotify.max_user_watches"
    return cause(error)


def _next(above: Path, path: Path) -> Path:
    """The entry of ``above`` that leads to the path."""
    return above / path.relative_to(above).parts[0]


def _identity(path: Path) -> tuple[int, int] | None:
    """By which the directory at the path is told from another one there; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False
