"""A network namespace that no process is in and no mount of ours holds, and that lives on all the same.

A process may have it open, or a mount in another mount namespace may hold it (man 7 mount_namespaces).  Then the
interfaces in it do not come home.  A socket can hold a namespace, too, and leads nobody to it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


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
    return (found.st_dev, found.st_ino) == (os.stat("/proc/self/ns/net").st_dev, inode)


def _ways(inode: int) -> Iterator[tuple[str, str]]:
    """Paths that may lead to the namespace, through other processes, and whose they are."""
    seen = {_mount_namespace("self")}
    for process in filter(str.isdigit, os.listdir(_PROC)):
        if process == str(os.getpid()):
            continue
        with suppress(OSError):  # it ended while we looked, or is beyond us
            yield from ((path, f"{_words(process)} has it open") for path in _descriptors(process, inode))
            mounts = _mount_namespace(process)
            if mounts not in seen:
                seen.add(mounts)
                for point in _mount_points(process, inode):
                    yield f"/proc/{process}/root{point}", f"{_words(process)} has it mounted at {point}"


def _descriptors(process: str, inode: int) -> Iterator[str]:
    # By fdinfo (Linux 5.14), because a descriptor that was opened by the path of a mount reads as that path, and to ask
    # the file itself may wait for the server that has it.
    line = f"ino:\t{inode}"
    for fd in os.listdir(_PROC / process / "fdinfo"):
        with suppress(OSError):
            if line in (_PROC / process / "fdinfo" / fd).read_text(errors="replace").splitlines():
                yield f"/proc/{process}/fd/{fd}"


def _mount_points(process: str, inode: int) -> Iterator[str]:
    for line in (_PROC / process / "mountinfo").read_text(errors="replace").splitlines():
        root, mount_point = line.split()[3:5]
        if root == f"net:[{inode}]":
            yield mount_point


def _mount_namespace(process: str) -> str:
    return os.readlink(f"/proc/{process}/ns/mnt")


def _words(process: str) -> str:
    # A process chooses its name, which may have line breaks.
    name = (_PROC / process / "comm").read_text(errors="replace").rstrip("\n")
    return f"process {process} ({name!r})"
