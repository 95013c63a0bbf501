"""A warm process that answers launchers: any thread takes the next event of its epoll, reads, and does the work.

A connection costs nobody a thread until its request is whole, so idle and half-sent ones stop nobody.
"""

import ctypes
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
from typing import Final

from agent import protocol
from agent.protocol import Header
from cni.spec import Reply, Request

Answer = Callable[[bool, Request], Reply]

# More only take the interpreter from each other: what else there is to do is another process's (workers.py).  Threads
# that wait for the kernel, a lock or another program are made up for, once none was idle for STALL seconds.
THREADS: Final = 1
THREADS_MOST: Final = 64
STALL: Final = 0.01
REQUEST_TIMEOUT: Final = 10.0  # seconds for a launcher to send its request, which it does at once
REPLY_TIMEOUT: Final = 10.0
_PASSED: Final = 2  # a namespace and a netlink socket inside it
_ROOM: Final = socket.CMSG_SPACE(4 * _PASSED)
_PIECE: Final = 1 << 16  # mostly all of a request
_UCRED: Final = struct.Struct("=iII")
# One thread is woken for it, and says when the next may be.
_ONCE: Final = select.EPOLLIN | select.EPOLLONESHOT
# One process is woken: of those that wait, the one that came first, whose caches are the warmest.
_SHARED: Final = select.EPOLLIN | select.EPOLLEXCLUSIVE
_ITIMERSPEC: Final = struct.Struct("4l")  # man 2 timerfd_settime; os has it from Python 3.13 on
_libc = ctypes.CDLL(None, use_errno=True)


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
    """Serves until ``stop``; ``version`` is the launchers' that it answers."""

    def __init__(self, listener: socket.socket, version: str, answer: Answer) -> None:
        listener.setblocking(False)  # noqa: FBT003
        self._listener, self._version, self._answer = listener, version, answer
        self._epoll = select.epoll()
        self._epoll.register(listener, _SHARED)
        self._connections = dict[int, _Connection]()
        self._lock = threading.Lock()
        self._idle = self._count = 0
        self._stopping = False
        # Wakes the thread of ``serve``.  Not an Event: a signal's handler may not wait for the lock inside it.
        self._bell = os.eventfd(0)
        # Wakes it, too, STALL seconds after the last idle thread got work: nothing sooner, for it would take the
        # interpreter from that thread in every request.
        self._stall = _timer()

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
        while self._count:
            self._look_after()
        self._drop_old(older_than=0)
        self._epoll.close()
        with self._lock:  # which the last thread has let go, and so has rung
            os.close(self._bell)
            os.close(self._stall)

    def stop(self) -> None:
        """Take nothing new.  Safe in a signal's handler, and again after the end."""
        if not self._stopping:
            self._stopping = True
            os.eventfd_write(self._bell, 1)

    def _look_after(self) -> None:
        """Wait, at most a second; then see to threads that stall and to connections that stay silent."""
        rung, _, _ = select.select([self._bell, self._stall], [], [], 1.0)
        if self._bell in rung:
            os.eventfd_read(self._bell)
            return
        if rung:
            with self._lock, suppress(BlockingIOError):  # set anew, by one that was idle in between
                os.read(self._stall, 8)
                if not self._idle and self._count < THREADS_MOST:
                    self._start_thread()
        self._drop_old()

    def _start_thread(self) -> None:
        self._count += 1
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def _work(self) -> None:
        with self._lock:
            self._idle += 1
        while True:
            events = self._epoll.poll(0.5, 1)
            for fd, _ in events:
                # None: a newcomer that is gone already, is another's, or may not be here.
                connection = self._accepted() if fd == self._listener.fileno() else self._connections.get(fd)
                if connection:
                    self._read(connection)
            # At once: a connection wakes all who wait here, one after the other, until it is accepted.  And alone, for
            # two who each leave it to the other would leave nobody.
            with self._lock:
                if self._idle > THREADS or (self._stopping and not events):
                    self._idle -= 1
                    self._count -= 1
                    os.eventfd_write(self._bell, 1)
                    return

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
            if not self._idle:
                _set(self._stall, STALL)
        try:
            self._serve(connection, whole)
        finally:
            self._forget(connection)
            with self._lock:
                self._idle += 1

    def _received(self, c: _Connection) -> Header:
        """The request's header once all of it is in ``c.data``.  Raises BlockingIOError, OSError, ValueError."""
        while not (whole := c.whole):
            # What is passed comes with the first piece.
            room = 0 if c.data else _ROOM
            data, passed, _, _ = c.sock.recvmsg(_PIECE, room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, fds in passed:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    c.passed += memoryview(fds)[: len(fds) & ~3].cast("i")
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

    def _drop_old(self, older_than: float = REQUEST_TIMEOUT) -> None:
        """Close connections whose request does not come; one that is served has its whole request."""
        limit = time.monotonic() - older_than
        with self._lock:
            old = [c for c in self._connections.values() if c.since <= limit and not c.whole]
        for connection in old:
            # Not closed: a thread may be about to read it, and then sees its end.
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def _hung_up(sock: socket.socket) -> bool:
    looking = select.poll()
    looking.register(sock, 0)  # which is told all the same: man 2 poll, POLLHUP
    return bool(looking.poll(0))


def _timer() -> int:
    """Raises OSError."""
    fd = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"timerfd_create: {os.strerror(number)}")
    return fd


def _set(timer: int, seconds: float) -> None:
    """To become readable once, and not before."""
    _libc.timerfd_settime(timer, 0, _ITIMERSPEC.pack(0, 0, 0, int(seconds * 1e9)), None)
