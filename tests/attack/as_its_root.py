"""Run a script as root of a network namespace's user namespace: `python as_its_root.py NETNS SCRIPT ARG...`.

A container of a pod with ``hostUsers: false`` runs so, except for its files: on the host its user has no privileges.
"""

import ctypes
import fcntl
import os
import sys
from pathlib import Path

NS_GET_USERNS = 0xB701  # man 2 ioctl_ns


def enter(path: str) -> None:
    """Enter the user namespace last: it grants all capabilities there and removes those of the host."""
    libc = ctypes.CDLL(None, use_errno=True)
    net = os.open(path, os.O_RDONLY)
    for fd in (net, fcntl.ioctl(net, NS_GET_USERNS)):
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


if __name__ == "__main__":
    _, netns, script, *_ = sys.argv
    # Read the script first: afterwards the file may be out of reach.
    code = compile(Path(script).read_text(), script, "exec")
    enter(netns)
    del sys.argv[:2]
    exec(code)  # a script of these tests
