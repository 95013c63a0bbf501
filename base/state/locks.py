"""Locks among processes, and among the threads of one: a file's (man 2 flock), or that of a name in a file.

A name is one byte of the file, by its hash, and its lock is that byte's (F_OFD_SETLK, man 2 fcntl).  So a few files
serve all names: a killed holder leaves nothing, and no process waits for the holder of another name.

Every user who can open a file or a directory can hold its lock.  So a lock is a file that only root can open.
"""

import fcntl
import math
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, Self

from base.protocol.errors import IoFailure, TryAgain
from base.state import trust

# Seconds between attempts.  Mostly a lock is held for less than the first pause; for a pod's VF, up to a thousand times
# as long.
_POLL: Final = 0.0005
_POLL_MOST: Final = 0.005
_OTHERS: Final = 0o077
# O_NONBLOCK, because opening a FIFO would block.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
# man 5 proc_locks.
_LOCKS: Final = Path("/proc/locks")
# struct flock: type, whence, start, length and pid, which must be 0 (man 2 fcntl).
_FLOCK: Final = struct.Struct("hhqqi4x")
# Seconds: the longest wait for the holder of the same name, and for what unrelated commands use in turn.  As many as a
# node has pods may be before this one when it boots.
OWN: Final = 10.0
SHARED: Final = 60.0


class Mode(Enum):
    """How one holds a name: the kind of its byte's lock, and the byte's distance from the name's.

    ``SHARED`` excludes only holders that do not share it.  ``NEXT`` is not the name's lock: while one holds it, no
    other begins to share the name.  So those that share it in turns delay another holder once, and not without end.
    """

    ALONE = fcntl.F_WRLCK, 0
    SHARED = fcntl.F_RDLCK, 0
    NEXT = fcntl.F_WRLCK, 1 << 56

    def __init__(self, how: int, distance: int) -> None:
        self.how, self.distance = how, distance


def preload() -> None:
    """Import filelock.  It takes 2 MB of memory, and hpn node itself takes locks of names only."""
    import filelock  # noqa: F401, PLC0415


class Lock:
    """The lock of a file, or of a name in it, held from construction until ``release`` or the end of ``with``."""

    __slots__ = ("_byte", "_fd")

    def __init__(self, path: str, timeout: float, name: str = "", mode: Mode = Mode.ALONE) -> None:
        """Take the lock of the file at ``path``, or of the name in it, making the file if it is missing.  A file has no
        other mode than ALONE.  Raises TryAgain after ``timeout`` seconds, InvalidConfig if others than root could take
        the lock, IoFailure, OSError.
        """
        # Open the file for every use: the locks work between openings, so they exclude threads of one process too.
        # filelock's own objects do this and more, at ten times the cost.
        self._fd = opened(path)
        self._byte = byte_of(name, mode)
        try:
            take(self._fd, path, timeout, self._byte, mode)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            self.release()

    def release(self) -> None:
        """Release the lock, even while a child that hangs in a driver still has the file open (pci.rebind)."""
        if self._byte is not None:
            _set(self._fd, fcntl.F_UNLCK, self._byte)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        self._fd = -1


def byte_of(name: str, mode: Mode = Mode.ALONE) -> int | None:
    """The byte that the name locks; None for the whole file, without a name.  Two names have the same byte once in
    2**56 pairs."""
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest()) + mode.distance if name else None


def _set(fd: int, how: int, byte: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(how, os.SEEK_SET, byte, 1, 0))


def _is_next(fd: int, byte: int) -> bool:
    """Whether others share the byte, and another holder of it waits for them.  While no process shares it, those that
    want to need not give way: otherwise holders in turns would keep them out."""
    return _other(fd, byte) == fcntl.F_RDLCK and _other(fd, byte + Mode.NEXT.distance) == fcntl.F_WRLCK


