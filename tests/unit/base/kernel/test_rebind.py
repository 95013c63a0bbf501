"""Rebinding a function to its driver, by a process that must not end halfway."""

import errno
import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest
from support.topology import until

from base.kernel import pci

ADDRESS = "0000:3b:00.2"


def opened(folder: Path) -> int:
    """The file of the function's lock."""
    return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)


def test_a_users_lock_of_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user and every pod can open the function's directory in /sys."""
    (tmp_path / ADDRESS / "driver").mkdir(parents=True)
    monkeypatch.setattr(pci, "_DEVICES", f"{tmp_path}")
    theirs = os.open(tmp_path / ADDRESS, os.O_RDONLY)
    fcntl.flock(theirs, fcntl.LOCK_EX)
    try:
        pci.wait(ADDRESS, 0, opened(tmp_path))
        with pytest.raises(OSError, match="no-such-driver does not accept"):
            pci.rebind(ADDRESS, "no-such-driver", 60, opened(tmp_path))
    finally:
        os.close(theirs)


def test_whoever_is_to_end_finishes_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unbind = tmp_path / ADDRESS / "driver/unbind"
    unbind.parent.mkdir(parents=True)
    os.mkfifo(unbind)  # a slow driver
    monkeypatch.setattr(pci, "_DEVICES", f"{tmp_path}")
    with pytest.raises(TimeoutError):
        pci.rebind(ADDRESS, "no-such-driver", 0, opened(tmp_path))
    (child,) = map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())
    until(lambda: f"{Path(f'/proc/{child}/fd/1').readlink()}" == os.devnull)
    os.kill(child, signal.SIGTERM)
    ready = os.open(unbind, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _, status = os.waitpid(child, 0)
        # It continued with bind, for which there is no driver.
        assert os.waitstatus_to_exitcode(status) == errno.ENOENT
        assert os.read(ready, 4096) == ADDRESS.encode()
    finally:
        os.close(ready)
