"""The page over HTTP, by prometheus_client's server: a thread per request, in a child process.

Clients cost a bounded part of a processor and of memory.  The server caches each page for ten times its build time.
It accepts one connection after the other, and disconnects a peer that neither sends nor receives.
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
TIMEOUT: Final = 10.0  # seconds for a peer to send the next part of its request, and to receive the answer
PACE: Final = 0.1  # seconds between two accepted connections; a scrape is one
# A page is cached for ten times its build time.  So pages take at most a tenth of a processor, at any rate of requests.
# Every user of the machine can connect to a port.
_REST: Final = 10
# Seconds for a page; then this process ends, because a driver or a disk may block.
_LONGEST: Final = 30


class Server(ThreadingWSGIServer):
    """Answers connections to ``listener`` with the page from ``make``."""

    def __init__(self, listener: socket.socket, make: Callable[[], bytes]) -> None:
        super().__init__(("localhost", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_name, self.server_port = listener, "localhost", 0
        self.setup_environ()
        self.set_app(self._answer)
        self.silent = dict[socket.socket, None]()  # peers without a complete request, the oldest first
        self._make, self._making = make, threading.Lock()
        self._page, self._until = b"", 0.0

    def serve_until_end_of(self, parent: socket.socket) -> None:
        """Serve until the other end of ``parent`` is closed.  The process sleeps between requests."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(parent, 0)  # POLLHUP comes without being requested (man 2 poll)
        while parent.fileno() not in dict(poll.poll()):
            self.handle_request()
            time.sleep(PACE)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        sock, _ = self.socket.accept()
        return sock, ("", 0)  # the library needs an address, and a unix socket's peer has none

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        """Serve a connection.  If there are too many, close the one that has been silent for longest."""
        if threading.active_count() > CONNECTIONS_MOST:
            oldest = next(iter([*self.silent]), None)
            if oldest is None:
                self.shutdown_request(request)
                return
            self.silent.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # which ends its thread
        self.silent[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self.silent.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of one connection, such as a closed one."""

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
        """The page, which one thread at a time makes."""
        with self._making:
            began = time.monotonic()
            if began >= self._until:
                signal.alarm(_LONGEST)
                try:
                    self._page = self._make()
                finally:
                    signal.alarm(0)
                now = time.monotonic()
                self._until = now + _REST * (now - began)
            return self._page


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT
    server: Server

    def parse_request(self) -> bool:
        """Parse the request; the peer is no longer silent."""
        is_one = super().parse_request()
        self.server.silent.pop(self.connection, None)
        return is_one

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Log nothing, because every user of the machine can send requests."""
