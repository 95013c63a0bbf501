"""hpn agent: the plugin and its IPAM, kept warm for launchers of the same version."""

import gc
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent import idle, workers
from cni import collect, commands, config, models  # noqa: F401  # what a request would import otherwise
from cni.main import run
from cni.spec import Reply, Request
from ipam import main as ipam
from ipam.config import Conf as IpamConf
from ipam.stores import files  # noqa: F401

SOCKET: Final = "/run/hpn/agent.sock"
_FIRST_PASSED: Final = 3  # man 3 sd_listen_fds
_BACKLOG: Final = 512
HELP: Final = f"""\
usage: hpn agent [--socket PATH]

Answers the CNI requests of this version of hpn from warm processes, until SIGTERM.  Launchers look for it at
$HPN_AGENT, by default {SOCKET}.  A socket passed by systemd is used instead.
"""


def main(arguments: Sequence[str], version: str) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    match arguments:
        case []:
            path = SOCKET
        case ["--socket", given] if given.startswith("/"):
            path = given
        case _:
            sys.stderr.write(HELP)
            return 0 if arguments in (["--help"], ["help"]) else 2
    listener = _passed()
    given_by_systemd = listener is not None
    try:
        listener = listener or _bound(Path(path))
    except OSError as e:
        sys.stderr.write(f"hpn agent: {path}: {e.strerror}\n")
        return 1
    # Here, where there is one thread: a plugin's process makes what it validates by when it needs it.
    for model in (*models.MODELS.values(), IpamConf):
        model.model_rebuild()
    # What ps, top and systemctl call it; they would say ld-hpn.so.2, what it was started by (packaging/launcher).
    Path("/proc/self/comm").write_text("hpn-agent")
    # None of what is there now is garbage.  Looking through it takes 4 ms each time, and copies it for every worker.
    gc.freeze()
    with listener:
        workers.serve(listener, version, answer, idle.reclaim)
        if not given_by_systemd:
            Path(path).unlink(missing_ok=True)
    return 0


def answer(as_ipam: bool, request: Request) -> Reply:  # noqa: FBT001  # a frame's flag
    """As ctl's entry decides by its name."""
    return ipam.run(request) if as_ipam else run(request, {"hpn-ipam": ipam.ask})


def _passed() -> socket.socket | None:
    """The socket that systemd made (man 3 sd_listen_fds)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_PASSED, False)  # noqa: FBT003
    return socket.socket(fileno=_FIRST_PASSED)


def _bound(path: Path) -> socket.socket:
    """A socket of our own that root alone may connect to.  Raises OSError, EADDRINUSE if an agent answers there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(FileNotFoundError):
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()  # of one that was killed
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    return listener
