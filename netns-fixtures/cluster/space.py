"""A set of namespaces, identified by its first process; commands run in it, and may leave processes there."""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

CGROUPS = Path("/sys/fs/cgroup")
T = TypeVar("T")
# The host's own directories, without our variables: HPN_PROGRAM_DIR would make hpn unpack into the machine's directory.
PATH = "/opt/cni/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/run/home", "TMPDIR": "/run/tmp", "LANG": "C.UTF-8"}
_PEER = struct.Struct("3i")
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """The cluster did not reach the requested state."""


class Space:
    """Namespaces of every kind except user.  The kernel ends all processes there when the first process ends."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid  # its number in the machine

    def command(self, *argv: str) -> list[str]:
        """The command that runs argv there."""
        return ["nsenter", f"--target={self.pid}", "--all", "--wdns=/", "--", *argv]

    def run(
        self, *argv: str, stdin: str | None = None, check: bool = True, timeout: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Run argv there.  Raises Failed if it fails and ``check`` is true."""
        words = self.command(*argv)
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=ENVIRONMENT
        )
        if check and done.returncode:
            output = (done.stderr + done.stdout).strip()
            raise Failed(f"{self.name}: {' '.join(argv)}: exit {done.returncode}: {output}")
        return done

    def spawn(self, script: str, *argv: str) -> str:
        """Run a shell script that leaves a process running: the first process there becomes its parent."""
        return self.run("sh", "-ec", script, "sh", *argv).stdout.strip()

    def alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def kill(self) -> None:
        """Kill all processes there at once, and wait until they have ended."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.alive(), f"{self.name} to end", 60)


@contextmanager
def inside(pid: int) -> Iterator[None]:
    """Put this thread's new sockets into that process's network namespace."""
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{pid}/ns/net") as there:
        assert _libc.setns(there.fileno(), 0) == 0
        try:
            yield
        finally:
            assert _libc.setns(own.fileno(), 0) == 0


class Doorbell:
    """A socket on which a new space's first process reports that it is up; the connection identifies the process."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()

    def wait(self, name: str, log: Path, patience: float = 60) -> Space:
        """The space.  Raises Failed, with the log's text, if no process connects in time."""
        self._socket.settimeout(patience)
        try:
            ringing, _ = self._socket.accept()
        except TimeoutError:
            raise Failed(f"{name} did not come up: {log.read_text()}") from None
        finally:
            self._socket.close()
            self._path.unlink()
        with ringing:  # the kernel translates the number to our namespace's (unix(7), SO_PEERCRED)
            pid, _, _ = _PEER.unpack(ringing.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return Space(name, pid)


def ring(path: str) -> None:
    """Report that this process is up."""
    with socket.socket(socket.AF_UNIX) as bell:
        bell.connect(path)


def until(true: Callable[[], T], what: str, patience: float, pause: float = 0.05) -> T:
    """Wait until the result is true, and return it.  Raises Failed."""
    deadline = time.monotonic() + patience
    while not (answer := true()):
        if time.monotonic() > deadline:
            raise Failed(f"waited {patience:.0f} s for {what}")
        time.sleep(pause)
    return answer


def make_cgroup(name: str) -> None:
    """Make a cgroup of that name, which may be a path, in every hierarchy of version 1; processes may enter."""
    for hierarchy in hierarchies():
        path = hierarchy
        for part in Path(name).parts:
            path /= part
            path.mkdir(exist_ok=True)
            # A new cpuset has no processor, and accepts no process.
            for file in path.glob("cpuset.[cm][pe][um]s"):
                file.write_text((path.parent / file.name).read_text())


def remove_cgroup(name: str) -> None:
    """Remove the cgroup and all cgroups in it, when the last process has left."""

    def removed(directory: str) -> bool:
        try:
            Path(directory).rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # its process has ended, but still exists
            return False
        return True

    for hierarchy in hierarchies():
        for directory, _, _ in os.walk(hierarchy / name, topdown=False):
            until(lambda path=directory: removed(path), f"processes to leave {directory}", 20)


def hierarchies() -> list[Path]:
    """The mount points of cgroups of version 1."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(where) for _, where, kind, *_ in mounts if kind == "cgroup"]


def said(stream: IO[str], process: "subprocess.Popen[str]", words: Sequence[str]) -> str:
    """The stream's next line.  Raises Failed if it ended without one."""
    if line := stream.readline():
        return line.strip()
    raise Failed(f"{' '.join(words)} ended with {process.wait()}")
