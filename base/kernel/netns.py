"""Network namespaces: open one, tell two apart, work inside one (man 7 network_namespaces, man 2 setns).

The kernel gives a namespace's inode number to another one as soon as the namespace is gone, so it proves nothing later.
The cookie (SO_NETNS_COOKIE, Linux 5.14) is never reused within a boot.  Functions raise OSError only.
"""

import ctypes
import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Protocol, TypeVar

CLONE_NEWNET: Final = 0x40000000
# As asm-generic/ioctl.h and asm-generic/socket.h have them: x86-64, arm64 and most others.
NS_GET_NSTYPE: Final = 0xB703  # man 2 ioctl_ns
SO_NETNS_COOKIE: Final = 71
# Up to this age, in seconds, a process that we may not look at may be one that we soon may.
_YOUNG: Final = 1.0

T = TypeVar("T")


class Sighting(Protocol):
    """A network namespace, and the mount and PID namespaces it was seen from (inode numbers; zeros if unknown)."""

    @property
    def inode(self) -> int: ...
    @property
    def cookie(self) -> int: ...
    @property
    def mounts(self) -> int: ...
    @property
    def processes(self) -> int: ...


S = TypeVar("S", bound=Sighting)
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def hold_open(path: str) -> Iterator[int]:
    """``open_at``, and close it at the end."""
    fd = open_at(path)
    try:
        yield fd
    finally:
        os.close(fd)


def open_at(path: str) -> int:
    """The namespace at ``path`` as a file descriptor, which the caller closes.

    Raises OSError: ENOENT if nothing is there, EINVAL if it is no network namespace.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # else opening a FIFO would wait
    try:
        _refuse_other(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_other(fd: int, path: str) -> None:
    try:
        kind = fcntl.ioctl(fd, NS_GET_NSTYPE)
    except OSError as e:
        raise OSError(errno.EINVAL, "not a namespace", path) from e
    if kind != CLONE_NEWNET:  # guard: a-namespace-of-network
        raise OSError(errno.EINVAL, "not a network namespace", path)


def is_own(fd: int) -> bool:
    """Whether this is the namespace that this process runs in."""
    return inode(fd) == os.stat("/proc/self/ns/net").st_ino


def inode(fd: int) -> int:
    """The namespace's number as `ls -L -i` and `lsns` show it."""
    return os.fstat(fd).st_ino


def cookie(sock: socket.socket) -> int:
    """The cookie of the namespace in which the socket was opened; 0 before Linux 5.14."""
    try:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder)
    except OSError as e:
        if e.errno == errno.ENOPROTOOPT:
            return 0
        raise


