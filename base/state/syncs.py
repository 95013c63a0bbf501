"""Syncs of several files at once: a disk takes as long for eight as for one, if they do not wait for each other.

A command that serves several attachments collects their syncs during a step, and waits for all at the step's end.  So
nothing that a later step does, and no answer, comes before what it relies on is on disk.
"""

import os
from _thread import _local  # threading.local, as in base/kernel/budget.py
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from base.protocol.errors import IoFailure


class _Collected(_local):
    # Descriptors of our own, by file; None while nothing is collected.
    files: dict[tuple[int, int], tuple[int, str]] | None = None


_collected = _Collected()


@contextmanager
def together() -> Iterator[None]:
    """Collect the syncs of the body, and carry them out at its end.  Raises IoFailure if one fails.  If the body
    raises, they are carried out too, and its error passes through."""
    _collected.files, files = {}, dict[tuple[int, int], tuple[int, str]]()
    try:
        yield
    except BaseException:
        files, _collected.files = _collected.files or {}, None
        _sync_all(files)
        raise
    files, _collected.files = _collected.files or {}, None
    if failures := _sync_all(files):
        path, error = failures[0]
        raise IoFailure(f"syncing {path}: {error.strerror}; its directory must be writable and have room")


def data(fd: int, path: str) -> None:
    """Sync a file's data, now or at the end of ``together``.  Raises OSError if that is now."""
    if _collected.files is None:
        os.fdatasync(fd)
        return
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) not in _collected.files:
        _collected.files[found.st_dev, found.st_ino] = os.dup(fd), path


def _sync_all(files: dict[tuple[int, int], tuple[int, str]]) -> list[tuple[str, OSError]]:
    """Sync the files and close their descriptors; return the failures."""
    failures = list[tuple[str, OSError]]()

    def sync(fd: int, path: str) -> None:
        try:
            os.fdatasync(fd)  # guard: all-files
        except OSError as e:
            failures.append((path, e))
        finally:
            os.close(fd)

    first, *others = [*files.values()] or [(-1, "")]
    threads = [Thread(target=sync, args=one, name="sync") for one in others]
    for thread in threads:
        thread.start()
    if first[0] >= 0:
        sync(*first)
    for thread in threads:
        thread.join()
    return failures
