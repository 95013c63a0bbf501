"""A warm process that answers launchers: each thread takes the next epoll event, reads, and does the work.

A connection needs no thread until its request is whole, so idle and half-sent ones block no other.
"""

import ctypes
import mmap
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from agent.connection import PIECE, REFUSED, TAKEN, Connection, Header
from base.kernel.nsid import LeftToLauncher
from base.protocol.spec import Reply, Request

# struct itimerspec: four longs, of 64 bits each where we run.  man 2 timerfd_settime; os has it from Python 3.13 on.
_ITIMERSPEC: Final = struct.Struct("=4q")
_libc = ctypes.CDLL(None, use_errno=True)
Answer = Callable[[bool, Request], Reply]
QUIET_SIGNAL: Final = signal.SIGUSR1  # from a worker: no request for QUIET seconds, or requests without such a pause


class Timer:
    """A timerfd: its descriptor becomes readable once, after a time."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK))
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")

    def set(self, seconds: float) -> None:
        """Make it readable after ``seconds``, and not before."""
        whole, rest = divmod(max(1, int(seconds * 1e9)), 10**9)  # 0 would disarm the timer
        _libc.timerfd_settime(self.fd, 0, _ITIMERSPEC.pack(0, 0, whole, rest), None)

    def has_ended(self) -> bool:
        """Whether the time has passed since the last ``set``.  Afterwards it is not readable until the next ``set``."""
        with suppress(BlockingIOError):
            os.read(self.fd, 8)
            return True
        return False

    def close(self) -> None:
        os.close(self.fd)


class Activity:
    """The state of one worker, in memory shared with the workers' parent: whether it is active, and had a request."""

    def __init__(self, active: mmap.mmap, asked: mmap.mmap, place: int, keeper: int) -> None:
        self._active, self._asked, self._place, self._keeper = active, asked, place, keeper

    def began(self) -> None:
        """The worker has a request."""
        self._active[self._place] = 1

    def ended(self) -> None:
        """The worker has had no request for QUIET seconds."""
        self._asked[self._place] = 1
        # In this order: from here on the idle work may begin, also by an earlier signal.
        self._active[self._place] = 0
        self._signal()

    def goes_on(self) -> None:
        """The worker has had requests without QUIET seconds between, so idle work is due."""
        self._asked[self._place] = 1
        self._signal()

    def _signal(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._keeper, QUIET_SIGNAL)


# More threads only compete for the interpreter; other processes work in parallel (workers.py).  If threads wait for the
# kernel, a lock or another program, and none was idle for STALL seconds, the server starts another thread.
THREADS: Final = 1
THREADS_MOST: Final = 64
STALL: Final = 0.01
REQUEST_TIMEOUT: Final = 10.0  # seconds for a launcher to send its request, which it does at once
QUIET: Final = 5.0  # seconds without a request until idle work may begin
ENDING: Final = 0.5  # seconds that a thread waits for more requests before it ends with the agent
# A connection wakes one thread, which rearms it.
_ONCE: Final = select.EPOLLIN | select.EPOLLONESHOT
# A connection wakes one process: the first of those that wait, with the warmest caches.
_SHARED: Final = select.EPOLLIN | select.EPOLLEXCLUSIVE
# One event per write, for any number of threads; not as long as it is readable.
_RUNG: Final = select.EPOLLIN | select.EPOLLET


