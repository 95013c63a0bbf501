"""Opening files whose names come from others.

Below a trusted directory, no link is followed.  Only regular files are opened, because opening a FIFO can block for
ever, and opening a device can have any effect.  Reads are bounded.

Also small files that others read, each replaced in one step; and a program's machine (man 5 elf).
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# Such a descriptor names a file without opening it, so it is safe for any file (man 2 open, O_PATH).
_HANDLE: Final = os.O_PATH
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_KINDS: Final = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# The label of a file (man 7 xattr, security attributes), and that of container-selinux for images' files.
_SELINUX: Final = "security.selinux"
_OF_CONTAINERS: Final = b"system_u:object_r:container_ro_file_t:s0\0"
# (word size, byte order) -> machine number -> the machine's name in `uname -m`.
_MACHINES: Final = {
    (2, 1): {0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv64", 0x15: "ppc64le", 0x102: "loongarch64"},
    (2, 2): {0x15: "ppc64", 0x16: "s390x"},
    (1, 1): {0x03: "i686", 0x28: "armv7l"},
}


@contextmanager
def open_directory(folder: str, names: Iterable[str] = (), make: int = 0) -> Iterator[int]:
    """A descriptor of the directory that ``names`` lead to from ``folder``.  Raises OSError.  ``folder`` may contain
    links; below it, none is followed.  Missing directories are made with the mode ``make``, unless that is 0."""
    if make:
        Path(folder).mkdir(make, parents=True, exist_ok=True)
    fd = os.open(folder, _HANDLE | os.O_DIRECTORY)
    try:
        for name in names:
            below = _enter(fd, name, make)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def open_regular(name: str, flags: int, at: int | None = None) -> int:
    """Open an existing regular file with the ``flags`` of os.open; return its descriptor.  Raises OSError.  In the
    directory ``at``, a link is not followed."""
    handle = os.open(name, _HANDLE | (0 if at is None else os.O_NOFOLLOW), dir_fd=at)
    try:
        if not_regular := why_not_regular(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, not_regular, name)
        return os.open(f"/proc/self/fd/{handle}", flags)
    finally:
        os.close(handle)


def read(name: str, limit: int, at: int | None = None) -> bytes:
    """All of a regular file, opened as by ``open_regular``.  Raises OSError, EFBIG above ``limit`` bytes."""
    fd = open_regular(name, os.O_RDONLY, at)
    try:
        return read_all(fd, limit)
    finally:
        os.close(fd)


def replace(folder: int, name: str, text: str, *, for_containers: bool = False) -> None:
    """Put a file with that text, readable by all users under any umask, into an open directory, in place of any file of
    that name.  The file is whole or absent, but not synced: a power cut may lose it.  Raises OSError.

    ``for_containers``: SELinux lets containers read it too, where it is on.
    """
    temporary = _temporary(name)
    remove(folder, temporary)
    try:
        with open(os.open(temporary, _NEW, 0o644, dir_fd=folder), "w") as f:
            os.fchmod(f.fileno(), 0o644)
            if for_containers:
                _label(f.fileno())
            f.write(text)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, temporary)
        raise


def _label(file: int) -> None:
    """Give a new file the SELinux label of an image's files, which every container may read and none may write.

    SELinux gives each new file a label; without SELinux there is none.  A policy may lack this type or forbid it, and
    the file keeps its label.
    """
    with suppress(OSError):
        os.getxattr(file, _SELINUX)
        os.setxattr(file, _SELINUX, _OF_CONTAINERS)


def remove(folder: int, name: str) -> None:
    """Remove a file, if there is one.  Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_unfinished(folder: int, name: str) -> None:
    """Remove what an interrupted ``replace`` of the file left.  Raises OSError."""
    remove(folder, _temporary(name))


def is_within(path: str, folder: str) -> bool:
    """Whether the path is the directory's or leads below it, by its text."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def why_not_regular(mode: int) -> str:
    """A clause why a file with this st_mode is not a regular file; empty if it is one."""
    kind = stat.S_IFMT(mode)
    return "" if kind == stat.S_IFREG else f"it is {_KINDS.get(kind, 'something else')}, not a regular file"


def read_all(fd: int, limit: int) -> bytes:
    """All of an open file.  Raises OSError, EFBIG above ``limit`` bytes."""
    data = b""
    while more := os.read(fd, limit + 1 - len(data)):
        data += more
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"it is longer than {limit} bytes")
    return data


def write_value(path: str, value: str) -> None:
    """Write a line to a file of /proc or /sys.  Raises OSError with the file's name, and with the refused value."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, f"{value}\n".encode())  # the line's end lets an empty value be written too
    except OSError as e:
        raise OSError(e.errno, f"{e.strerror} (writing {value!r})", path) from e
    finally:
        os.close(fd)


def _temporary(name: str) -> str:
    return f"{name}.hpn"


def _enter(at: int, name: str, make: int) -> int:
    flags = _HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another ADD made it meanwhile
        os.mkdir(name, make, dir_fd=at)
    return os.open(name, flags, dir_fd=at)


def machine(path: str | int) -> str:
    """A program's machine as in `uname -m`, or its number if the name is unknown; empty if it is not an ELF file.

    ``path`` may be a descriptor; its offset does not move.  Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if isinstance(path, str) else path
    try:
        head = os.pread(fd, 20, 0)
    finally:
        if fd is not path:
            os.close(fd)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get((head[4], head[5]), {}).get(number, f"machine {number} of ELF")
