"""The part of HTTP/1.1 that a scrape takes: GET of one page, from a few connections, on the loop.

h11 reads requests and writes headers.  What peers can cost is bounded: so many connections, so many bytes of a request,
so many seconds for a request that was begun and for an answer that is not taken; and so many times a second something
is heard of all of them together.
"""

import socket
import time
from collections.abc import Callable
from typing import Final

import h11

from node.listener import Listener, receive
from node.loop import Alarm, Loop

PATH: Final = "/metrics"
TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CONNECTIONS_MOST: Final = 16
REQUEST_MOST: Final = 8192  # bytes of a request's line and headers; Prometheus sends 300
TIMEOUT: Final = 10.0  # seconds for a peer to send a request that it has begun, or its first, and to take the answer
HEARD_MOST: Final = 50  # newcomers and pieces of requests in a second, of all peers together; a scrape has two or three
_SECOND: Final = 1.0
_ALLOWED: Final = (("Allow", "GET"),)

# Given the page, or None and why there is none.
Told = Callable[[bytes | None, str], None]


class Server:
    """Answers whoever may connect to ``listener``, until ``close``.

    ``ask`` has the page made, and tells it at once or later; ``withdraw`` is for who has hung up meanwhile.
    """

    def __init__(
        self, loop: Loop, listener: socket.socket, ask: Callable[[Told], None], withdraw: Callable[[Told], None]
    ) -> None:
        self.loop, self.ask, self.withdraw = loop, ask, withdraw
        self._peers = list[_Peer]()
        self._heard, self._since = 0, time.monotonic()
        self._pause: Alarm | None = None
        self._listener = Listener(loop, listener, self._let_in, lambda _: None)

    def close(self) -> None:
        """Close the socket and end all connections.  What leads to the socket is the caller's to remove."""
        if self._pause:
            self._pause.cancel()
        self._listener.close()
        for peer in list(self._peers):
            peer.end()

    def forget(self, peer: "_Peer") -> None:
        self._peers.remove(peer)

    @property
    def rests(self) -> bool:
        """Whether nobody is heard for a while."""
        return self._pause is not None

    def hear(self) -> None:
        """Count what somebody has said.  After HEARD_MOST of it all peers wait in the kernel until the second is over,
        because the thread is kubelet's, too."""
        now = time.monotonic()
        if now - self._since >= _SECOND:
            self._heard, self._since = 0, now
        self._heard += 1
        if self._heard >= HEARD_MOST:  # guard: so-often
            self._rest(self._since + _SECOND - now)

    def _rest(self, seconds: float) -> None:
        if self._pause:
            self._pause.cancel()
        self._pause = self.loop.after(seconds, self._go_on)
        self._listener.rest(seconds)
        for peer in self._peers:
            peer.watch()

    def _go_on(self) -> None:
        self._pause = None
        for peer in self._peers:
            peer.watch()

    def _let_in(self, sock: socket.socket) -> None:
        self.hear()
        if self._has_room():
            self._peers.append(_Peer(self, sock))
        else:
            sock.close()

    def _has_room(self) -> bool:
        """If there are too many, the one goes that has been idle for longest."""
        if len(self._peers) < CONNECTIONS_MOST:  # guard: connections = True
            return True
        idle = min((peer for peer in self._peers if not peer.is_owed), key=lambda peer: peer.since, default=None)
        if idle:
            idle.end()
        return idle is not None


class _Peer:
    """One connection."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server, self._sock = server, sock
        # guard below: bytes-of-a-request (REQUEST_MOST -> 1 << 30)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_MOST)
        self._unsent = bytearray()
        self._alarm: Alarm | None = None
        self._asked: h11.Request | None = None
        self._is_asking = self._closes = False
        self.since = time.monotonic()  # of its connection, or of its latest answer
        self._owe()
        self.watch()

    @property
    def is_owed(self) -> bool:
        """Whether it waits for an answer, or has not taken one."""
        return self._is_asking or bool(self._unsent)

    def watch(self) -> None:
        """Go on with it, unless the server rests."""
        if self._server.rests:
            self._server.loop.unwatch(self._sock.fileno())
        else:
            self._server.loop.watch(self._sock.fileno(), self._read, self._write if self._unsent else None)

    def end(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._settle()
        if self._is_asking:
            self._server.withdraw(self._answer)
        self._server.loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._server.forget(self)

    def _owe(self) -> None:
        """End the connection unless something has happened after TIMEOUT seconds."""
        self._settle()
        self._alarm = self._server.loop.after(TIMEOUT, self.end)  # guard: time (TIMEOUT -> 1000)

    def _settle(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None

    def _read(self) -> None:
        self._server.hear()
        data = receive(self._sock)
        if data is None:
            return
        if not data:
            self.end()
        elif self.is_owed:
            self._closes = True
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        if not self._alarm:
            self._owe()
        try:
            self._http.receive_data(data)
            self._hear()
        except h11.RemoteProtocolError as e:
            self._refuse(e.error_status_hint)

    def _hear(self) -> None:
        """Raises RemoteProtocolError."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._asked = event
            elif isinstance(event, h11.Data):
                is_get = self._asked and self._asked.method == b"GET"
                raise h11.RemoteProtocolError("no request for a page has a body", 413 if is_get else 405)
            elif isinstance(event, h11.EndOfMessage):
                self._ask(self._asked)
                return
            else:  # NEED_DATA, PAUSED, ConnectionClosed
                return

    def _ask(self, request: h11.Request | None) -> None:
        # The next request before the answer to this one: nobody who scrapes does that.
        self._closes = bool(self._http.trailing_data[0])  # guard: one-at-a-time = False
        if not request or request.method != b"GET":
            self._say(405, b"there is only GET\n", *_ALLOWED)
        elif bytes(request.target).partition(b"?")[0] == PATH.encode():
            self._is_asking = True
            self._settle()  # until the page is there it owes nothing
            self._server.ask(self._answer)
        else:
            self._say(404, f"there is only {PATH}\n".encode())

    def _answer(self, page: bytes | None, why: str) -> None:
        self._is_asking = False
        if self._sock.fileno() >= 0:
            self._say(200, page) if page is not None else self._say(503, f"{why}\n".encode())

    def _refuse(self, status: int) -> None:
        """Answer what is no request of ours, if that is still possible, and end the connection."""
        self._closes = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(status, b"this is no request for a page\n", *_ALLOWED)
        else:
            self.end()

    def _say(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        kind = TYPE if status == 200 else "text/plain; charset=utf-8"
        has_ended = [("Connection", "close")] if self._closes else []
        said = [("Content-Type", kind), ("Content-Length", f"{len(body)}"), *has_ended, *headers]
        self._unsent += self._http.send(h11.Response(status_code=status, headers=said)) or b""
        if not self._asked or self._asked.method != b"HEAD":
            self._unsent += self._http.send(h11.Data(data=body)) or b""
        self._unsent += self._http.send(h11.EndOfMessage()) or b""
        self._owe()
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            self.watch()
            return
        except OSError:
            self.end()
            return
        self._finish()

    def _finish(self) -> None:
        """The answer is on its way; go on with the next request, if there may be one."""
        self.since = time.monotonic()
        if self._closes or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self.end()
            return
        self._settle()
        self._asked = None
        self._http.start_next_cycle()
        self.watch()
