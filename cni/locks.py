"""Alone in what a file stands for, among processes and among the threads of one (man 2 flock)."""

import os
import time
from typing import Final, Self

from filelock import lock_descriptor

from cni.errors import TryAgain

# Seconds between looks.  What a lock is held for mostly takes less than one; a pod's VF may take a thousand.
_POLL: Final = 0.0005
_POLL_MOST: Final = 0.005


class Lock:
    """A file's lock, from its making to the end of its ``with``, or to its release before that."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, patience: float) -> None:
        """The file is made where there is none.  Raises TryAgain after ``patience`` seconds, OSError."""
        # Opened for every use: flock excludes whoever opened the file, so the threads of a process too.  filelock's
        # own objects do all this and more, at ten times the cost.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _take(self._fd, path, patience)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            self.release()

    def release(self) -> None:
        """Let others have it."""
        os.close(self._fd)
        self._fd = -1


def _take(fd: int, path: str, patience: float) -> None:
    deadline, pause = time.monotonic() + patience, _POLL
    while not lock_descriptor(fd, blocking=False):
        if time.monotonic() > deadline:
            raise TryAgain(f"{path} was held by others for {patience:g} s; try again, and see: lslocks")
        time.sleep(pause)
        pause = min(2 * pause, _POLL_MOST)
