"""Locks among processes, and among the threads of one (man 2 flock).

Every user who can open a file or a directory can hold its lock.  So a lock is a file that only root can open.
"""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from base.protocol.errors import IoFailure, TryAgain
from base.state import trust

# Seconds between attempts.  Mostly a lock is held for less than the first pause; for a pod's VF, up to a thousand times
# as long.
_POLL: Final = 0.0005
_POLL_MOST: Final = 0.005
_OTHERS: Final = 0o077
# O_NONBLOCK, because opening a FIFO would block.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # guard: no-link (O_NOFOLLOW)
# man 5 proc_locks.
_LOCKS: Final = Path("/proc/locks")


def preload() -> None:
    """Import filelock.  It takes 2 MB of memory, and hpn node takes no lock."""
    import filelock  # noqa: F401, PLC0415


class Lock:
    """A file's lock, held from construction until ``release`` or the end of ``with``."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, timeout: float) -> None:
        """Take the lock of the file at ``path``, making the file if it is missing.  Raises TryAgain after ``timeout``
        seconds, InvalidConfig if others than root could take the lock, IoFailure, OSError."""
        # Open the file for every use: flock works between openings, so it excludes threads of one process too.
        # filelock's own objects do this and more, at ten times the cost.
        self._fd = opened(path)
        try:
            take(self._fd, path, timeout)
        except BaseException:
            os.close(self._fd)  # guard: closed-if-not-had
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            self.release()

    def release(self) -> None:
        """Release the lock, even while a child that hangs in a driver still has the file open (pci.rebind)."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        self._fd = -1


def opened(path: str) -> int:
    """Open a lock's file, or make it, in a directory of root's.  Raises as ``Lock``."""
    trust.refuse_unless_ours(os.path.dirname(path))  # guard: directory
    return _ours(path)


@contextmanager
def passing(path: str, timeout: float) -> Iterator[None]:
    """Hold the lock of a file that is removed afterwards, because its directory is not hpn's.  Other users may read the
    directory, but not open the file.  Raises TryAgain after ``timeout`` seconds, IoFailure, OSError."""
    while True:
        fd = _ours(path)
        try:
            take(fd, path, timeout)
            if _is_at(fd, path):  # else its holder removed it meanwhile
                try:
                    yield
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(path)
                return
        finally:
            os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    return False


def _ours(path: str) -> int:
    fd = os.open(path, _FLAGS, 0o600)  # guard: mode (0o600 -> 0o666)
    try:
        _make_ours(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make_ours(fd: int, path: str) -> None:
    """Remove others' permissions from the file.  A process that has it open already can still hold the lock.  The
    timeout bounds that, and its error names the holder."""
    found = os.fstat(fd)
    # guard below: regular (st_mode), owner (st_uid)
    if not stat.S_ISREG(found.st_mode) or not trust.is_trusted(found.st_uid):
        raise IoFailure(f"{path} is not a lock of hpn: not a regular file of root's; remove it")
    if found.st_mode & _OTHERS:
        os.fchmod(fd, 0o600)  # guard: put-right


def take(fd: int, path: str, timeout: float) -> None:
    """Take the lock of an open file; ``path`` is for the message.  Raises TryAgain after ``timeout`` seconds, which
    restart after a wait for the kernel's lock of links."""
    from filelock import lock_descriptor  # noqa: PLC0415  # as in preload

    deadline, pause = time.monotonic() + timeout, _POLL
    while not lock_descriptor(fd, blocking=False):  # guard: flock
        if time.monotonic() > deadline:  # guard: deadline
            if not timeout or not _is_the_kernels_taken():  # guard: kernels-lock = True
                by = holder(fd) or "others"  # guard: holder (fd)
                raise TryAgain(f"{path} was held by {by} for {timeout:g} s; try again, and see: lslocks")
            deadline = time.monotonic() + timeout
        time.sleep(pause)
        pause = min(2 * pause, _POLL_MOST)


def _is_the_kernels_taken() -> bool:
    """Whether the kernel's lock of links is taken, for which our lock's holder may wait too (budget.py).  It waits for
    as long as the request may wait for the kernel."""
    # Hardly any lock is held so long that this is needed.
    from base.kernel import budget, rtnl  # noqa: PLC0415

    before = budget.kernel_left()
    with suppress(OSError), rtnl.open_in() as host:
        host.link(index=1)
        return budget.kernel_left() < before
    return False


def holder(file: str | int) -> str:
    """The processes that hold the lock of the file at a path, or of an open file; for people, as the kernel lists them.
    Takes no lock.  Empty if there are none, or if there is no file."""
    try:
        found = os.fstat(file) if isinstance(file, int) else os.stat(file, follow_symlinks=False)
        locks = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return ""
    number = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # A line: "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF".  A waiting process has "->" after the number.
    pids = {int(fields[4]) for fields in locks if fields[1] == "FLOCK" and fields[5] == number}
    return ", ".join(map(_process, sorted(pids)))


def _process(pid: int) -> str:
    if pid <= 0:
        return "a process of another PID namespace"
    try:
        # A process chooses its name, which may contain line breaks.
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return f"process {pid}, which has ended"
    return f"process {pid} ({name!r})"
