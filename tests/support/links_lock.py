"""Hold the kernel's one lock of links (rtnl_lock) as long as a test needs.

A process that makes or removes thousands of links holds it for seconds.  Here a thread holds it: the kernel keeps the
lock while it reads an ioctl's argument (SIOCETHTOOL).  A page of that argument is missing until we provide it (man 2
userfaultfd).
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_UFFD_API, _UFFDIO_API, _UFFDIO_REGISTER, _UFFDIO_ZEROPAGE = 0xAA, 0xC018AA3F, 0xC020AA00, 0xC020AA04
_MISSING = 1
_SIOCETHTOOL, _ETHTOOL_GSTRINGS = 0x8946, 0x1B
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def held() -> Iterator[None]:
    """Hold the lock; skip the test if the kernel does not permit that."""
    faults = _libc.syscall(_SYS_USERFAULTFD[platform.machine()], os.O_CLOEXEC)
    if faults < 0:
        pytest.skip(f"userfaultfd: {errno.errorcode[ctypes.get_errno()]}")
    memory = mmap.mmap(-1, 2 * _PAGE)
    view = ctypes.c_char.from_buffer(memory)
    second = ctypes.addressof(view) + _PAGE
    # struct ethtool_gstrings: the kernel reads the command first, and the rest under the lock.
    memory[_PAGE - 4 : _PAGE] = struct.pack("=I", _ETHTOOL_GSTRINGS)
    request = struct.pack("=16sQ16x", b"lo", second - 4)

    def ask() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
            fcntl.ioctl(sock, _SIOCETHTOOL, request)

    asking = threading.Thread(target=ask)
    try:
        fcntl.ioctl(faults, _UFFDIO_API, bytearray(struct.pack("=QQQ", _UFFD_API, 0, 0)))
        fcntl.ioctl(faults, _UFFDIO_REGISTER, bytearray(struct.pack("=QQQQ", second, _PAGE, _MISSING, 0)))
        asking.start()
        os.read(faults, 32)  # the page fault: the thread holds the lock from here on
        yield
    finally:
        if asking.ident:
            fcntl.ioctl(faults, _UFFDIO_ZEROPAGE, bytearray(struct.pack("=QQQq", second, _PAGE, 0, 0)))
            asking.join()
        os.close(faults)
        del view
        memory.close()


@contextmanager
def held_for(seconds: float, pause: float = 0.0) -> Iterator[None]:
    """Hold the lock for so many seconds from the beginning; with a pause, repeat after each pause until the end."""
    over, has_it = threading.Event(), threading.Event()

    def hold() -> None:
        while True:
            with held():
                has_it.set()
                over.wait(seconds)
            if not pause or over.wait(pause):
                return

    with held():  # skips the test if the kernel does not permit it
        pass
    holding = threading.Thread(target=hold)
    holding.start()
    has_it.wait()
    try:
        yield
    finally:
        over.set()
        holding.join()
