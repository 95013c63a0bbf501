"""A network namespace that no process is in and no mount of ours holds, and that lives on all the same.

A process may have it open, or a mount in another mount namespace may hold it (man 7 mount_namespaces).  Then the
interfaces in it do not come home.  A socket can hold a namespace, too, and leads nobody to it.  A mount that is to be
reached through a file system that another process or machine serves is not followed: who serves it need not answer.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from base.kernel import netns

_PROC: Final = Path("/proc")
# File systems that a process or another machine serves, besides fuse.* and nfs*.
_SERVED: Final = frozenset(
    "9p afs autofs beegfs ceph cifs coda fuse fuseblk gpfs lustre smb3 virtiofs".split()  # noqa: SIM905
)
# Those that ask the file systems below them, which may be of that kind.  A pod can make one in its user namespace.
_STACKED: Final = frozenset(("aufs", "overlay", "shiftfs"))


@contextmanager
def opened(inode: int) -> Iterator[tuple[str, str]]:
    """A path that leads to the namespace with this inode number as long as this lasts, and who holds it, in words.

    Both are empty if nothing that can be seen leads there.
    """
    fd, holder = _open(inode)
    if fd < 0:
        yield "", ""
        return
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}", holder
    finally:
        os.close(fd)


def _open(inode: int) -> tuple[int, str]:
    """A descriptor of it, which can be opened by its path but is no open file, and who holds it; -1 if none was
    found."""
    for path, holder in _ways(inode):
        with suppress(OSError):  # it has been closed meanwhile
            # What is there is not opened before it is known what it is: it may be a device by now.
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if _is_namespace(fd, inode):
                return fd, holder
            os.close(fd)
    return -1, ""


def _is_namespace(fd: int, inode: int) -> bool:
    """Whether it is the namespace of that number: all namespaces are files of one file system."""
    found = os.fstat(fd)
    # guard below: no-device = found.st_ino == inode
    return (found.st_dev, found.st_ino) == (os.stat("/proc/self/ns/net").st_dev, inode)


def _ways(inode: int) -> Iterator[tuple[str, str]]:
    """Paths that may lead to the namespace, through other processes, and whose they are."""
    seen = {_namespace("self", "mnt")}
    for process in filter(str.isdigit, os.listdir(_PROC)):
        if process == str(os.getpid()):
            continue
        with suppress(OSError):  # it ended while we looked, or is beyond us
            yield from ((path, f"{_words(process)} has it open") for path in _descriptors(process, inode))
            mounts = _namespace(process, "mnt")
            if mounts not in seen:  # guard: own-mounts
                seen.add(mounts)
                ours = _namespace(process, "user") == _namespace("self", "user")
                for point in mount_points((_PROC / process / "mountinfo").read_bytes(), inode, ours=ours):
                    yield f"/proc/{process}/root{point}", f"{_words(process)} has it mounted at {point}"


def _descriptors(process: str, inode: int) -> Iterator[str]:
    # By fdinfo (Linux 5.14), because a descriptor that was opened by the path of a mount reads as that path, and to ask
    # the file itself may wait for the server that has it.
    line = f"ino:\t{inode}"
    for fd in os.listdir(_PROC / process / "fdinfo"):
        with suppress(OSError):
            if line in (_PROC / process / "fdinfo" / fd).read_text(errors="replace").splitlines():
                yield f"/proc/{process}/fd/{fd}"


def mount_points(mountinfo: bytes, inode: int, *, ours: bool) -> list[str]:
    """Where the namespace with this inode number is mounted, if the kernel alone leads there, by a process's mountinfo.
    ``ours``: the process is in our user namespace, so its mounts are root's.
    """
    mounts = list(netns.mounts(mountinfo))
    # What lies over another mount counts as well.
    # guard below: its-own-overlay (_STACKED and not ours)
    avoided = [point for _, point, kind in mounts if _is_served(kind) or (kind in _STACKED and not ours)]
    if not ours and all(point != "/" for _, point, _ in mounts):
        # guard below: its-own-root
        avoided.append("/")  # the process has changed its root, and the mount that has it is not told
    return [
        point
        for root, point, _ in mounts
        if root == f"net:[{inode}]" and not any(_is_within(point, one) for one in avoided)  # guard: nobody-waits (one)
    ]


def _is_served(kind: str) -> bool:
    return kind in _SERVED or kind.startswith(("fuse.", "nfs"))


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _namespace(process: str, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")


def _words(process: str) -> str:
    # A process chooses its name, which may have line breaks.
    name = (_PROC / process / "comm").read_text(errors="replace").rstrip("\n")
    return f"process {process} ({name!r})"
