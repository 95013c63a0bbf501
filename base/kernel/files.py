"""Open files that somebody else has named.

Below a trusted directory no link is followed.  Only regular files are opened: opening a FIFO can wait for ever, and
opening a device can do anything.  Reading has a bound.

And small files that others read, each replaced in one step; and which machine a program is for (man 5 elf).
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# Such a descriptor names a file and does not open it, so it is safe on anything (man 2 open, O_PATH).
_HANDLE: Final = os.O_PATH | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # guard: new-temporary (O_EXCL)
_KINDS: Final = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# As `uname -m` calls them: of a word size and byte order, then of a machine.
_MACHINES: Final = {
    (2, 1): {0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv64", 0x15: "ppc64le", 0x102: "loongarch64"},
    (2, 2): {0x15: "ppc64", 0x16: "s390x"},
    (1, 1): {0x03: "i686", 0x28: "armv7l"},
}


@contextmanager
def open_directory(folder: str, names: Iterable[str] = (), make: int = 0) -> Iterator[int]:
    """A descriptor of the directory that ``names`` lead to from ``folder``.  Raises OSError.

    The way to the folder may have links; below it none is followed.  Missing directories are made with the mode
    ``make``, unless that is 0.
    """
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
    """Open a regular file that exists, with the ``flags`` of os.open; its descriptor.  Raises OSError.

    In the directory ``at``, a link is not followed.
    """
    handle = os.open(name, _HANDLE | (0 if at is None else os.O_NOFOLLOW), dir_fd=at)  # guard: no-link (0 if at)
    try:
        if not_regular := why_not_regular(os.fstat(handle).st_mode):  # guard: regular
            raise OSError(errno.EINVAL, not_regular, name)
        return os.open(f"/proc/self/fd/{handle}", flags | os.O_CLOEXEC)
    finally:
        os.close(handle)


def replace(folder: int, name: str, text: str) -> None:
    """Put a file with that text, which everybody may read, into an open directory, in the place of what has its name.
    It is whole or absent, but not synced: a power cut may take it.  Raises OSError."""
    temporary = _temporary(name)
    remove(folder, temporary)
    with open(os.open(temporary, _NEW, 0o644, dir_fd=folder), "w") as f:
        f.write(text)
    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(folder: int, name: str) -> None:
    """Remove a file.  It is fine if there is none.  Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_unfinished(folder: int, name: str) -> None:
    """Remove what a ``replace`` of the file that was interrupted has left.  Raises OSError."""
    remove(folder, _temporary(name))


def why_not_regular(mode: int) -> str:
    """Why a file with this st_mode is not a regular file, in words; empty if it is one."""
    kind = stat.S_IFMT(mode)
    return "" if kind == stat.S_IFREG else f"it is {_KINDS.get(kind, 'something else')}, not a regular file"


def read_all(fd: int, limit: int) -> bytes:
    """All of an open file.  Raises OSError, EFBIG if that is more than ``limit`` bytes."""
    data = b""
    while more := os.read(fd, limit + 1 - len(data)):
        data += more
        if len(data) > limit:  # guard: limit
            raise OSError(errno.EFBIG, f"it is longer than {limit} bytes")
    return data


def _temporary(name: str) -> str:
    return f"{name}.hpn"


def _enter(at: int, name: str, make: int) -> int:
    flags = _HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW  # guard: no-link-between (O_NOFOLLOW)
    try:
        return os.open(name, flags, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another ADD has made it meanwhile
        os.mkdir(name, make, dir_fd=at)
    return os.open(name, flags, dir_fd=at)


def machine(path: str | int) -> str:
    """The machine's name as `uname -m` has it, or what is in the file in its place; empty for what is no ELF file.

    ``path`` may be a descriptor, which is not read from.  Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) if isinstance(path, str) else path
    try:
        head = os.pread(fd, 20, 0)
    finally:
        if fd is not path:
            os.close(fd)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get((head[4], head[5]), {}).get(number, f"machine {number} of ELF")
