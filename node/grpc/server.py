"""A gRPC server on one unix socket: methods by path, with one answer or with a stream of them."""

import math
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset

from cni.state import trust
from node.grpc.connection import Connection, uid_of
from node.grpc.messages import Inbox, framed
from node.grpc.status import Code, Failed, encode
from node.listener import PAUSE, Listener
from node.loop import Alarm, Loop

CONNECTIONS_MOST: Final = 64
REQUEST_MOST: Final = 1 << 19  # bytes, where the server is not told that there are longer ones
REQUEST_TIMEOUT: Final = 10.0  # seconds for a peer to send a request that it has begun, or its first
_HEADERS: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_NO_GRPC: Final = ((b":status", b"415"),)

Unary = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Watched:
    """A method that says what is true now, and again whenever that changes, for as long as the peer listens."""

    began: Callable[["Watcher", bytes], None]
    ended: Callable[["Watcher"], None]


Methods = Mapping[str, Unary | Watched]


@dataclass(eq=False)
class Watcher:
    """A peer that listens to a method."""

    _connection: Connection
    _stream: int
    method: Watched

    def tell(self, data: bytes) -> None:
        """Send a message as ``framed`` makes it, so that all who listen can have one.

        What was told before and is not on its way yet is not sent any more, for it is true no longer.
        """
        self._connection.send_data(self._stream, data)
        self._connection.flush()


@dataclass(eq=False)
class _Request:
    path: str
    inbox: Inbox
    since: float = field(default_factory=time.monotonic)


class Server:
    """Answers whoever is root, or the user that we are, until ``close``.

    ``methods`` are by path, as in "/v1beta1.DevicePlugin/Allocate".  A method raises Failed to choose the status that
    its peer gets; any other exception is said in the log and becomes INTERNAL.  ``say`` takes a sentence for the log.
    ``request_most`` is how many bytes a request may have now; all unfinished ones have twice as many at most.
    """

    def __init__(
        self, loop: Loop, listener: socket.socket, methods: Methods, say: Callable[[str], None],
        request_most: Callable[[], int] = lambda: REQUEST_MOST,
    ) -> None:  # fmt: skip
        self.loop, self.request_most, self._methods, self._say = loop, request_most, methods, say
        self._unfinished = 0
        self._peers = list[_Peer]()
        self._said = set[str]()
        self._listener = Listener(loop, listener, self._let_in, self._refuse)

    def close(self) -> None:
        """Close the socket and end all connections.  What leads to the socket is the caller's to remove."""
        self._listener.close()
        for peer in list(self._peers):
            peer.connection.terminate()

    def method(self, path: str) -> Unary | Watched:
        """Raises Failed."""
        if path not in self._methods:
            raise Failed(Code.UNIMPLEMENTED, f"there is no method {path} here")
        return self._methods[path]

    def say_once(self, sentence: str) -> None:
        """A peer that is always wrong must not fill the log."""
        if sentence not in self._said and len(self._said) < 100:
            self._said.add(sentence)
            self._say(sentence)

    def forget(self, peer: "_Peer") -> None:
        self._peers.remove(peer)

    def keep(self, size: int) -> None:
        """Count bytes of requests that are not whole, fewer if negative.  If there are too many, the peer goes that has
        sent most of them."""
        self._unfinished += size
        if self._unfinished > 2 * self.request_most():  # guard: all-requests = self._unfinished > 1 << 40
            max(self._peers, key=lambda peer: peer.unfinished).connection.end(
                "it sends too many long requests at a time"
            )

    def _refuse(self, error: OSError) -> None:
        self.say_once(f"nobody new is let in for {PAUSE:.0f} s: {error.strerror}; raise the limit of open files")

    def _let_in(self, sock: socket.socket) -> None:
        if not trust.is_trusted(uid_of(sock)) or not self._has_room():  # guard: uid (sock)
            sock.close()
            return
        peer = _Peer(self, sock)
        self._peers.append(peer)
        peer.connection.start()

    def _has_room(self) -> bool:
        """If there are too many, the one goes that has had no call for longest; whoever has one stays."""
        if len(self._peers) < CONNECTIONS_MOST:  # guard: connections = True
            return True
        idle = min((peer for peer in self._peers if not peer.is_busy), key=lambda peer: peer.since, default=None)
        if idle:
            idle.connection.terminate()
        else:
            self.say_once(f"{CONNECTIONS_MOST} connections have calls; no more are let in")
        return idle is not None


