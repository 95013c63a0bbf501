"""One unary call to a server on a unix socket: on a loop, or waited for."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived

from cni.state import trust
from node.grpc.connection import Connection, uid_of
from node.grpc.messages import Inbox, framed
from node.grpc.status import Code, Failed, decode
from node.loop import Loop

ANSWER_MOST: Final = 1 << 24  # bytes; what kubelet's own clients of PodResources take

Done = Callable[[bytes | Failed], None]


class Call:
    """A call under way, that tells ``done`` its answer, or why there is none.

    It does so once, and never before the constructor has returned.
    """

    def __init__(self, loop: Loop, path: Path, method: str, request: bytes, *, timeout: float, done: Done) -> None:
        """``method``: "/v1.PodResourcesLister/List".  ``timeout``: seconds for all of it."""
        self._path, self._done = path, done
        self._inbox = Inbox(ANSWER_MOST)
        self._answer: bytes | Failed = Failed(Code.UNAVAILABLE, f"{path}: the connection ended before the answer")
        self._headers = dict[bytes, bytes]()
        self._connection: Connection | None = None
        self._alarm = loop.after(timeout, lambda: self._end(
            Failed(Code.DEADLINE_EXCEEDED, f"{path} did not answer in {timeout:g} s")))  # fmt: skip
        try:
            sock = connect(path)
        except Failed as e:
            self._alarm.cancel()
            self._alarm = loop.after(0, lambda e=e: self._end(e))  # type: ignore[misc]
            return
        self._connection = Connection(loop, sock, is_client=True, heard=self._heard, ended=self._ended)
        loop.after(0, lambda: self._begin(method, request))

    def cancel(self) -> None:
        """Tell ``done`` nothing any more."""
        self._done = lambda _: None
        self._end(Failed(Code.CANCELLED, ""))

    def _begin(self, method: str, request: bytes) -> None:
        connection = self._connection
        if not connection or not connection.is_open:
            return
        connection.start()
        if connection.is_open:
            stream = connection.next_stream()
            connection.send_headers(stream, _headers(method))
            connection.send_data(stream, framed(request))
            connection.finish(stream)
            connection.flush()

    def _heard(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._headers |= dict(event.headers)
        elif isinstance(event, DataReceived):
            try:
                self._inbox.add(event.data)
            except Failed as e:
                self._end(e)
        elif isinstance(event, StreamEnded):
            self._end(self._result())
        elif isinstance(event, StreamReset):
            # A server that has answered may tell us to stop sending.
            self._end(self._result() if b"grpc-status" in self._headers else self._answer)

    def _result(self) -> bytes | Failed:
        if self._headers.get(b":status") != b"200" or b"grpc-status" not in self._headers:
            return Failed(Code.UNKNOWN, f"{self._path} does not speak gRPC")
        status = self._headers[b"grpc-status"]
        if status != b"0":
            code = int(status) if status.isdigit() else Code.UNKNOWN
            return Failed(code, decode(self._headers.get(b"grpc-message", b"")) or f"status {code}")
        try:
            return self._inbox.message()
        except Failed as e:
            return e

    def _end(self, answer: bytes | Failed) -> None:
        self._answer = answer
        if self._connection and self._connection.is_open:
            self._connection.end()
        else:
            self._ended("")

    def _ended(self, reason: str) -> None:
        if reason:
            self._answer = Failed(Code.UNAVAILABLE, f"{self._path}: {reason}")
        self._alarm.cancel()
        done, self._done = self._done, lambda _: None
        done(self._answer)


def call(path: Path, method: str, request: bytes, *, timeout: float) -> bytes:
    """Make the call and wait for its answer.  Raises Failed."""
    loop = Loop()
    answers = list[bytes | Failed]()

    def done(answer: bytes | Failed) -> None:
        answers.append(answer)
        loop.stop()

    try:
        Call(loop, path, method, request, timeout=timeout, done=done)
        loop.run()
    finally:
        loop.close()
    if isinstance(answers[0], Failed):
        raise answers[0]
    return answers[0]


def connect(path: Path) -> socket.socket:
    """A socket that does not block, to a server of root's, or of the user that we are.  Raises Failed."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A server that accepts nobody is an error at once, and not a wait: man 7 unix, EAGAIN.
        sock.setblocking(False)  # noqa: FBT003
        sock.connect(str(path))
        uid = uid_of(sock)
    except OSError as e:
        sock.close()
        raise Failed(Code.UNAVAILABLE, f"{path}: {e.strerror or e}") from e
    if not trust.is_trusted(uid):  # guard: uid
        sock.close()
        raise Failed(Code.UNAVAILABLE, f"{path} is served by user {uid}, and only root's answers are believed")
    return sock


def _headers(method: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
