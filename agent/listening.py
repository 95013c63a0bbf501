"""The agent's listening socket: systemd's, or its own at a path that launchers know."""

import errno
import os
import socket
import stat
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
_ENDING: Final = 5.0  # seconds for the workers of a killed agent to end


class Unusable(Exception):
    """The agent cannot listen there; the message has the remedy."""


@contextmanager
def listener(arguments: Sequence[str]) -> Iterator[tuple[socket.socket, str]]:
    """The socket, and its place for messages.  Raises Unusable."""
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
        # Another agent may use the path by now.
        with suppress(FileNotFoundError):
            if path.lstat().st_ino == ours:
                path.unlink()


def _choose_path(arguments: Sequence[str]) -> Path:
    """The path from the command line, else HPN_AGENT, which launchers use."""
    key, path = ("--socket", arguments[1]) if arguments else ("HPN_AGENT", os.environ.get("HPN_AGENT", SOCKET))
    if not path:
        raise Unusable(f"{key} is empty, so launchers ask no agent; set it to a path, or unset it for {SOCKET}")
    if not path.startswith("/"):
        raise Unusable(f"{key}={path} is not an absolute path; launchers run in other directories; set one")
    return Path(path)


def take_passed() -> socket.socket | None:
    """The socket passed by systemd, if any (man 3 sd_listen_fds)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_PASSED, False)  # noqa: FBT003
    return socket.socket(fileno=_FIRST_PASSED)


def bind(path: Path) -> socket.socket:
    """Create a socket that only root can connect to.  Raises Unusable, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if weak := trust.weak_spot(str(path.parent)):
        why, remedy = weak
        raise Unusable(f"{path}: {why}, and put a socket of their own there; {remedy}; or choose another path")
    _make_room(path)
    return unix_sockets.listen(path, _BACKLOG)


def _make_room(path: Path) -> None:
    """Remove the socket of a killed agent, and nothing else.  Raises Unusable, OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise Unusable(f"{path} exists and is not a socket; remove it, or choose another path")
    deadline = time.monotonic() + _ENDING
    while (process := _listening(path)) is not None:
        if not _has_ended(process) or time.monotonic() > deadline:
            raise Unusable(f"{path} is in use by another agent; stop that one, or choose another path")
        time.sleep(0.01)
    path.unlink()


def _listening(path: Path) -> int | None:
    """The process id that called listen(2) for the path (man 7 unix, SO_PEERCRED); 0 if unknown, None without one.

    Another process may hold the socket by now.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003  # a full queue proves a living agent
        refused = probe.connect_ex(str(path))
        if refused == errno.ECONNREFUSED:
            return None
        if refused:
            return 0
        return unix_sockets.peer(probe)[0]


def _has_ended(process: int) -> bool:
    """Whether the process has ended.  Then its workers, which share its socket, end soon."""
    if not process:
        return False
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
