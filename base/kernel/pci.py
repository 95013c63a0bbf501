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


def rebind(address: str, driver: str, seconds: float, lock: int) -> None:
    """Unbind the function at a PCI address ("0000:3b:00.2") from its driver, if any, and bind it to ``driver``.

    A driver may sleep in either step without limit, and nothing wakes or kills the sleeping process.  So a child does
    both, and holds the function's lock until it is done, even if this process ends.  ``lock`` is the open file of that
    lock, which this closes.

    Raises OSError; TimeoutError after ``seconds``, while the child continues.
    """
    deadline = time.monotonic() + seconds
    with _locked(address, deadline, lock):
        child = os.fork()
        if not child:
            _rebind(address, driver)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        _pause(deadline, address)
    if number := os.waitstatus_to_exitcode(status):
        raise OSError(number, f"{driver} does not accept {address}: {os.strerror(number)}")


def wait(address: str, seconds: float, lock: int) -> None:
    """Wait until no process is rebinding the function.  ``lock`` is as for ``rebind``.  Raises OSError; TimeoutError
    after ``seconds``."""
    with _locked(address, time.monotonic() + seconds, lock):
        pass


def _rebind(address: str, driver: str) -> NoReturn:
    """Rebind the function in the child; its exit status is the errno."""
    import signal  # noqa: PLC0415  # only here

    number = errno.EIO
    try:
        # systemd sends SIGTERM to all processes of a service that it stops; the function would lose its driver.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # These are the runtime's pipes; while the child holds them, the runtime waits for its end.
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
def _locked(address: str, deadline: float, fd: int) -> Iterator[None]:
    """Lock the open file, and close it.  Raises OSError, TimeoutError.  The lock belongs to the open file: a child that
    is forked inside holds it even after this process closes its own."""
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _pause(deadline, address)
        yield
    finally:
        os.close(fd)


def _pause(deadline: float, address: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"the driver of {address} has not released it, or has not taken it back")
    time.sleep(_POLL)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
