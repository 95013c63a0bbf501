"""The socket that an agent listens at: systemd's, or one of its own at a path that launchers know."""

import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from base.kernel import unix_sockets
from base.state import trust

SOCKET: Final = "/run/hpn/agent.sock"
_FIRST_PASSED: Final = 3  # man 3 sd_listen_fds
_BACKLOG: Final = 512
_ENDING: Final = 5.0  # seconds that the workers of an agent that was killed may take to end


class Unusable(Exception):
    """The agent cannot listen there; the message says what to do."""


@contextmanager
def listener(arguments: Sequence[str]) -> Iterator[tuple[socket.socket, str]]:
    """The socket, and a description of its place for people.  Raises Unusable."""
    if passed := take_passed():
        with passed:
            yield passed, f"systemd's socket {passed.getsockname()}"
        return
    path = _choose_path(arguments)
    try:
        sock = bind(path)
    except OSError as e:
        raise Unusable(f"{path}: {e.strerror or e}") from e
    with sock:
        ours = path.lstat().st_ino
        yield sock, str(path)
        # Another agent may have taken the path meanwhile.
        with suppress(FileNotFoundError):
            if path.lstat().st_ino == ours:
                path.unlink()


def _choose_path(arguments: Sequence[str]) -> Path:
    """Where launchers look: HPN_AGENT, unless the command line names another path."""
    key, path = ("--socket", arguments[1]) if arguments else ("HPN_AGENT", os.environ.get("HPN_AGENT", SOCKET))
    if not path:
        raise Unusable(f"{key} is empty, so launchers ask no agent; set it to a path, or unset it for {SOCKET}")
    if not path.startswith("/"):
        raise Unusable(f"{key}={path} is not an absolute path; launchers run in other directories; set one")
    return Path(path)


def take_passed() -> socket.socket | None:
    """The socket that systemd made and passed on, if it did (man 3 sd_listen_fds)."""
    # guard below: passed-to-us ("LISTEN_PID")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_PASSED, False)  # noqa: FBT003
    return socket.socket(fileno=_FIRST_PASSED)


def bind(path: Path) -> socket.socket:
    """A socket of our own that root alone may connect to.  Raises Unusable, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if weak := trust.weak_spot(str(path.parent)):  # guard: weak-spot
        why, remedy = weak
        raise Unusable(f"{path}: {why}, and put a socket of their own there; {remedy}; or choose another path")
    _make_room(path)
    return unix_sockets.listen(path, _BACKLOG)


def _make_room(path: Path) -> None:
    """Remove the socket of an agent that was killed, and nothing else.  Raises Unusable, OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):  # guard: a-socket
        raise Unusable(f"{path} is there and is no socket; remove it, or choose another path")
    deadline = time.monotonic() + _ENDING
    while (process := _listening(path)) is not None:
        if not _has_ended(process) or time.monotonic() > deadline:
            raise Unusable(f"{path} is in use by another agent; stop that one, or choose another path")
        time.sleep(0.01)
    path.unlink()


def _listening(path: Path) -> int | None:
    """The process that listens at the path: the one that began to, whoever has the socket now (man 7 unix,
    SO_PEERCRED); 0 if it cannot be told, None if nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003  # a full queue is an agent that is alive
        refused = probe.connect_ex(str(path))
        if refused == errno.ECONNREFUSED:  # guard: an-agent-is-there = True
            return None
        if refused:
            return 0
        size = struct.calcsize("=iII")  # struct ucred: process, user, group
        process, *_ = struct.unpack("=iII", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(process)


def _has_ended(process: int) -> bool:
    """Whether that process is no more.  Then its workers, which have its socket too, are about to end."""
    if not process:
        return False
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
