"""hpn agent's processes: the workers, each with a Server on the shared listener, and their keeper.

The keeper forks them after all imports, so they share unchanged memory.
"""

import ctypes
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from agent.server import QUIET_SIGNAL, Activity, Answer, Server
from base.kernel import nsid
from base.kernel.syscalls import die_with_parent

# Threads of one process compete for its interpreter at every system call, so two of them do the work of one.
WORKERS: Final = 2
# Least seconds between two starts of one worker, so that workers that die at once do not keep the machine busy.
PAUSE: Final = 1.0
# Most seconds for idle work, because it may hold a lock that a request needs.
IDLE_MOST: Final = 60
# Most seconds that idle work waits: a runtime that sends STATUS every few seconds leaves no idle time.
OVERDUE: Final = 60.0
# Seconds until idle work runs again without a request, if its result demands it or it failed.
AGAIN: Final = 600.0
_NEVER: Final = float("inf")
_UNFINISHED: Final = 64  # exit status: idle work must run again
_STOP: Final = (signal.SIGTERM, signal.SIGINT)
_AWAITED: Final = (*_STOP, signal.SIGCHLD, QUIET_SIGNAL)
_M_ARENA_MAX: Final = -8  # malloc.h
_libc = ctypes.CDLL(None, use_errno=True)

# Returns whether it must run again without a request.
WhenIdle = Callable[[], bool]


def serve(listener: socket.socket, version: str, answer: Answer, when_idle: WhenIdle | None = None) -> None:
    """Answer until SIGTERM or SIGINT, then until every connected launcher has its answer.

    ``when_idle`` runs in a separate process after ``agent.server.QUIET`` seconds without a request, if there was one
    since its last call.  If requests leave no such pause, it runs OVERDUE seconds later.  It also runs AGAIN seconds
    after the agent's start, and after a call that returned true or failed.  Workers serve requests meanwhile.  The
    process is killed after IDLE_MOST seconds, and when the agent stops.

    The calling process must have one thread and end afterwards, because the signals stay blocked.
    """
    # man 3 mallopt.  By default each thread gets an arena, which keeps its peak size.  Only one thread runs in the
    # interpreter at a time, so one arena causes no contention.
    _libc.mallopt(_M_ARENA_MAX, 1)
    # Blocked and waited for, not handled, so that none arrives during a fork.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if our parent ignored it, it would never arrive
    _Keeper(listener, version, answer, when_idle).keep()


