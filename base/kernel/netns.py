"""Network namespaces: open one, compare two, work inside one (man 7 network_namespaces, man 2 setns).

After a namespace has ended, the kernel may give its inode number to another one, so the number identifies no namespace
later.  The cookie (SO_NETNS_COOKIE, Linux 5.14) is never reused within a boot.  Functions raise OSError only.
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
# From asm-generic/ioctl.h and asm-generic/socket.h: x86-64, arm64 and most others.
NS_GET_NSTYPE: Final = 0xB703  # man 2 ioctl_ns
SO_NETNS_COOKIE: Final = 71
# Seconds: up to this age, a process that we may not inspect may soon become one that we may.
_YOUNG: Final = 1.0

T = TypeVar("T")


class Sighting(Protocol):
    """A network namespace, and the mount and PID namespaces of its observer (inode numbers; zeros if unknown)."""

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
    """``open_at``, closed at the end."""
    fd = open_at(path)
    try:
        yield fd
    finally:
        os.close(fd)


def open_at(path: str) -> int:
    """The namespace at ``path`` as a file descriptor, which the caller closes.  Raises OSError: ENOENT if nothing is
    there, EINVAL if it is not a network namespace."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would block
    except ValueError as e:  # text that names no file
        raise OSError(errno.ENOENT, f"{e}", path) from e
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
    if kind != CLONE_NEWNET:
        raise OSError(errno.EINVAL, "not a network namespace", path)


def is_own(fd: int) -> bool:
    """Whether this is the namespace of this process."""
    return inode(fd) == os.stat("/proc/self/ns/net").st_ino