class Server:
    """Serves launchers of ``version`` until ``stop``.

    It sleeps while there are no requests: each time limit sets a timer.
    """

    def __init__(self, listener: socket.socket, version: str, answer: Answer, activity: Activity | None = None) -> None:
        listener.setblocking(False)  # noqa: FBT003
        self._listener, self._version, self._answer = listener, version, answer
        self._epoll = select.epoll()
        self._epoll.register(listener, _SHARED)
        self._connections = dict[int, Connection]()
        self._lock = threading.Lock()
        self._idle = self._count = 0
        self._stopping = False
        # Wakes the thread of ``serve``.  Not an Event, because a signal handler must not wait for its lock.  A pipe,
        # for ``signal.set_wakeup_fd``: a signal to another thread does not end this thread's wait.
        self._rung, self.bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Wakes a waiting thread to end it.
        self._end = os.eventfd(0)
        self._epoll.register(self._end, _RUNG)
        # Ends STALL seconds after the last idle thread got work.  An earlier wakeup of the thread of ``serve`` would
        # compete for the interpreter in every request.
        self._stall = Timer()
        # Ends when a connection's request may be overdue.  Set only if it is not set, not for each connection.
        self._overdue, self._overdue_set = Timer(), False
        # Ends when QUIET seconds may have passed without a request; set in the same way.
        self._quiet, self._quiet_set = Timer(), False
        self._activity, self._last = activity, 0.0

    def serve(self) -> None:
        """Work until ``stop``, then until every launcher that has connected has its answer."""
        with self._lock:
            for _ in range(THREADS):
                self._start_thread()
        while not self._stopping:
            self._wait()
        self._epoll.unregister(self._listener)
        while waiting := Connection.accept(self._listener):
            self._watch(waiting)
        # Each thread that ends rings the bell; then wake the next one.
        while self._count:
            os.eventfd_write(self._end, 1)
            self._wait()
        self._drop_old(older_than=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        with self._lock:  # the last thread has released it after ringing the bell
            for fd in (self._rung, self.bell, self._end):
                os.close(fd)
            for timer in (self._stall, self._overdue, self._quiet):
                timer.close()

    def stop(self) -> None:
        """Accept nothing new.  Safe in a signal handler, and after the end."""
        if not self._stopping:
            self._stopping = True
            self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full of rings already
            os.write(self.bell, b"\0")

    def _wait(self) -> None:
        """Wait for a timer or the bell, and handle stalled threads, silent connections and quiet."""
        watched = [self._rung, self._stall.fd, self._overdue.fd, self._quiet.fd]
        rung, _, _ = select.select(watched, [], [])
        if self._rung in rung:
            os.read(self._rung, PIECE)
        if self._stall.fd in rung:
            with self._lock:
                # If a thread was idle in between, it has set the timer again, so that has not ended.
                if self._stall.has_ended() and not self._idle and self._count < THREADS_MOST:
                    self._start_thread()
        if self._overdue.fd in rung and self._overdue.has_ended():
            self._drop_old(REQUEST_TIMEOUT)
        if self._quiet.fd in rung and self._quiet.has_ended():
            self._note_quiet()

    def _note_quiet(self) -> None:
        """Signal QUIET seconds without a request; after a later request, set the timer for the rest of them."""
        with self._lock:
            left = QUIET if self._idle < self._count else self._last + QUIET - time.monotonic()
            self._quiet_set = left > 0
            if self._quiet_set:
                self._quiet.set(left)
            if self._activity:
                (self._activity.goes_on if self._quiet_set else self._activity.ended)()

    def _note_request(self) -> None:
        """Record the time of a request; the caller holds the lock."""
        if not self._activity:
            return
        self._last = time.monotonic()
        if not self._quiet_set:
            self._quiet_set = True
            self._activity.began()
            self._quiet.set(QUIET)

    def _start_thread(self) -> None:
        """Start a thread, or go on with those that there are; the caller holds the lock.  Raises RuntimeError without
        any."""
        try:
            threading.Thread(target=self._work, name="worker", daemon=True).start()
        except RuntimeError:  # the limit of processes, as of a pod or the node
            if not self._count:
                raise
            self._stall.set(STALL)  # try again
        else:
            self._count += 1

    def _work(self) -> None:
        with self._lock:
            self._idle += 1
        events: list[tuple[int, int]] | None = None
        while self._stays(events):
            events = self._epoll.poll(ENDING if self._stopping else None, 1)
            for fd, _ in events:
                # None: a connection that is closed, accepted by another thread or refused; or the end.
                is_new = fd == self._listener.fileno()
                connection = Connection.accept(self._listener) if is_new else self._connections.get(fd)
                if connection:
                    self._read(connection)

    def _stays(self, events: list[tuple[int, int]] | None) -> bool:
        """Whether this thread is still needed.

        It decides directly after its work, because a connection wakes waiting threads one after the other until one
        accepts it.  Threads decide one at a time, because two could each rely on the other to stay.
        """
        with self._lock:
            # An empty list: the thread waited ENDING seconds without an event.
            if self._idle <= THREADS and not (self._stopping and events == []):
                return True
            self._idle -= 1
            self._count -= 1
            self._ring()
            return False

    def _watch(self, connection: Connection) -> None:
        """Let one thread continue when more data arrives.  Arm it only now, or another thread could see its end."""
        if connection.watched:
            self._epoll.modify(connection.sock, _ONCE)
            return
        connection.watched = True
        with self._lock:
            self._connections[connection.sock.fileno()] = connection
            if not self._overdue_set:
                self._overdue_set = True
                self._overdue.set(REQUEST_TIMEOUT)
        self._epoll.register(connection.sock, _ONCE)

    def _read(self, connection: Connection) -> None:
        """Read the available data; do the work once the request is whole."""
        try:
            whole = connection.receive()
        except BlockingIOError:
            self._watch(connection)
            return
        except (OSError, ValueError):  # closed, or no launcher of ours
            self._forget(connection)
            return
        with self._lock:
            self._idle -= 1
            self._note_request()
            if not self._idle:
                self._stall.set(STALL)
        try:
            self._serve(connection, whole)
        finally:
            self._forget(connection)
            with self._lock:
                self._last = time.monotonic()
                self._idle += 1

    def _serve(self, connection: Connection, header: Header) -> None:
        with suppress(OSError, LeftToLauncher):  # a launcher that has gone needs no answer
            if header.version != self._version:
                connection.sock.send(REFUSED)
                return
            # This fails if the launcher has hung up; then it does the work itself.
            connection.sock.send(TAKEN)
            connection.send(self._answer(header.ipam, connection.request(header)))

    def _forget(self, connection: Connection) -> None:
        if connection.watched:
            with self._lock:
                del self._connections[connection.sock.fileno()]
        connection.close()

    def _drop_old(self, older_than: float) -> None:
        """Shut down connections older than ``older_than`` seconds without a whole request."""
        limit = time.monotonic() - older_than
        with self._lock:
            silent = [c for c in self._connections.values() if not c.whole]
            old = [c for c in silent if c.since <= limit]
            younger = [c.since - limit for c in silent if c.since > limit]
            self._overdue_set = bool(younger)
            if younger:
                self._overdue.set(min(younger))
        for connection in old:
            # Not closed, because a thread may be about to read from it; that thread then sees its end.
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
