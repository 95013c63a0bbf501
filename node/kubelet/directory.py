"""kubelet's directory for the sockets of plugins: notices when it appears, goes, or is made again.

Its path may also lead to another directory: one above was renamed, a mount covers one, or a link on the way changed.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import select
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

from base.child_process import Child
from base.kernel import events
from base.protocol import location
from node.kubelet import sockets
from node.log import Topics, cause

AGAIN: Final = 5.0  # seconds until the next attempt to write or watch
KUBELET: Final = Path(location.KUBELET)
_GOES: Final = events.IN_DELETE | events.IN_MOVED_FROM
_INSIDE: Final = _GOES | events.IN_ATTRIB
_ITSELF: Final = events.IN_DELETE_SELF | events.IN_MOVE_SELF
_COMES: Final = events.IN_CREATE | events.IN_MOVED_TO
_MOUNTS: Final = "/proc/self/mountinfo"
# A socket's path has at most 107 bytes (man 7 unix), which include "/.hpn-", ".sock" and temporary names beside it.
_LONGEST: Final = 88
_OURS: Final = ".hpn-"
_PATIENCE: Final = 5.0  # seconds for another plugin's answer, which comes from memory
_LOCK: Final = ".hpn-node.lock"  # kubelet ignores names with a leading point (plugin_watcher.go)


class Taken(Exception):
    """Another process serves in this directory; the message names it and the remedy."""


class Directory:
    """The directory ``path``.  Calls ``changed`` when it appeared, went, or may have lost files."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, changed: Callable[[], None]) -> None:
        """Raises OSError."""
        self.path = path
        self._loop, self._changed = loop, changed
        self._fd = -1  # of the watches, while there can be any
        self._watched = list[int]()
        self._topics = Topics()
        self._again: asyncio.TimerHandle | None = None
        self._lock = -1
        self._mounts = os.open(_MOUNTS, os.O_RDONLY)
        self._urgent = select.epoll()  # readable when the table of mounts has changed, which asyncio cannot wait for
        self._urgent.register(self._mounts, select.EPOLLPRI)
        loop.add_reader(self._urgent.fileno(), self._check_mounts)
        self._watch_path()

    def close(self) -> None:
        """Stop watching, and release the directory for other processes."""
        if self._again:
            self._again.cancel()
        self._loop.remove_reader(self._urgent.fileno())
        self._urgent.close()
        os.close(self._mounts)
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self.release()

    def socket(self, resource: str) -> Path:
        """The path of a resource's socket; no other program uses such names."""
        name = resource.replace("/", "_")
        if len(os.fsencode(self.path)) + len(name) > _LONGEST:
            name = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.path / f"hpn-{name}.sock"

    def others(self) -> Mapping[str, Path]:
        """The resources of other programs' device plugins that serve in the directory, and hpn's driver name if another
        program has it, with their sockets.

        A child process asks them, because asyncio runs no call inside this loop.
        """
        paths = others(self.path)
        try:
            return cast("Mapping[str, Path]", Child(partial(resources, paths)).answer()) if paths else {}
        except (ChildProcessError, OSError):
            return {}

    def claim(self) -> bool:
        """Lock out other processes of this program, and remove the sockets of a killed one.

        Return False if the directory does not exist.  kubelet would retry a socket without a listener, at growing
        intervals.  Raises Taken; OSError if this process cannot write the directory, or others than root can.
        """
        if not self.path.is_dir():
            self.release()
            return False
        if self.is_claimed:
            return True
        self.release()
        sockets.refuse_weak(self.path)
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            holder = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise Taken(
                f"{self.path}: another hpn node (process {holder}) serves there; stop one of them: systemctl disable "
                "--now hpn-node, or delete the DaemonSet"
            ) from e
        self._lock = fd
        with suppress(OSError):  # the disk is full; only the message above needs the number
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        for left in (*self.path.glob("hpn-*.sock"), *self.path.glob(".hpn-*.sock")):
            left.unlink(missing_ok=True)
        return True

    @property
    def is_claimed(self) -> bool:
        """Whether this process has locked the directory that is at the path now."""
        return self._lock >= 0 and _is_at(self._lock, self.path / _LOCK)

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _read_events(self) -> None:
        found = list(events.read_directories(self._fd))
        if any(_counts(mask, name) for _, mask, name in found):
            self._watch_again()

    def _check_mounts(self) -> None:
        """Check for another directory at the path; most changes of mounts are those of pods, elsewhere."""
        if _identity(self.path) != self._identity:
            self._watch_again()

    def _watch_again(self) -> None:
        self._watch_path()
        self._changed()

    def _watch_path(self) -> None:
        """Watch all directories on the path; if one cannot be watched, check again every AGAIN seconds."""
        try:
            self._watch_all()
        except OSError as e:
            self._identity = _identity(self.path)
            self._topics.problem("watch", f"{self.path} cannot be watched: {cause(e)}; checked every {AGAIN:g} s")
            self._again = self._again or self._loop.call_later(AGAIN, self._try_again)
        else:
            self._topics.solved("watch")

    def _try_again(self) -> None:
        self._again = None
        self._watch_again()

    def _watch_all(self) -> None:
        """Watch the directory, or the last one on its path that exists, and all above.  Raises OSError."""
        if self._fd < 0:
            self._fd = events.open_directories()
            self._loop.add_reader(self._fd, self._read_events)
        while True:
            for number in self._watched:
                events.unwatch_directory(self._fd, number)
            before, self._watched = _identity(self.path), []
            nearest = next(at for at in (self.path, *self.path.parents) if self._watch(at))
            for above in nearest.parents:
                self._watch(above)
            self._identity = _identity(self.path)
            # A change between the check and the watch causes no event.
            if self._identity == before and (nearest == self.path or not _next(nearest, self.path).is_dir()):
                return

    def _watch(self, at: Path) -> bool:
        """Watch a directory; return False if it does not exist.  Raises OSError."""
        mask = _ITSELF
        if at == self.path:
            mask |= _INSIDE
        elif _next(at, self.path).is_symlink():
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


def others(folder: Path) -> list[Path]:
    """The sockets of other programs there.  Raises OSError."""
    names = [name for name in os.listdir(folder) if not name.startswith((".", "hpn-"))]
    return [path for name in sorted(names) if (path := folder / name).is_socket()]


def resources(paths: Sequence[Path]) -> dict[str, Path]:
    """The sockets by the names of client.resource.  For a child process."""
    from base.kubelet.client import resource  # noqa: PLC0415  # its imports are for the child only

    return {name: path for path in paths if (name := resource(path, _PATIENCE))}


def _counts(mask: int, name: str) -> bool:
    """Whether an event can matter: not the end of a watch, new attributes of a file, or a write of this program.

    A failed write removes its file, and that event would repeat the write without end.
    """
    if name.startswith(_OURS) and name != _LOCK:
        return False
    return not mask & events.IN_IGNORED and not (mask & events.IN_ATTRIB and name)


def _next(above: Path, path: Path) -> Path:
    """The entry of ``above`` that leads to the path."""
    return above / path.relative_to(above).parts[0]


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode number of the directory at the path; None if there is none."""
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