def run_in(fd: int, work: Callable[[], T]) -> T:
    """Run ``work`` inside the namespace, and return what it returns.

    This is the only door into a namespace.  The calling thread enters and comes back, because a new thread costs ten
    times as much.  A thread that cannot come back must not run another line, so the process is aborted.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(fd)
        try:
            return work()
        finally:
            if _libc.setns(own, CLONE_NEWNET):
                os.abort()
    finally:
        os.close(own)


def _enter(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET):  # os.setns is Python 3.12's
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def view(path: str, fd: int) -> tuple[int, int]:
    """From where the namespace can be looked for again: a Sighting's ``mounts`` and ``processes``.

    They are ours, if ``path`` leads to the namespace here.  If not, they are zeros: an agent in a container, for which
    the launcher has opened the namespace, does not see the pods' namespaces.
    """
    try:
        there, this = os.stat(path), os.fstat(fd)
    except OSError:
        return 0, 0
    # guard below: view (st_dev, this)
    return _view() if (there.st_dev, there.st_ino) == (this.st_dev, this.st_ino) else (0, 0)


def gone(seen: Collection[S]) -> frozenset[S]:
    """Those that are provably gone: no process is in the namespace, and no mount holds it.

    A process may still have it open, but what that starts in there, no runtime knows.  Only a look from the same mount
    and PID namespace proves anything, so what was seen from elsewhere is never gone.
    """
    here = _view()
    ours = {one for one in seen if (one.mounts, one.processes) == here}  # guard: seen-from-here = set(seen)
    there = inhabited() if ours else None
    if there is None:
        return frozenset()
    absent = {one for one in ours if one.inode not in there}
    cookies = dict[int, int]()
    for number in {one.inode for one in ours - absent}:
        with suppress(OSError), hold_open(there[number]) as fd:  # a namespace that cannot be asked may be alive
            if inode(fd) == number:
                cookies[number] = cookie_of(fd)
    # guard below: cookie (ours)
    return frozenset(absent | {one for one in ours if cookies.get(one.inode, one.cookie) != one.cookie})


def cookie_of(fd: int) -> int:
    """The ``cookie`` of an open namespace."""
    with run_in(fd, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)) as sock:
        return cookie(sock)


@cache
def _view() -> tuple[int, int]:
    return os.stat("/proc/self/ns/mnt").st_ino, os.stat("/proc/self/ns/pid").st_ino


def inhabited() -> dict[int, str] | None:
    """The namespaces that a visible mount or process has: inode number -> a path that leads to it.

    None if we may not look at every process, because then a missing namespace proves nothing.  A /proc that shows no
    first process hides others, too (hidepid, systemd's ProtectProc).
    """
    found = dict[int, str]()
    for root, mount_point, _ in mounts(Path("/proc/self/mountinfo").read_bytes()):
        if root.startswith("net:["):  # guard: a-mount-is-enough
            found[int(root[5:-1])] = mount_point
    processes = list(filter(str.isdigit, os.listdir("/proc")))
    if "1" not in processes:  # guard: hidden-processes
        return None
    for process in processes:
        try:
            for path, link in _links_of(process):
                found.setdefault(int(link[5:-1]), path)  # guard: a-process-is-enough
        except PermissionError:
            if process != "1":  # init may be beyond us, and is in no pod  # guard: all-processes
                return None
        except OSError:  # it ended while we looked
            continue
    return found


def mounts(mountinfo: bytes) -> Iterator[tuple[str, str, str]]:
    """Of each line what is mounted of its file system, where, and the file system's type (man 5 proc_pid_mountinfo).

    Only spaces and ends of lines divide it, and of those in a name the kernel makes escapes.  Any user may mount at a
    path with other bytes, by fusermount.
    """
    for line in mountinfo.split(b"\n"):
        if line:
            words = line.split(b" ")
            yield os.fsdecode(words[3]), os.fsdecode(words[4]), os.fsdecode(words[words.index(b"-", 6) + 1])


def _links_of(process: str) -> Iterator[tuple[str, str]]:
    """The paths of its namespaces, and where they lead.  Raises as ``_link_of`` does."""
    path = f"/proc/{process}/ns/net"
    try:
        yield path, _link_of(path, process)
    except FileNotFoundError:  # its first thread has ended, but others may run on
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(FileNotFoundError):
                path = f"/proc/{process}/task/{thread}/ns/net"
                yield path, _link_of(path, process)


def _link_of(path: str, process: str) -> str:
    """Where the link leads.  Raises PermissionError for a process that we may not look at, another OSError for one that
    has ended.

    What a program beyond us starts is beyond us too, until it runs a program of its own or ends.  On a busy machine
    that takes longer than 20 ms.  So a young process is looked at again and again; an old one stays as it is.
    """
    while True:
        try:
            return os.readlink(path)
        except PermissionError:
            # The kernel answers so about a process that is just ending, too; then its age cannot be read.
            if process == "1" or age(process) > _YOUNG:
                raise
        time.sleep(0.001)


def age(process: str) -> float:
    """Seconds since it began (man 5 proc_pid_stat, starttime).  Raises OSError if it has ended."""
    began = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


def holders(number: int) -> Iterator[str]:
    """Paths that lead to a namespace with this inode number: visible mounts, then processes in it.

    A descriptor, or a mount in another mount namespace, can keep a namespace alive unseen.  Then nobody runs in it.
    """
    name = f"net:[{number}]"
    for root, mount_point, _ in mounts(Path("/proc/self/mountinfo").read_bytes()):
        if root == name:
            yield mount_point
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended while we looked, or is beyond us
            yield from (path for path, link in _links_of(process) if link == name)
