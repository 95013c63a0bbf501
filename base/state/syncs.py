"""Syncs of several files at once: a disk takes as long for eight as for one, if they do not wait for each other.

A command that serves several attachments collects their syncs, begins those of a step when it ends, and waits for all
before its answer.  Until then only the loss of power could take back what is not on disk, and it ends the pod too.
"""

import os
from _thread import LockType, _local, allocate_lock, start_new_thread  # Thread.start() waits until the thread runs
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from base.protocol.errors import IoFailure


class Syncs:
    """The syncs of one command."""

    def __init__(self) -> None:
        # By device and inode: a descriptor of ours, and the path for messages.
        self._collected = dict[tuple[int, int], tuple[int, str]]()
        self._running, self._failures = list[LockType](), list[str]()

    def collect(self, fd: int, path: str) -> None:
        """Leave a file's sync to the next ``begin``.  Raises OSError."""
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) not in self._collected:
            self._collected[found.st_dev, found.st_ino] = os.dup(fd), path

    def begin(self, *, waits: bool = False) -> None:
        """Begin the syncs that were collected since the last call.  Sync now where no thread can be started; and the
        last one, if the caller ``waits`` anyway."""
        while self._collected:
            _, (fd, path) = self._collected.popitem()
            running = allocate_lock()
            running.acquire()
            self._running.append(running)
            with suppress(RuntimeError):  # the limit of processes, as of a pod or the node
                if self._collected or not waits:
                    start_new_thread(self._sync, (fd, path, running))
                    continue
            self._sync(fd, path, running)

    def wait(self) -> None:
        """Wait for all syncs.  Raises IoFailure if one has failed."""
        self.begin(waits=True)
        for running in self._running:
            running.acquire()
        self._running.clear()
        if self._failures:
            raise IoFailure(self._failures[0])

    def _sync(self, fd: int, path: str, running: LockType) -> None:
        try:
            os.fdatasync(fd)
        except OSError as e:
            why = f"syncing {path}: {e.strerror}; its directory must be writable and have room"
            self._failures.append(why)
        finally:
            os.close(fd)
            running.release()


class _Current(_local):
    syncs: Syncs | None = None


_current = _Current()


@contextmanager
def collected() -> Iterator[Syncs]:
    """Collect this thread's syncs of the body.  Call ``Syncs.wait`` before the body's end."""
    _current.syncs = syncs = Syncs()
    try:
        yield syncs
    finally:
        _current.syncs = None
        with suppress(IoFailure):  # after another failure, which is the error
            syncs.wait()


def data(fd: int, path: str) -> None:
    """Sync a file's data, or leave that to ``collected``.  Raises OSError."""
    if _current.syncs:
        _current.syncs.collect(fd, path)
    else:
        os.fdatasync(fd)
