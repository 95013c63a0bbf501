"""The host's mounts, entered by an agent in a container: it sees its files then as one that systemd starts."""

import ctypes
import os
from typing import Final

from agent.listening import Unusable

_CLONE_NEWNS: Final = 0x20000
_NEEDED: Final = "the pod needs hostPID, and the container the capabilities SYS_ADMIN, SYS_CHROOT and SYS_PTRACE"
_libc = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Enter the mount namespace of the host's first process.  Raises Unusable.

    Only from there can it be proven which pods are dead, also by the next agent, and only there can /sys and /proc/sys
    be written to.  What the program itself has not loaded yet is found all the same, by an open descriptor.
    """
    try:
        there = os.open("/proc/1/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise Unusable(f"--host: /proc/1/ns/mnt: {e.strerror}; {_NEEDED}") from e
    try:
        if os.fstat(there).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            raise Unusable(f"--host: process 1 has the same mounts as this one, so it is not the host's; {_NEEDED}")
        if _libc.setns(there, _CLONE_NEWNS):
            raise Unusable(f"--host: setns: {os.strerror(ctypes.get_errno())}; {_NEEDED}")
    finally:
        os.close(there)
