"""What a confined process can still do: use its open files, wait, and allocate memory."""

import os
import platform
import subprocess
import sys

import pytest

from base.kernel import confinement

SCRIPT = """
import os, select, socket, time
from base.kernel.confinement import confine
ours, theirs = socket.socketpair()
reader = os.open("/dev/null", os.O_RDONLY)
confine()
theirs.send(b"x")
poll = select.poll(); poll.register(ours, 1)
assert poll.poll(1000) and ours.recv(9) == b"x" and os.read(reader, 1) == b""
many = [bytes(1 << 20) for _ in range(64)]
time.sleep(0.001)
refused = {
    "open": lambda: os.open("/dev/null", os.O_RDONLY),
    "socket": lambda: socket.socket(),
    "connect": lambda: ours.connect("/nowhere"),
    "kill": lambda: os.kill(os.getppid(), 0),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "unlink": lambda: os.unlink("/nowhere"),
    "chroot": lambda: os.chroot("/"),
    "setuid": lambda: os.setuid(0),
}
for name, act in refused.items():
    try:
        act()
    except PermissionError:
        continue
    os.write(2, name.encode()); os._exit(3)
os._exit(0)
"""


@pytest.mark.skipif(platform.machine() not in confinement._ARCHITECTURES, reason="no list for this architecture")
def test_what_is_left() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_unknown_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "", "", "", "s390x")))
    with pytest.raises(OSError, match="the system calls of s390x are not known"):
        confinement.confine()
