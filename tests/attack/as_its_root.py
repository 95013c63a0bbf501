"""Run a script as root of the user namespace that has a network namespace: `python as_its_root.py NETNS SCRIPT ARG...`.

This is what a container of a pod with ``hostUsers: false`` is, but for its files: on the host it is nobody.
"""

import ctypes
import fcntl
import os
import sys
from pathlib import Path

NS_GET_USERNS = 0xB701  # man 2 ioctl_ns


def enter(path: str) -> None:
    """Its user namespace last, which gives all capabilities there and takes those of here."""
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
    # Read before: afterwards the file may be out of reach.
    code = compile(Path(script).read_text(), script, "exec")
    enter(netns)
    del sys.argv[:2]
    exec(code)  # a script of these tests
