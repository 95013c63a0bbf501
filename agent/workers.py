"""hpn agent's processes: workers that answer, each a Server of its own on the one listener, and one that keeps them.

They are forked when all is imported and warm, and share the memory that stays as it was.
"""

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from agent.server import Answer, Server

# Threads of one process take its interpreter from each other at every system call: two of them do the work of one.
WORKERS: Final = 2
# Seconds from a worker's start to that of the one for it, at least: where none can live the machine has other work.
PAUSE: Final = 1.0
_STOP: Final = (signal.SIGTERM, signal.SIGINT)
_AWAITED: Final = (*_STOP, signal.SIGCHLD)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def serve(listener: socket.socket, version: str, answer: Answer) -> None:
    """Answer until SIGTERM or SIGINT, and then until all that had connected is answered.

    For a process with one thread that ends after it: the signals stay blocked.
    """
    # Blocked and waited for, not handled: so none comes between a fork and the parent's or the child's being ready.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where our parent ignored it, it would never come
    alive, due, stopping = dict[int, float](), [0.0] * WORKERS, False
    while alive or not stopping:
        now = time.monotonic()
        while not stopping and due and min(due) <= now:
            due.remove(min(due))
            try:
                alive[_started(listener, version, answer)] = now
            except OSError as e:
                _say(f"no worker can be started: {e.strerror}")
                due.append(now + PAUSE)
        if stopping or not due:
            number = signal.sigwaitinfo(_AWAITED).si_signo
        else:
            awaited = signal.sigtimedwait(_AWAITED, min(due) - now)
            number = awaited.si_signo if awaited else 0
        if number in _STOP:
            stopping = True
            for pid in alive:
                os.kill(pid, signal.SIGTERM)
        for pid, how in _ended(alive):
            due.append(alive.pop(pid) + PAUSE)
            if how or not stopping:
                _say(f"worker {pid} ended by {f'signal {-how}' if how < 0 else f'status {how}'}")


def _started(listener: socket.socket, version: str, answer: Answer) -> int:
    """Its process.  Raises OSError."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        # Nobody would stop it else, and an agent that was killed would go on.  Its parent may be gone already.
        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() == parent:
            server = Server(listener, version, answer)
            signal.signal(signal.SIGTERM, lambda *_: server.stop())
            # Ctrl-C is for the whole group, and the parent says what it means.  Not SIG_IGN: programs would inherit it.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            server.serve()
        status = 0
    except Exception:  # noqa: BLE001  # whatever it is, it must not go on as a second parent
        traceback.print_exc()
    finally:
        os._exit(status)


def _ended(alive: Collection[int]) -> Iterator[tuple[int, int]]:
    """Those that have, with their exit status or minus the signal.  As a container's first process, others' too."""
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in alive:
            yield pid, os.waitstatus_to_exitcode(status)


def _say(text: str) -> None:
    with suppress(OSError):  # whoever listened may be gone, and that is not what this process is for
        sys.stderr.write(f"hpn agent: {text}\n")