def _other(fd: int, byte: int) -> int:
    """How another one has locked the byte, or F_UNLCK."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    how, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return int(how)


def opened(path: str) -> int:
    """Open a lock's file, or make it, in a directory of root's.  Raises as ``Lock``."""
    trust.refuse_unless_ours(os.path.dirname(path))
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
    fd = os.open(path, _FLAGS, 0o600)
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
    if not stat.S_ISREG(found.st_mode) or not trust.is_trusted(found.st_uid):
        raise IoFailure(f"{path} is not a lock of hpn: not a regular file of root's; remove it")
    if found.st_mode & _OTHERS:
        os.fchmod(fd, 0o600)


def take(fd: int, path: str, timeout: float, byte: int | None = None, mode: Mode = Mode.ALONE) -> None:
    """Take the lock of an open file, or of a byte in it.  ``path`` is for the message.  Raises TryAgain after
    ``timeout`` seconds, which restart after a wait for the kernel's lock of links."""
    deadline, pause, turn_ends = time.monotonic() + timeout, _POLL, time.monotonic() + OWN
    turn = byte + Mode.NEXT.distance if byte is not None and mode is Mode.ALONE else None
    try:
        while not _is_taken(fd, byte, mode):
            if time.monotonic() > deadline:
                if not timeout or not _is_the_kernels_taken():
                    by = holder(fd, byte) or "others"
                    raise TryAgain(f"{path} was held by {by} for {timeout:g} s; try again, and see: lslocks")
                deadline = time.monotonic() + timeout
            if byte is not None and turn:
                # No holder needs OWN seconds.  One that shares for longer hangs, and others can go on beside it.
                if _other(fd, byte) != fcntl.F_RDLCK:
                    turn_ends = time.monotonic() + OWN
                with suppress(BlockingIOError):  # another one waits too
                    _set(fd, fcntl.F_WRLCK if time.monotonic() < turn_ends else fcntl.F_UNLCK, turn)
            time.sleep(pause)
            pause = min(2 * pause, _POLL_MOST)
    finally:
        if turn and pause > _POLL:
            _set(fd, fcntl.F_UNLCK, turn)


def _is_taken(fd: int, byte: int | None, mode: Mode) -> bool:
    """Whether this call took the lock.  Raises OSError."""
    if byte is None:
        from filelock import lock_descriptor  # noqa: PLC0415  # as in preload

        return lock_descriptor(fd, blocking=False)
    try:
        # An older version takes the whole file for a name.  While a node is upgraded both may run, and exclude each
        # other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if mode is not Mode.SHARED or not _is_next(fd, byte):
            _set(fd, mode.how, byte)
            return True
    except BlockingIOError:
        pass
    # On NFS the kernel makes an flock of locks of bytes, so two that wait with it would stop each other.
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


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


def holder(file: str | int, byte: int | None = None) -> str:
    """The processes that hold the lock of a file, by its path or descriptor, or of a byte in it.

    For people, as the kernel lists them.  Takes no lock.  Empty if there are none, or if there is no file."""
    try:
        found = os.fstat(file) if isinstance(file, int) else os.stat(file, follow_symlinks=False)
        number = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        held = _of_file(_LOCKS.read_text(), number)
    except OSError:
        return ""
    # With a byte, those who share the file hold only bytes.
    pids = {one.pid for one in held if one.kind == "FLOCK" and (byte is None or one.mode == "WRITE")}
    if byte is not None and any(one.has(byte) for one in held):
        # The kernel does not list the process of a byte's lock.  Each holder shares the file too.
        sharing = {one.pid for one in held if one.kind == "FLOCK" and one.mode == "READ"}
        pids |= {pid for pid in sharing if _holds(pid, number, byte)} or {0}
    return ", ".join(map(_process, sorted(pids)))


class _Held(NamedTuple):
    """A lock as the kernel lists it, with its first and last byte."""

    kind: str
    mode: str
    pid: int
    first: int
    last: float

    def has(self, byte: int) -> bool:
        """Whether it is the byte's lock."""
        return self.kind == "OFDLCK" and self.first <= byte <= self.last


def _of_file(text: str, number: str) -> list[_Held]:
    """The locks of a file, without those that are waited for."""
    # "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF".  A waiting process has "->" after the number.
    lines = [line.partition(":")[2].split() for line in text.splitlines() if number in line]
    return [
        _Held(kind, mode, int(pid), int(first), math.inf if last == "EOF" else int(last))
        for kind, _, mode, pid, where, first, last in (one for one in lines if one[0] != "->")
        if where == number
    ]


def _holds(pid: int, number: str, byte: int) -> bool:
    """Whether the process has an opening of the file with the byte's lock (man 5 proc_pid_fdinfo)."""
    folder = f"/proc/{pid}/fdinfo"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                lines = Path(folder, name).read_text().splitlines()
                locks = "\n".join(line[len("lock:") :] for line in lines if line.startswith("lock:"))
                if any(one.has(byte) for one in _of_file(locks, number)):
                    return True
    return False


def _process(pid: int) -> str:
    if pid <= 0:
        # One of another PID namespace, or the child of one that has ended.
        return "a process that /proc/locks does not name"
    try:
        # A process chooses its name, which may contain line breaks.
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return f"process {pid}, which has ended"
    return f"process {pid} ({name!r})"
