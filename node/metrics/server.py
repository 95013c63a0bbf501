"""The page over HTTP, by prometheus_client's server: a thread for each request, in a process that does nothing else.

Whoever can connect costs a bounded part of a processor and of memory: a page is used again for ten times as long as it
took, newcomers come in one after the other, and a peer that sends or takes nothing is ended.
"""

import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, ThreadingWSGIServer

PATH: Final = "/metrics"
CONNECTIONS_MOST: Final = 16
TIMEOUT: Final = 10.0  # seconds for a peer to send the next piece of its request, and to take the answer
PACE: Final = 0.1  # seconds from one newcomer to the next; a scrape is one
# A page is given again for so many times as long as it took to make it; after that a new one is made.  So to make pages
# takes a tenth of a processor at most, however often somebody asks.  At a port, every user of the machine can ask.
_REST: Final = 10
# Making a page is ended after so many seconds, and this process with it: a driver or a disk may hang.
_LONGEST: Final = 30


class Server(ThreadingWSGIServer):
    """Answers whoever connects to ``listener`` with the page that ``make`` makes."""

    def __init__(self, listener: socket.socket, make: Callable[[], bytes]) -> None:
        super().__init__(("localhost", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_name, self.server_port = listener, "localhost", 0
        self.setup_environ()
        self.set_app(self._answer)
        self.silent = dict[socket.socket, None]()  # those that have not sent a request, the longest there first
        self._make, self._making = make, threading.Lock()
        self._page, self._until = b"", 0.0

    def serve_until_end_of(self, parent: socket.socket) -> None:
        """Serve until the other end of ``parent`` is closed.  Nothing wakes this process up between requests."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(parent, 0)  # its end is told all the same (man 2 poll, POLLHUP)
        while parent.fileno() not in dict(poll.poll()):
            self.handle_request()
            time.sleep(PACE)  # guard: pace

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        sock, _ = self.socket.accept()
        return sock, ("", 0)  # the library takes the first part of an address, and a unix socket's peer has none

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        """Let a newcomer in.  If there are too many, the one goes that has been silent for longest."""
        if threading.active_count() > CONNECTIONS_MOST:  # guard: connections = False
            oldest = next(iter([*self.silent]), None)
            if oldest is None:
                self.shutdown_request(request)
                return
            self.silent.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread ends by that
        self.silent[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self.silent.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that hangs up, or is hung up on, is nobody's concern."""

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        kind = ("Content-Type", "text/plain; charset=utf-8")
        if environ["REQUEST_METHOD"] != "GET":
            start("405 Method Not Allowed", [kind, ("Allow", "GET")])
            return [b"there is only GET\n"]
        if environ["PATH_INFO"] != PATH:
            start("404 Not Found", [kind])
            return [f"there is only {PATH}\n".encode()]
        page = self._get()
        start("200 OK", [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)])
        return [page]

    def _get(self) -> bytes:
        """The page, made by one thread at a time, however many ask for it."""
        with self._making:
            began = time.monotonic()
            if began >= self._until:  # guard: a-tenth-of-a-processor = True
                signal.alarm(_LONGEST)  # guard: no-longer
                try:
                    self._page = self._make()
                finally:
                    signal.alarm(0)
                now = time.monotonic()
                self._until = now + _REST * (now - began)
            return self._page


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT  # guard: time = 1000
    server: Server

    def parse_request(self) -> bool:
        """Note that the peer has sent its request: from now on it is we who owe something."""
        is_one = super().parse_request()
        self.server.silent.pop(self.connection, None)
        return is_one

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's word
        """Nothing is logged: everybody on the machine can ask."""
