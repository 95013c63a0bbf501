"""A process that can start no thread, as where a pod or the node has reached its limit of processes."""

import os
import resource
from collections.abc import Callable

from base.child_process import Child

_NOBODY = 65534


def threadless() -> None:
    """Give up what exempts root from the limit, and set it to 0.  For a process of its own."""
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def without_threads(work: Callable[[], object]) -> object:
    """What ``work`` returns in a child process that can start no thread."""

    def limited() -> object:
        threadless()
        return work()

    return Child(limited).answer()
