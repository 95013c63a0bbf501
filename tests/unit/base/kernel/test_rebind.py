"""Rebinding a function to its driver, by a process that must not end halfway."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
from support.topology import until

from base.kernel import pci

ADDRESS = "0000:3b:00.2"


def test_whoever_is_to_end_finishes_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unbind = tmp_path / ADDRESS / "driver/unbind"
    unbind.parent.mkdir(parents=True)
    os.mkfifo(unbind)  # a slow driver
    monkeypatch.setattr(pci, "_DEVICES", f"{tmp_path}")
    with pytest.raises(TimeoutError):
        pci.rebind(ADDRESS, "no-such-driver", 0)
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
