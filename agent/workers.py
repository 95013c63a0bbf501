"""hpn agent's processes: workers that answer, each with a Server of its own on the one listener, and their keeper.

They are forked when everything is imported and warm, and share the memory that nobody changes.
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

# Threads of one process take its interpreter from each other at every system call: two of them do the work of one.
WORKERS: Final = 2
# Seconds at least between starts in one place: if no worker can live, the machine still has other work.
PAUSE: Final = 1.0
# Seconds that work for idle time may take: it may hold a lock that a request waits for.
IDLE_MOST: Final = 60
# Seconds that work for idle time waits for such a time: a runtime that asks for STATUS every few seconds leaves none.
OVERDUE: Final = 60.0
# Seconds until it is done again though nobody asked anything, if it says so, or could not be done.
AGAIN: Final = 600.0
_NEVER: Final = float("inf")
_UNFINISHED: Final = 64  # the status by which a process says that its work is to be done again
_STOP: Final = (signal.SIGTERM, signal.SIGINT)
_AWAITED: Final = (*_STOP, signal.SIGCHLD, QUIET_SIGNAL)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_M_ARENA_MAX: Final = -8  # malloc.h
_libc = ctypes.CDLL(None, use_errno=True)

# Says whether it is to be done again though nobody asks.
WhenIdle = Callable[[], bool]


def serve(listener: socket.socket, version: str, answer: Answer, when_idle: WhenIdle | None = None) -> None:
    """Answer until SIGTERM or SIGINT, and then until all that had connected is answered.

    ``when_idle`` is called in a process of its own once no worker has had a request for ``agent.server.QUIET`` seconds,
    if there was one since the last call; OVERDUE seconds later at most, if requests leave no such time; and AGAIN
    seconds after a call that was answered by true, or after the agent's start.  That process is forked from this one
    and ends with it; requests that come meanwhile are the workers' as ever.  It is killed after IDLE_MOST seconds, and
    when the agent stops.

    For a process with one thread that ends after it: the signals stay blocked.
    """
    # man 3 mallopt.  Each thread would get memory of its own from malloc, and what the busiest moment took would stay.
    # One thread has the interpreter at a time, so no two want the same memory at once.
    _libc.mallopt(_M_ARENA_MAX, 1)
    # Blocked and waited for, not handled: so none comes between a fork and the parent's or the child's being ready.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where our parent ignored it, it would never come
    _Keeper(listener, version, answer, when_idle).keep()


class _Keeper:
    """The first process: starts workers, replaces those that die, and notices when all of them are idle."""

    def __init__(self, listener: socket.socket, version: str, answer: Answer, when_idle: WhenIdle | None) -> None:
        self._listener, self._version, self._answer, self._when_idle = listener, version, answer, when_idle
        self._alive = dict[int, tuple[float, int]]()  # when each was started, and its place
        self._due = [(0.0, place) for place in range(WORKERS)]
        # A byte for each worker: whether it is active, and whether it was asked since work for idle time last began.
        # A signal of before that may come later.
        self._active, self._asked = mmap.mmap(-1, WORKERS), mmap.mmap(-1, WORKERS)
        self._idle_work, self._wanted = 0, _NEVER  # the process that does it; since when there is some
        self._again = time.monotonic() + AGAIN if when_idle else _NEVER  # when there is some though nobody asks
        self._pid, self._stopping = os.getpid(), False

    def keep(self) -> None:
        """Run until told to stop, and then until all workers have ended."""
        while self._alive or self._idle_work or not self._stopping:
            self._start_due()
            number = self._wait_for_signal()
            if number in _STOP:
                self._stop()
            self._note_idle_work(is_quiet=number == QUIET_SIGNAL and any(self._asked[:]))
            self._replace_dead()
            self._start_idle_work()

    def _note_idle_work(self, *, is_quiet: bool) -> None:
        """There is some once a worker is quiet, and when it is to be done again; that time is over then."""
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
                _say(f"no worker can be started: {e.strerror}")
                self._due.append((now + PAUSE, place))

    def _wait_for_signal(self) -> int:
        """The number of the next signal; 0 if a worker or work for idle time is due before one comes."""
        work = [] if self._idle_work else [self._again, self._wanted + OVERDUE]
        until = min([when for when, _ in self._due] + work, default=_NEVER)
        if self._stopping or until == _NEVER:
            return signal.sigwaitinfo(_AWAITED).si_signo
        awaited = signal.sigtimedwait(_AWAITED, max(0, until - time.monotonic()))
        return awaited.si_signo if awaited else 0

    def _stop(self) -> None:
        self._stopping = True
        for pid in (*self._alive, *([self._idle_work] if self._idle_work else [])):
            os.kill(pid, signal.SIGTERM)

    def _replace_dead(self) -> None:
        for pid, how in _reap():
            if pid == self._idle_work:
                is_said = how not in (0, _UNFINISHED) and not self._stopping
                self._idle_work, what = 0, "work in idle time"
                self._again = time.monotonic() + AGAIN if how else _NEVER  # guard: again (+ AGAIN)
            elif pid in self._alive:
                since, place = self._alive.pop(pid)
                self._due.append((since + PAUSE, place))  # guard: pause (since + PAUSE -> 0.0), replaced
                self._active[place] = 0
                what, is_said = f"worker {pid}", how != 0 or not self._stopping
            else:
                continue
            if is_said:
                _say(f"{what} ended by {f'signal {-how}' if how < 0 else f'status {how}'}")

    def _start_idle_work(self) -> None:
        """Start the work for idle time, if there is some, and no worker is active or it is overdue."""
        now, work = time.monotonic(), self._when_idle
        if not work or self._wanted == _NEVER or self._idle_work or self._stopping:
            return
        # guard below: overdue (OVERDUE), idle-only
        if any(self._active[:]) and now - self._wanted < OVERDUE:  # an active one signals later
            return
        self._wanted, self._again = _NEVER, now + AGAIN
        self._asked[:] = bytes(WORKERS)  # guard: idle-work-once
        with suppress(OSError):  # the next quiet time is soon enough
            self._idle_work = _fork(partial(self._do_idle_work, work))

    def _do_idle_work(self, work: WhenIdle) -> int:
        """Run in a process of its own."""
        # Otherwise launchers could connect to this process after the agent has ended.
        self._listener.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        signal.alarm(IDLE_MOST)  # guard: idle-work-ends
        return _UNFINISHED if work() else 0

    def _work(self, place: int) -> None:
        """Run a worker, in its process."""
        activity = Activity(self._active, self._asked, place, self._pid) if self._when_idle else None
        with Server(self._listener, self._version, self._answer, activity) as server:
            signal.signal(signal.SIGTERM, lambda *_: server.stop())
            # Ctrl-C reaches the whole group; the keeper decides what it means.  Not SIG_IGN: programs would inherit it.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.set_wakeup_fd(server.bell, warn_on_full_buffer=False)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            server.serve()
            signal.set_wakeup_fd(-1)


def _fork(work: Callable[[], int | None]) -> int:
    """Start a process that does the work and ends with its status, and return its id.  Raises OSError."""
    parent = os.getpid()
    return os.fork() or _run_and_exit(parent, work)


def _run_and_exit(parent: int, work: Callable[[], int | None]) -> NoReturn:
    status = 1
    try:
        # Without this, workers would outlive a killed agent.  The parent may be gone already.
        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))  # guard: die-with-the-keeper
        status = (work() or 0) if os.getppid() == parent else 0
    except Exception:  # noqa: BLE001  # whatever it is, this process must not go on as a second parent
        traceback.print_exc()
    finally:
        os._exit(status)  # guard: no-second-parent


def _reap() -> Iterator[tuple[int, int]]:
    """Children that ended, with their exit status or minus the signal; in a container's first process, orphans too."""
    with suppress(ChildProcessError):  # there are no children
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found[0], os.waitstatus_to_exitcode(found[1])


def _say(text: str) -> None:
    with suppress(OSError):  # nobody may read stderr any more, and a message is no reason to stop
        sys.stderr.write(f"hpn agent: {text}\n")