class _Peer:
    """One connection to a server, and the calls that it has under way."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._requests = dict[int, _Request]()
        self._watchers = dict[int, Watcher]()
        self.connection = Connection(server.loop, sock, is_client=False, heard=self._heard, ended=self._ended)
        self.since = time.monotonic()  # of its latest request, or of its connection
        self._has_asked = False
        self._alarm: Alarm | None = None
        self._time(REQUEST_TIMEOUT)

    @property
    def unfinished(self) -> int:
        """The bytes of its requests that are not whole."""
        return sum(len(request.inbox) for request in self._requests.values())

    @property
    def is_busy(self) -> bool:
        return bool(self._requests or self._watchers)

    def _heard(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event.stream_id, dict(event.headers))
        elif isinstance(event, DataReceived) and (request := self._requests.get(event.stream_id)):
            try:
                request.inbox.add(event.data)
            except Failed as e:
                self._refuse(event.stream_id, e)
            self._server.keep(len(event.data))
        elif isinstance(event, StreamEnded) and (request := self._take(event.stream_id)):
            self._has_asked = True
            self._answer(event.stream_id, request)
        elif isinstance(event, StreamReset):
            self._drop(event.stream_id)

    def _begin(self, stream: int, headers: Mapping[bytes, bytes]) -> None:
        self.since = time.monotonic()
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self.connection.send_headers(stream, _NO_GRPC, ends=True)
            self.connection.reset(stream, ErrorCodes.NO_ERROR)
            return
        path = headers.get(b":path", b"").decode(errors="replace")
        self._requests[stream] = _Request(path, Inbox(self._server.request_most()))
        self._time(REQUEST_TIMEOUT)

    def _answer(self, stream: int, request: _Request) -> None:
        try:
            self._call(stream, self._server.method(request.path), request.inbox.message())
        except Failed as e:
            self._finish(stream, e)
        except Exception as e:  # noqa: BLE001  # the one place where a method's exception becomes a status
            self._server.say_once(f"{request.path} failed: {type(e).__name__}: {e}; please report this")
            self._finish(stream, Failed(Code.INTERNAL, "it failed; the log of hpn node says why"))

    def _call(self, stream: int, method: Unary | Watched, message: bytes) -> None:
        if isinstance(method, Watched):
            watcher = self._watchers[stream] = Watcher(self.connection, stream, method)
            self.connection.send_headers(stream, _HEADERS)
            method.began(watcher, message)
            return
        answer = framed(method(message))
        self.connection.send_headers(stream, _HEADERS)
        self.connection.send_data(stream, answer)
        self.connection.finish(stream, _trailers(Code.OK, ""))

    def _finish(self, stream: int, failed: Failed) -> None:
        """Tell the peer how its call ended, in headers alone if none were sent."""
        trailers = _trailers(failed.code, failed.message)
        if self._drop(stream):
            self.connection.finish(stream, trailers)
        else:
            self.connection.send_headers(stream, (*_HEADERS, *trailers), ends=True)

    def _refuse(self, stream: int, failed: Failed) -> None:
        """As it is still sending, also tell it to stop."""
        self._take(stream)
        self._finish(stream, failed)
        self.connection.reset(stream, ErrorCodes.NO_ERROR)

    def _take(self, stream: int) -> _Request | None:
        """The request, which does not count as unfinished any more."""
        if request := self._requests.pop(stream, None):
            self._server.keep(-len(request.inbox))
        return request

    def _drop(self, stream: int) -> Watcher | None:
        self._take(stream)
        if watcher := self._watchers.pop(stream, None):
            watcher.method.ended(watcher)
        return watcher

    def _ended(self, reason: str) -> None:
        self._server.forget(self)
        if reason:
            self._server.say_once(f"a connection was ended: {reason}")
        if self._alarm:
            self._alarm.cancel()
        for stream in [*self._requests, *self._watchers]:
            self._drop(stream)

    def _time(self, seconds: float) -> None:
        """Only one alarm at a time, and none while nothing is owed."""
        if not self._alarm:
            self._alarm = self._server.loop.after(seconds, self._look_after)

    def _look_after(self) -> None:
        self._alarm = None
        waited = time.monotonic() - min((request.since for request in self._requests.values()), default=math.inf)
        # guard below: requests-in-time (REQUEST_TIMEOUT), first-request-in-time (_has_asked or self)
        if waited >= REQUEST_TIMEOUT or not (self._has_asked or self._requests):
            self.connection.end(f"it did not finish a request in {REQUEST_TIMEOUT:.0f} s")
        elif self._requests:
            self._time(REQUEST_TIMEOUT - waited)


def _trailers(code: int, message: str) -> tuple[tuple[bytes, bytes], ...]:
    status = (b"grpc-status", str(int(code)).encode())
    return (status, (b"grpc-message", encode(message))) if message else (status,)
