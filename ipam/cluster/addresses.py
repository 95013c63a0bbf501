"""The addresses of a server's name, looked up for a bounded time.

getaddrinfo takes as long as /etc/resolv.conf and /etc/nsswitch.conf let it: half a minute and more, if no name server
answers.  So a process of its own asks, and is killed when the time is over.  The kernel ends it then also if we are
killed meanwhile, and it has no file of ours open, so it holds none of our locks.
"""

import json
import os
import select
import signal
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from ipam.cluster.answers import left

_PIECE: Final = 1 << 16


class NotFound(OSError):
    """The name has no address, or it could not be looked up in time; the message says which."""


def of(host: str, deadline: float) -> list[str]:
    """The host's addresses, in the order in which they are to be tried.  Raises NotFound, OSError."""
    with suppress(ValueError):
        return [f"{ip_address(host)}"]
    try:
        name = host.encode("idna")  # here, as the other process can import nothing
    except ValueError as e:
        raise NotFound(f"the name {host} could not be looked up: {e}") from e
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        _tell(name, writable, left(deadline))
    os.close(writable)
    try:
        return _heard(host, readable, deadline)
    finally:
        os.close(readable)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # guard: killed
        with suppress(ChildProcessError):  # whoever started us has SIGCHLD ignored
            os.waitpid(pid, 0)


def _tell(name: bytes, writable: int, seconds: float) -> None:
    """Look up, tell and end: for the process that was forked."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # where nobody is left to kill it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        os.dup2(writable, 0)
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                os.close(int(fd) or -1)
        try:
            found: object = [one[4][0] for one in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        except (OSError, ValueError) as e:
            found = getattr(e, "strerror", None) or str(e)
        os.write(0, json.dumps(found).encode())
    finally:
        os._exit(0)


def _heard(host: str, readable: int, deadline: float) -> list[str]:
    said, waiting = b"", select.poll()
    waiting.register(readable, select.POLLIN)
    while waiting.poll(1000 * left(deadline)):  # guard: deadline = waiting.poll()
        piece = os.read(readable, _PIECE)
        if not piece:
            break
        said += piece
    else:
        raise NotFound(f"the name {host} could not be looked up in time")
    found = json.loads(said) if said else "the process that looked it up has ended"
    if not isinstance(found, list) or not found:
        raise NotFound(f"the name {host} could not be looked up: {found}")
    return list(dict.fromkeys(found))
