"""What there is at a place now."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cni.kernel import elf, files
from ctl.installation import folders, places

_LIMIT: Final = 1 << 16
_CHUNK: Final = 1 << 20

Kind = Literal["nothing", "file", "link", "directory", "something else"]


@dataclass(frozen=True)
class Found:
    """What is at a path.

    - ``text``: the text of a small file, or where a link leads.
    - ``inode``: the numbers of its device and its inode.
    - ``is_hpn``: whether it is hpn, of any version.
    - ``machine``: of a program, the machine that it is for, as `uname -m` has it.
    - ``is_this``: whether it is the program that runs: it has the same bytes, and everybody may run it.
    """

    kind: Kind = "nothing"
    text: str = ""
    inode: tuple[int, int] = (0, 0)
    is_hpn: bool = False
    machine: str = ""
    is_this: bool = False


NOTHING: Final = Found()


def look(root: str, path: str, program: Path | None = None) -> Found:
    """What is at the path below the root; the program is the one that runs.  Raises OSError, InvalidConfig."""
    folder, _, name = path.rpartition("/")
    try:
        with folders.open_folder(root, folder) as at:
            return _look(at, name, program)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING


def _look(at: int, name: str, program: Path | None) -> Found:
    found = os.stat(name, dir_fd=at, follow_symlinks=False)
    inode = found.st_dev, found.st_ino
    if stat.S_ISLNK(found.st_mode):
        return Found("link", os.readlink(name, dir_fd=at), inode)
    if stat.S_ISDIR(found.st_mode):
        return Found("directory", "", inode)
    if not stat.S_ISREG(found.st_mode):
        return Found("something else", "", inode)
    fd = files.open_regular(name, os.O_RDONLY, at)
    try:
        is_hpn, machine = places.SIGN in os.pread(fd, places.SIGN_WITHIN, 0), elf.machine(fd)
        if program:
            return Found("file", "", inode, is_hpn, machine, is_this=_is_whole(found) and _same(fd, program))
        text = files.read_all(fd, _LIMIT).decode(errors="replace") if found.st_size <= _LIMIT else ""
        return Found("file", text, inode, is_hpn, machine)
    finally:
        os.close(fd)


def _is_whole(found: os.stat_result) -> bool:
    """Whether everybody may run it and nobody but its owner change it."""
    return stat.S_IMODE(found.st_mode) == 0o755


def _same(fd: int, program: Path) -> bool:
    with program.open("rb") as ours:
        if os.fstat(ours.fileno()).st_size != os.fstat(fd).st_size:
            return False
        while True:
            one, other = ours.read(_CHUNK), _exactly(fd, _CHUNK)
            if one != other:
                return False
            if not one:
                return True


def _exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data
