"""A connection whose peer takes nothing ends, in its time and not before, and keeps the newest message until then."""

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from node.grpc import connection
from node.grpc.connection import Connection
from node.loop import Loop

LIMIT = 1.0


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(connection, "STALLED", LIMIT)
    one = Loop()
    yield one
    one.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def turn(loop: Loop, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        loop.turn(min(left, 0.01))


def began(loop: Loop, sock: socket.socket, reasons: list[str]) -> tuple[Connection, int]:
    """A connection with a stream that has more to send than a window."""
    one = Connection(loop, sock, is_client=True, heard=lambda _: None, ended=reasons.append)
    one.start()
    stream = one.next_stream()
    one.send_headers(stream, [(b":method", b"POST"), (b":path", b"/"), (b":scheme", b"http"), (b":authority", b"x")])
    one.send_data(stream, b"a" * 100_000)
    one.flush()
    return one, stream


def test_it_takes_nothing(loop: Loop, ends: tuple[socket.socket, socket.socket]) -> None:
    reasons = list[str]()
    one, _ = began(loop, ends[0], reasons)
    since = time.monotonic()
    while one.is_open:
        turn(loop, LIMIT / 10)
    assert time.monotonic() - since > LIMIT * 0.9
    assert reasons == ["it took nothing for 1 s"]


def test_it_owes_nothing(loop: Loop, ends: tuple[socket.socket, socket.socket]) -> None:
    one = Connection(loop, ends[0], is_client=True, heard=lambda _: None, ended=lambda _: None)
    one.start()
    turn(loop, 2 * LIMIT)
    assert one.is_open
    one.end()


def test_the_newest_message_only(loop: Loop, ends: tuple[socket.socket, socket.socket]) -> None:
    one, stream = began(loop, ends[0], [])
    for message in (b"older", b"newest"):
        one.send_data(stream, message)
    one.flush()
    settings = b"\0\0\0\4\0\0\0\0\0"
    windows = (struct.pack(">HBBBII", 0, 4, 8, 0, number, 1 << 20) for number in (0, stream))
    ends[1].sendall(settings + b"".join(windows))
    ends[1].settimeout(60)
    received = b""
    while b"newest" not in received:
        loop.turn(0.1)
        received += ends[1].recv(1 << 20)
    assert received.count(b"a") >= 100_000
    assert b"older" not in received
    one.end()


def test_it_reads_no_answers(loop: Loop, ends: tuple[socket.socket, socket.socket]) -> None:
    """Fewer PINGs than a peer may send, and more answers than are kept for one."""
    reasons = list[str]()
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    one = Connection(loop, ends[0], is_client=False, heard=lambda _: None, ended=reasons.append)
    one.start()
    ping = struct.pack(">HBBBIQ", 0, 8, 6, 0, 0, 0)
    ends[1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    for _ in range(19):
        if one.is_open:
            ends[1].sendall(ping * 1000)
            for _ in range(20):  # what was sent is there already
                loop.turn(0)
    assert reasons == ["it asks for answers and does not read them"]
