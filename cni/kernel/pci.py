"""Drivers of PCI functions (Documentation/ABI/testing/sysfs-bus-pci, sysfs-driver)."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

_POLL: Final = 0.01
_DEVICES: Final = "/sys/bus/pci/devices"


def rebind(address: str, driver: str, seconds: float) -> None:
    """Take the function from its driver, if it has one, and give it to this one.

    A driver may sleep in there for as long as it likes, and nothing wakes or kills a process that does: so a child
    goes, with a lock on the function's directory that it has until it is done, whatever becomes of us.  Raises
    OSError; TimeoutError if it takes longer, and it goes on.
    """
    deadline = time.monotonic() + seconds
    with _locked(address, deadline):
        child = os.fork()
        if not child:
            _rebind(address, driver)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        _past(deadline, address)
    if number := os.waitstatus_to_exitcode(status):
        raise OSError(number, f"{driver} does not take {address}: {os.strerror(number)}")


def wait(address: str, seconds: float) -> None:
    """Wait for whoever is rebinding the function.  Raises OSError, TimeoutError."""
    with _locked(address, time.monotonic() + seconds):
        pass


def _rebind(address: str, driver: str) -> NoReturn:
    """The child's part."""
    number = errno.EIO
    try:
        # Or the runtime would wait for its end: these are its pipes.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        with suppress(FileNotFoundError):  # it has no driver
            _write(f"{_DEVICES}/{address}/driver/unbind", address)
        _write(f"/sys/bus/pci/drivers/{driver}/bind", address)
        number = 0
    except OSError as e:
        number = e.errno or number
    finally:
        os._exit(number)


@contextmanager
def _locked(address: str, deadline: float) -> Iterator[None]:
    """The lock is the open file's: a child that is forked inside has it, too, and after us."""
    fd = os.open(f"{_DEVICES}/{address}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _past(deadline, address)
        yield
    finally:
        os.close(fd)


def _past(deadline: float, address: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"the driver of {address} has not let go of it, or not taken it again")
    time.sleep(_POLL)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
