"""Network namespaces that live on without a process inside and without a mount of ours.

Another process may have such a namespace open, or a mount in another mount namespace may hold it (man 7
mount_namespaces).  Then the interfaces in it do not return to the host.  A socket can hold a namespace too, but gives
no way into it.  Mounts behind a file system that another process or machine serves are skipped: the server may never
answer.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from base.kernel import files, netns

_PROC: Final = Path("/proc")
# File systems that a process or another machine serves, besides fuse.* and nfs*.
_SERVED: Final = frozenset(
    "9p afs autofs beegfs ceph cifs coda fuse fuseblk gpfs lustre smb3 virtiofs".split()  # noqa: SIM905
)
# File systems that call the file systems below them, which may be served ones.  A pod can make one in its user
# namespace.
_STACKED: Final = frozenset(("aufs", "overlay", "shiftfs"))


@contextmanager
def opened(inode: int) -> Iterator[tuple[str, str]]:
    """A path that leads to the namespace with this inode number while the context lasts, and its holder, for people.
    Both are empty if no visible process or mount leads there."""
    fd, holder = _open(inode)
    if fd < 0:
        yield "", ""
        return
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}", holder
    finally:
        os.close(fd)


def _open(inode: int) -> tuple[int, str]:
    """A descriptor of the namespace, and its holder; -1 if none was found.  The descriptor is a handle (O_PATH): its
    path can be opened, but it is not an open file."""
    for path, holder in _ways(inode):
        with suppress(OSError):  # it was closed meanwhile
            # Identify the file before opening it: by now it may be a device.
            fd = os.open(path, os.O_PATH)
            if _is_namespace(fd, inode):
                return fd, holder
            os.close(fd)
    return -1, ""


def _is_namespace(fd: int, inode: int) -> bool:
    """Whether the file is the namespace with that number: all namespaces are files of one file system."""
    found = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (os.stat("/proc/self/ns/net").st_dev, inode)


def _ways(inode: int) -> Iterator[tuple[str, str]]:
    """Paths through other processes that may lead to the namespace, each with its holder."""
    seen = {_namespace("self", "mnt")}
    for process in filter(str.isdigit, os.listdir(_PROC)):
        if process == str(os.getpid()):
            continue
        with suppress(OSError):  # it ended meanwhile, or we may not inspect it
            yield from ((path, f"{_holder(process)} has it open") for path in _descriptors(process, inode))
            mounts = _namespace(process, "mnt")
            if mounts not in seen:
                seen.add(mounts)
                ours = _namespace(process, "user") == _namespace("self", "user")
                for point in mount_points((_PROC / process / "mountinfo").read_bytes(), inode, ours=ours):
                    yield f"/proc/{process}/root{point}", f"{_holder(process)} has it mounted at {point}"


def _descriptors(process: str, inode: int) -> Iterator[str]:
    # Read fdinfo (Linux 5.14): a descriptor that was opened through a mount reads as the mount's path.  Do not
    # stat the file: that may wait for the file system's server.
    line = f"ino:\t{inode}"
    for fd in os.listdir(_PROC / process / "fdinfo"):
        with suppress(OSError):
            if line in (_PROC / process / "fdinfo" / fd).read_text(errors="replace").splitlines():
                yield f"/proc/{process}/fd/{fd}"


def mount_points(mountinfo: bytes, inode: int, *, ours: bool) -> list[str]:
    """The mount points of the namespace with this inode number, by a process's mountinfo, that only the kernel serves.
    ``ours``: the process is in our user namespace, so root made its mounts."""
    mounts = list(netns.mounts(mountinfo))
    # A mount that covers another one counts too.
    avoided = [point for _, point, kind in mounts if _is_served(kind) or (kind in _STACKED and not ours)]
    if not ours and all(point != "/" for _, point, _ in mounts):
        avoided.append("/")  # the process changed its root, and mountinfo lacks the mount that holds it
    return [
        point
        for root, point, _ in mounts
        if root == f"net:[{inode}]" and not any(files.is_within(point, one) for one in avoided)
    ]


def _is_served(kind: str) -> bool:
    return kind in _SERVED or kind.startswith(("fuse.", "nfs"))


def _namespace(process: str, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")


def _holder(process: str) -> str:
    # A process chooses its name, which may contain line breaks.
    name = (_PROC / process / "comm").read_text(errors="replace").rstrip("\n")
    return f"process {process} ({name!r})"
