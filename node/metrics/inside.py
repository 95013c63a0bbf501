"""/sys as a pod's namespace has it: in exclusive mode a pod's RDMA devices are there and nowhere else."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cni.kernel import fsmount, netns
from cni.state.record import Record

_REMARK: Final = "the RDMA devices of pods are not shown, because their namespaces may not be entered"


@contextmanager
def sysfs(record: Record, remark: Callable[[str], None]) -> Iterator[Path | None]:
    """The attachment's /sys; None if the namespace is not there, is another one by now, or may not be entered.

    ``remark`` is told of the last.  What helps against that is the caller's to say."""
    fd = _open(record, remark)
    try:
        yield None if fd < 0 else Path(f"/proc/self/fd/{fd}")
    finally:
        if fd >= 0:
            os.close(fd)


def _open(record: Record, remark: Callable[[str], None]) -> int:
    try:
        with netns.hold_open(record.netns) as fd:
            if (netns.inode(fd), netns.cookie_of(fd)) == (record.identity.inode, record.identity.cookie):
                return netns.run_in(fd, fsmount.sysfs)
    except OSError as e:
        if e.errno == errno.EPERM:
            remark(_REMARK)
    return -1
