"""Small file systems for tests that need a full or a read-only one, and a limit of a file's length."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def mounted(folder: Path, size: str = "1m", kind: str = "tmpfs") -> Iterator[Path]:
    """Mount a small file system at this folder: in memory, or in an image file beside it."""
    folder.mkdir()
    source, options = "tmpfs", f"size={size}"
    if kind != "tmpfs":
        source, options = f"{folder}.image", "loop"
        _run("truncate", "--size", size, source)
        _run(f"mkfs.{kind}", "-q", "-m", "0", source)
    _run("mount", "-t", kind, "-o", options, source, str(folder))
    try:
        yield folder
    finally:
        _run("umount", str(folder))


def filled(folder: Path) -> Path:
    """Fill the file system; return the file that takes all the room."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as f:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    f.write(bytes(size))
        os.fsync(f.fileno())
    return filler


def read_only(folder: Path) -> None:
    """Remount a ``mounted`` folder read-only."""
    _run("mount", "-o", "remount,ro", str(folder))


def writable(folder: Path) -> None:
    """Remount the folder writable."""
    _run("mount", "-o", "remount,rw", str(folder))


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """As on a full disk, even for root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
