"""A warm process that answers launchers: any thread takes the next event of its epoll, reads, and does the work.

A connection costs nobody a thread until its request is whole, so idle and half-sent ones stop nobody.
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, Self

from agent import protocol
from agent.protocol import Header
from agent.timers import Timer
from cni.protocol.spec import Reply, Request

Answer = Callable[[bool, Request], Reply]


class Activity(Protocol):
    """Who is told by a server, now and then, that it has something to do, or has had nothing for QUIET seconds."""

    def began(self) -> None:
        """It has a request."""

    def ended(self) -> None:
        """It has had none for QUIET seconds."""


# More only take the interpreter from each other: what else there is to do is another process's (workers.py).  Threads
# that wait for the kernel, a lock or another program are made up for, once none was idle for STALL seconds.
THREADS: Final = 1
THREADS_MOST: Final = 64
STALL: Final = 0.01
REQUEST_TIMEOUT: Final = 10.0  # seconds for a launcher to send its request, which it does at once
REPLY_TIMEOUT: Final = 10.0
QUIET: Final = 5.0  # seconds without a request, after which there is time for other work
ENDING: Final = 0.5  # seconds that a thread waits for more before it ends with the agent
_PASSED: Final = 2  # a namespace and a netlink socket inside it
_ROOM: Final = socket.CMSG_SPACE(4 * _PASSED)
_PIECE: Final = 1 << 16  # mostly all of a request
_UCRED: Final = struct.Struct("=iII")
# One thread is woken for it, and says when the next may be.
_ONCE: Final = select.EPOLLIN | select.EPOLLONESHOT
# One process is woken: of those that wait, the one that came first, whose caches are the warmest.
_SHARED: Final = select.EPOLLIN | select.EPOLLEXCLUSIVE
# Once for each time that it is rung, however many threads wait: not as long as it is readable.
_RUNG: Final = select.EPOLLIN | select.EPOLLET


@dataclass
class _Connection:
    """One launcher, and what it has sent so far."""

    sock: socket.socket
    since: float = field(default_factory=time.monotonic)
    data: bytearray = field(default_factory=bytearray)
    header: Header | None = None
    passed: list[int] = field(default_factory=list)
    watched: bool = False

    @property
    def whole(self) -> Header | None:
        """The request's header, once all of it is here."""
        return self.header if self.header and len(self.data) >= self.header.end else None

    def close(self) -> None:
        self.sock.close()
        for fd in self.passed:
            os.close(fd)