def inode(fd: int) -> int:
    """The namespace's inode number, as in `ls -L -i` and `lsns`."""
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
    """Run ``work`` inside the namespace; return its result.

    Only this function enters a namespace.  The calling thread enters and returns, because a new thread costs ten times
    as much.  A thread that cannot return must not run another line, so the process aborts.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _libc.setns(fd, CLONE_NEWNET):  # os.setns is Python 3.12's
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
        try:
            return work()
        finally:
            if _libc.setns(own, CLONE_NEWNET):
                os.abort()
    finally:
        os.close(own)


def view(path: str, fd: int) -> tuple[int, int]:
    """The observer of a namespace: a Sighting's ``mounts`` and ``processes``.

    They are this process's own if ``path`` leads to the namespace here, else zeros.  An agent in a container receives
    namespaces that the launcher opened, and cannot see the pods' namespaces.
    """
    try:
        there, this = os.stat(path), os.fstat(fd)
    except OSError:
        return 0, 0
    return _view() if (there.st_dev, there.st_ino) == (this.st_dev, this.st_ino) else (0, 0)


def gone(seen: Collection[S]) -> frozenset[S]:
    """The namespaces that have provably ended: no process is inside, and no mount holds them.

    Another process may still have one open; what it starts inside is unknown to every runtime.  Only an observer in the
    same mount and PID namespace can prove anything, so a namespace seen from elsewhere is never gone.
    """
    here = _view()
    ours = {one for one in seen if (one.mounts, one.processes) == here}
    there = inhabited() if ours else None
    if there is None:
        return frozenset()
    absent = {one for one in ours if one.inode not in there}
    cookies = dict[int, int]()
    for number in {one.inode for one in ours - absent}:
        with suppress(OSError), hold_open(there[number]) as fd:  # a namespace that cannot be entered may be alive
            if inode(fd) == number:
                cookies[number] = cookie_of(fd)
    return frozenset(absent | {one for one in ours if cookies.get(one.inode, one.cookie) != one.cookie})


def cookie_of(fd: int) -> int:
    """The ``cookie`` of an open namespace."""
    with run_in(fd, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)) as sock:
        return cookie(sock)


@cache
def _view() -> tuple[int, int]:
    return os.stat("/proc/self/ns/mnt").st_ino, os.stat("/proc/self/ns/pid").st_ino


def inhabited() -> dict[int, str] | None:
    """The namespaces of all visible mounts and processes: inode number -> a path that leads there.

    None if we may not inspect every process, because then a missing namespace proves nothing.  A /proc without process
    1 hides other processes too (hidepid, systemd's ProtectProc).
    """
    found = dict[int, str]()
    for root, mount_point, _ in mounts(Path("/proc/self/mountinfo").read_bytes()):
        if root.startswith("net:["):
            found[int(root[5:-1])] = mount_point
    processes = list(filter(str.isdigit, os.listdir("/proc")))
    if "1" not in processes:
        return None
    for process in processes:
        try:
            for path, link in _links_of(process):
                found.setdefault(int(link[5:-1]), path)
        except PermissionError:
            if process != "1":  # init may be beyond our rights, and is in no pod
                return None
        except OSError:  # it ended meanwhile
            continue
    return found


def by_cgroup(names: Collection[str]) -> dict[str, str]:
    """Map each of these names to a path that leads to the namespace of the processes in a cgroup of that name.

    A runtime names a sandbox's cgroup after its id: ``/kubepods/.../ID``, or ``cri-containerd-ID.scope``.  A monitor of
    the runtime, in this process's own namespace, does not count.  A name with no or several namespaces is left out.
    """
    import re  # noqa: PLC0415  # for an import of leases only

    wanted, own = frozenset(names), os.stat("/proc/self/ns/net").st_ino
    found: dict[str, dict[int, str]] = {name: {} for name in wanted}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended meanwhile
            words = re.split(r"[^0-9A-Za-z_]+", Path(f"/proc/{process}/cgroup").read_text(errors="replace"))
            for name in wanted.intersection(words):
                found[name] |= {int(link[5:-1]): path for path, link in _links_of(process)}
    there = {name: [path for number, path in of.items() if number != own] for name, of in found.items()}
    return {name: paths[0] for name, paths in there.items() if len(paths) == 1}


def mounts(mountinfo: bytes) -> Iterator[tuple[str, str, str]]:
    """The mounted root, the mount point and the file system's type of each line (man 5 proc_pid_mountinfo).

    Only spaces and line ends separate; in names, the kernel escapes them.  Any user may mount at a path with other
    special bytes, by fusermount.
    """
    for line in mountinfo.split(b"\n"):
        if line:
            fields = line.split(b" ")
            yield os.fsdecode(fields[3]), os.fsdecode(fields[4]), os.fsdecode(fields[fields.index(b"-", 6) + 1])


def _links_of(process: str) -> Iterator[tuple[str, str]]:
    """A process's namespace links, with their targets.  Raises as ``_link_of`` does."""
    path = f"/proc/{process}/ns/net"
    try:
        yield path, _link_of(path, process)
    except FileNotFoundError:  # the first thread has ended, but others may run
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(FileNotFoundError):
                path = f"/proc/{process}/task/{thread}/ns/net"
                yield path, _link_of(path, process)


def _link_of(path: str, process: str) -> str:
    """The link's target.  Raises PermissionError for a process that we may not inspect, other OSErrors for an ended
    one.

    A new child of a program that we may not inspect is beyond our rights too, until it executes a program or ends.  On
    a busy machine, that takes longer than 20 ms.  So a young process is tried again and again; an old one keeps its
    state.
    """
    while True:
        try:
            return os.readlink(path)
        except PermissionError:
            # The kernel refuses an ending process too; then its age cannot be read.
            if process == "1" or age(process) > _YOUNG:
                raise
        time.sleep(0.001)


def age(process: str) -> float:
    """The process's age in seconds (man 5 proc_pid_stat, starttime).  Raises OSError if it has ended."""
    began = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


def holders(number: int) -> Iterator[str]:
    """Paths that lead to a namespace with this inode number: visible mounts, then processes inside.  A descriptor, or a
    mount in another mount namespace, can hold a namespace invisibly.  Then no process runs inside."""
    name = f"net:[{number}]"
    for root, mount_point, _ in mounts(Path("/proc/self/mountinfo").read_bytes()):
        if root == name:
            yield mount_point
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended meanwhile
            yield from (path for path, link in _links_of(process) if link == name)