class _Keeper:
    """The first process: starts workers, replaces dead ones, and starts idle work when all of them are idle."""

    def __init__(self, listener: socket.socket, version: str, answer: Answer, when_idle: WhenIdle | None) -> None:
        self._listener, self._version, self._answer, self._when_idle = listener, version, answer, when_idle
        self._alive = dict[int, tuple[float, int]]()  # by process id: start time and place
        self._due = [(0.0, place) for place in range(WORKERS)]
        # A byte per worker: whether it is active, and whether it had a request since idle work last began.  An earlier
        # signal may arrive later.
        self._active, self._asked = mmap.mmap(-1, WORKERS), mmap.mmap(-1, WORKERS)
        self._idle_work, self._wanted = 0, _NEVER  # its process id; the time since when it is due
        self._again = time.monotonic() + AGAIN if when_idle else _NEVER  # when it is due without a request
        self._pid, self._stopping = os.getpid(), False

    def keep(self) -> None:
        """Run until a signal to stop, then until all workers have ended."""
        while self._alive or self._idle_work or not self._stopping:
            self._start_due()
            number = self._wait_for_signal()
            if number in _STOP:
                self._stopping = True
                for pid in filter(None, (*self._alive, self._idle_work)):
                    os.kill(pid, signal.SIGTERM)
            self._note_idle_work(is_quiet=number == QUIET_SIGNAL and any(self._asked[:]))
            self._replace_dead()
            self._start_idle_work()

    def _note_idle_work(self, *, is_quiet: bool) -> None:
        """Record that idle work is due: a worker is quiet, or the time ``_again`` has come."""
        now = time.monotonic()
        if is_quiet or now >= self._again:
            self._wanted = min(self._wanted, now) if self._when_idle else _NEVER
        if now >= self._again:
            self._again = _NEVER

    def _start_due(self) -> None:
        now = time.monotonic()
        while not self._stopping and self._due and min(self._due)[0] <= now:
            _, place = first = min(self._due)
            self._due.remove(first)
            try:
                self._alive[_fork(partial(self._work, place))] = now, place
            except OSError as e:
                report(f"no worker can be started: {e.strerror}")
                self._due.append((now + PAUSE, place))

    def _wait_for_signal(self) -> int:
        """Wait for a signal and return its number; 0 if a worker or idle work is due first."""
        work = [] if self._idle_work else [self._again, self._wanted + OVERDUE]
        until = min([when for when, _ in self._due] + work, default=_NEVER)
        if self._stopping or until == _NEVER:
            return signal.sigwaitinfo(_AWAITED).si_signo
        awaited = signal.sigtimedwait(_AWAITED, max(0, until - time.monotonic()))
        return awaited.si_signo if awaited else 0

    def _replace_dead(self) -> None:
        for pid, how in _reap():
            if pid == self._idle_work:
                is_reported = how not in (0, _UNFINISHED) and not self._stopping
                self._idle_work, what = 0, "idle work"
                self._again = time.monotonic() + AGAIN if how else _NEVER
            elif pid in self._alive:
                since, place = self._alive.pop(pid)
                self._due.append((since + PAUSE, place))
                self._active[place] = 0
                what, is_reported = f"worker {pid}", how != 0 or not self._stopping
            else:
                continue
            if is_reported:
                report(f"{what} ended by {f'signal {-how}' if how < 0 else f'status {how}'}")

    def _start_idle_work(self) -> None:
        """Start idle work if it is due, and if no worker is active or it is overdue."""
        now, work = time.monotonic(), self._when_idle
        if not work or self._wanted == _NEVER or self._idle_work or self._stopping:
            return
        if any(self._active[:]) and now - self._wanted < OVERDUE:  # an active one signals later
            return
        self._wanted, self._again = _NEVER, now + AGAIN
        self._asked[:] = bytes(WORKERS)
        with suppress(OSError):  # the next idle time is soon enough
            self._idle_work = _fork(partial(self._do_idle_work, work))

    def _do_idle_work(self, work: WhenIdle) -> int:
        """Run idle work, in its process."""
        # Otherwise launchers could connect to this process after the agent's end.
        self._listener.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        signal.alarm(IDLE_MOST)
        return _UNFINISHED if work() else 0

    def _work(self, place: int) -> None:
        """Run a worker, in its process."""
        nsid.leave_to_launcher()
        activity = Activity(self._active, self._asked, place, self._pid) if self._when_idle else None
        with Server(self._listener, self._version, self._answer, activity) as server:
            signal.signal(signal.SIGTERM, lambda *_: server.stop())
            # Ctrl-C reaches the whole group, and the keeper handles it.  Not SIG_IGN, which programs would inherit.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.set_wakeup_fd(server.bell, warn_on_full_buffer=False)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            server.serve()
            signal.set_wakeup_fd(-1)


def _fork(work: Callable[[], int | None]) -> int:
    """Fork a process that calls ``work`` and exits with its result; return its id.  Raises OSError."""
    parent = os.getpid()
    return os.fork() or _run_and_exit(parent, work)


def _run_and_exit(parent: int, work: Callable[[], int | None]) -> NoReturn:
    status = 1
    try:
        die_with_parent(parent)  # else workers outlive a killed agent
        status = work() or 0
    except Exception:  # noqa: BLE001  # after any error, this process must not continue as a second parent
        traceback.print_exc()
    finally:
        os._exit(status)


def _reap() -> Iterator[tuple[int, int]]:
    """The dead children with their exit status, or minus the signal; in a container's process 1, orphans too."""
    with suppress(ChildProcessError):  # there are no children
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found[0], os.waitstatus_to_exitcode(found[1])


def report(text: str) -> None:
    """Write a message to stderr, unless that is closed."""
    with suppress(OSError):  # a failed message must not stop the agent
        sys.stderr.write(f"hpn agent: {text}\n")