class Server:
    """Serves until ``stop``; ``version`` is the launchers' that it answers.

    It sleeps while nobody asks: whatever has a time limit sets a timer as long as it exists.
    """

    def __init__(self, listener: socket.socket, version: str, answer: Answer, activity: Activity | None = None) -> None:
        listener.setblocking(False)  # noqa: FBT003
        self._listener, self._version, self._answer = listener, version, answer
        self._epoll = select.epoll()
        self._epoll.register(listener, _SHARED)
        self._connections = dict[int, _Connection]()
        self._lock = threading.Lock()
        self._idle = self._count = 0
        self._stopping = False
        # Wakes the thread of ``serve``.  Not an Event: a signal's handler may not wait for the lock inside it.  A pipe,
        # for ``signal.set_wakeup_fd``: a signal that comes to another thread does not end the wait of that one.
        self._rung, self.bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Wakes a thread that waits for work, to end.
        self._end = os.eventfd(0)
        self._epoll.register(self._end, _RUNG)
        # Ends STALL seconds after the last idle thread got work: nothing sooner, for the thread of ``serve`` would take
        # the interpreter from that thread in every request.
        self._stall = Timer()
        # Ends when a connection's request may be overdue.  Not set for each connection, but where it is not set.
        self._overdue, self._overdue_set = Timer(), False
        # Ends when nothing may have been asked for QUIET seconds; set in the same way.
        self._quiet, self._quiet_set = Timer(), False
        self._activity, self._last = activity, 0.0

    def serve(self) -> None:
        """Work until ``stop``, and then until all that had connected is answered."""
        with self._lock:
            for _ in range(THREADS):
                self._start_thread()
        while not self._stopping:
            self._look_after()
        self._epoll.unregister(self._listener)
        while waiting := self._accepted():
            self._watch(waiting)
        # Each thread that ends rings the bell, and then the next one is woken.
        while self._count:
            os.eventfd_write(self._end, 1)
            self._look_after()
        self._drop_old(older_than=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        with self._lock:  # which the last thread has let go, and so has rung
            for fd in (self._rung, self.bell, self._end):
                os.close(fd)
            for timer in (self._stall, self._overdue, self._quiet):
                timer.close()

    def stop(self) -> None:
        """Take nothing new.  Safe in a signal's handler, and again after the end."""
        if not self._stopping:
            self._stopping = True
            self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it was rung so often that once more makes no difference
            os.write(self.bell, b"\0")

    def _look_after(self) -> None:
        """Wait until there is something to see to, and see to it: threads that stall, silent connections, quiet."""
        watched = [self._rung, self._stall.fd, self._overdue.fd, self._quiet.fd]
        rung, _, _ = select.select(watched, [], [])
        if self._rung in rung:
            os.read(self._rung, _PIECE)
        if self._stall.fd in rung:
            with self._lock:
                # Set anew by one that was idle in between: then it has not ended.
                if self._stall.has_ended() and not self._idle and self._count < THREADS_MOST:
                    self._start_thread()
        if self._overdue.fd in rung and self._overdue.has_ended():
            self._drop_old(REQUEST_TIMEOUT)
        if self._quiet.fd in rung and self._quiet.has_ended():
            self._note_quiet()

    def _note_quiet(self) -> None:
        """Nothing was asked for a while; or else see when that may be."""
        with self._lock:
            left = QUIET if self._idle < self._count else self._last + QUIET - time.monotonic()
            self._quiet_set = left > 0
            if self._quiet_set:
                self._quiet.set(left)
            elif self._activity:
                self._activity.ended()

    def _note_request(self) -> None:
        """With the lock held."""
        if not self._activity:
            return
        self._last = time.monotonic()
        if not self._quiet_set:
            self._quiet_set = True
            self._activity.began()
            self._quiet.set(QUIET)

    def _start_thread(self) -> None:
        self._count += 1
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def _work(self) -> None:
        with self._lock:
            self._idle += 1
        events: list[tuple[int, int]] | None = None
        while self._stays(events):
            events = self._epoll.poll(ENDING if self._stopping else None, 1)
            for fd, _ in events:
                # None: a newcomer that is gone already, is another's, or may not be here; or the end.
                connection = self._accepted() if fd == self._listener.fileno() else self._connections.get(fd)
                if connection:
                    self._read(connection)

    def _stays(self, events: list[tuple[int, int]] | None) -> bool:
        """Whether this thread is needed further.

        Decided at once after its work: a connection wakes all who wait, one after the other, until it is accepted.  And
        by one thread at a time, for two who each leave it to the other would leave nobody.
        """
        with self._lock:
            # An empty list: it waited ENDING seconds, and nothing came.
            if self._idle <= THREADS and not (self._stopping and events == []):
                return True
            self._idle -= 1
            self._count -= 1
            self._ring()
            return False

    def _accepted(self) -> _Connection | None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return None
        sock.setblocking(False)  # noqa: FBT003
        _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid not in (0, os.geteuid()):
            sock.close()
            return None
        return _Connection(sock)

    def _watch(self, connection: _Connection) -> None:
        """Have one thread, whichever, go on when more comes.  Not before: its end would be an event for another."""
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

    def _read(self, connection: _Connection) -> None:
        """Take in what is there; with all of it there, do the work."""
        try:
            whole = self._received(connection)
        except BlockingIOError:
            self._watch(connection)
            return
        except (OSError, ValueError):  # gone, or none of ours
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

    def _received(self, c: _Connection) -> Header:
        """The request's header once all of it is in ``c.data``.  Raises BlockingIOError, OSError, ValueError."""
        while not (whole := c.whole):
            # What is passed comes with the first piece.
            room = 0 if c.data else _ROOM
            data, passed, flags, _ = c.sock.recvmsg(_PIECE, room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, fds in passed:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    c.passed += memoryview(fds)[: len(fds) & ~3].cast("i")
            if flags & socket.MSG_CTRUNC:
                # More than a launcher passes, or more than we may have open: it does the work itself.
                raise ValueError("descriptors were lost")
            if not data:
                raise ValueError("it broke off")
            c.data += data
            if c.header is None and len(c.data) >= protocol.HEADER.size:
                c.header = protocol.header(c.data)
        return whole

    def _serve(self, c: _Connection, header: Header) -> None:
        with suppress(OSError):  # a launcher that is gone needs no answer
            if header.version != self._version:
                c.sock.send(protocol.REFUSED)
                return
            # Fails where the launcher has given us up: then it does the work itself.
            c.sock.send(protocol.TAKEN)
            environ, stdin = protocol.parts(header, bytes(c.data))
            inside = (c.passed[0], c.passed[1]) if len(c.passed) == _PASSED else None
            request = Request(environ, stdin, inside, partial(_hung_up, c.sock))
            reply = protocol.reply(self._answer(header.ipam, request))
            sent = c.sock.send(reply)
            if sent < len(reply):
                c.sock.settimeout(REPLY_TIMEOUT)
                c.sock.sendall(reply[sent:])

    def _forget(self, connection: _Connection) -> None:
        if connection.watched:
            with self._lock:
                del self._connections[connection.sock.fileno()]
        connection.close()

    def _drop_old(self, older_than: float) -> None:
        """Close connections whose request does not come; one that is served has its whole request."""
        limit = time.monotonic() - older_than
        with self._lock:
            silent = [c for c in self._connections.values() if not c.whole]
            old = [c for c in silent if c.since <= limit]
            younger = [c.since - limit for c in silent if c.since > limit]
            self._overdue_set = bool(younger)
            if younger:
                self._overdue.set(min(younger))
        for connection in old:
            # Not closed: a thread may be about to read it, and then sees its end.
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def _hung_up(sock: socket.socket) -> bool:
    looking = select.poll()
    looking.register(sock, 0)  # which is told all the same: man 2 poll, POLLHUP
    return bool(looking.poll(0))
