"""The mounts of the host's first process, for a container in a pod with hostPID (man 7 mount_namespaces)."""

import ctypes
import os
from typing import Final

_CLONE_NEWNS: Final = 0x20000
_NEEDED: Final = "the pod needs hostPID, and the container the capabilities SYS_ADMIN, SYS_CHROOT and SYS_PTRACE"
_libc = ctypes.CDLL(None, use_errno=True)


class NotEntered(Exception):
    """The host's mounts cannot be entered; the message has the remedy."""


def enter() -> None:
    """Enter them, for the rest of this process, which must have one thread.  Raises NotEntered.

    Modules can still be imported, because the program opens them through a descriptor.
    """
    try:
        there = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    except OSError as e:
        raise NotEntered(f"/proc/1/ns/mnt: {e.strerror}; {_NEEDED}") from e
    try:
        if os.fstat(there).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            raise NotEntered(f"process 1 has the same mounts as this one, so it is not the host's; {_NEEDED}")
        if _libc.setns(there, _CLONE_NEWNS):
            raise NotEntered(f"setns: {os.strerror(ctypes.get_errno())}; {_NEEDED}")
    finally:
        os.close(there)
