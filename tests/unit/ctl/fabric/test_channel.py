"""The control connection: only the token's holder is heard, and each message is bounded."""

import select
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from base.protocol.errors import DecodeFailure
from ctl.fabric import channel, door
from ctl.fabric.channel import FIRST_MOST, GREETING, MAGIC, Channel, Codec, Ended

TOKEN = "0123456789abcdef" * 2
HELLO = {"operation": "hello"}
Admitted = Future[tuple[Channel, dict[str, Any]]]


class Server:
    """A listening socket, and the sockets of its clients, which are closed at the end."""

    def __init__(self) -> None:
        self.undo = ExitStack()
        self.sock = self.undo.enter_context(door.listen("127.0.0.1", 0))

    def client(self, token: str = TOKEN) -> Channel:
        return self.undo.enter_context(closing(channel.connect(self.sock.getsockname(), token, HELLO, 60)))

    def raw(self) -> socket.socket:
        return self.undo.enter_context(socket.create_connection(self.sock.getsockname(), 60))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.undo:
        yield made


@pytest.fixture
def admitted(server: Server) -> Iterator[Admitted]:
    """The one client that gets in."""
    with ThreadPoolExecutor() as threads:
        future = threads.submit(door.admit, server.sock, TOKEN)
        yield future
        if not future.done():
            server.client()
        future.result(60)[0].close()


def received(one: Channel) -> dict[str, Any]:
    while (body := one.take()) is None:
        assert select.select([one], [], [], 60)[0]
    return body


def test_both_ways(server: Server, admitted: Admitted) -> None:
    """A client is admitted before it has anything to ask: its first message goes with the connection."""
    ours = server.client()
    theirs, first = admitted.result(60)
    assert first == HELLO
    for number in range(3):
        with ThreadPoolExecutor() as threads:
            sent = threads.submit(theirs.send, {"number": number, "long": "x" * 200_000})
            assert received(ours)["number"] == number
            sent.result(60)
        ours.send({})  # an empty object is a message too
        assert received(theirs) == {}
    ours.close()
    with pytest.raises(Ended, match="closed"):
        received(theirs)


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(60)
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_wrong_token(server: Server, admitted: Admitted) -> None:
    wrong = server.client("f" * 32)
    assert is_closed(wrong.sock)
    assert not admitted.done()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        MAGIC + bytes(16) + (FIRST_MOST + 1).to_bytes(4, "big") + bytes(32),
        MAGIC + bytes(16) + (2).to_bytes(4, "big") + bytes(32) + b"{}",
        b"\0" * 4096,
    ],
    ids=["http", "too long", "no code", "zeros"],
)
def test_who_is_no_client(server: Server, admitted: Admitted, data: bytes) -> None:
    sock = server.raw()
    sock.sendall(data)
    assert is_closed(sock)
    assert not admitted.done()


def test_silent_ones_do_not_keep_the_client_out(server: Server, admitted: Admitted) -> None:
    silent = [server.raw() for _ in range(3 * door.GUESTS)]
    assert all(map(is_closed, silent[: door.GUESTS]))  # long before their time
    server.client()
    assert admitted.result(60)[1] == HELLO
    for sock in silent:
        assert is_closed(sock)


def test_a_client_in_pieces(server: Server, admitted: Admitted) -> None:
    sock, ours = server.raw(), channel.greeting()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(GREETING):
        sock.sendall(ours[at : at + 1])
    codec = Codec(TOKEN, ours, sock.recv(GREETING, socket.MSG_WAITALL), is_client=True)
    for data in (codec.packed(HELLO), codec.packed({"n": 1})):
        for at in range(0, len(data), 7):
            sock.sendall(data[at : at + 7])
    theirs, first = admitted.result(60)
    assert (first, received(theirs)) == (HELLO, {"n": 1})


def test_the_token_is_not_sent(server: Server) -> None:
    """Whoever answers in the server's place learns nothing of it, and cannot answer."""
    with ThreadPoolExecutor() as threads:
        future = threads.submit(server.client)
        impostor = server.undo.enter_context(server.sock.accept()[0])
        impostor.settimeout(60)
        seen = impostor.recv(GREETING, socket.MSG_WAITALL)
        impostor.sendall(channel.greeting())
        ours = future.result(60)
        seen += impostor.recv(4096)
        assert TOKEN.encode() not in seen
        assert bytes.fromhex(TOKEN) not in seen
        impostor.sendall((2).to_bytes(4, "big") + bytes(32) + b"{}")
        with pytest.raises(Ended, match="token is wrong"):
            received(ours)


def codecs() -> tuple[Codec, Codec]:
    one, other = channel.greeting(), channel.greeting()
    return Codec(TOKEN, one, other, is_client=True), Codec(TOKEN, one, other, is_client=False)


def opened(codec: Codec, data: bytes) -> dict[str, Any]:
    return codec.opened(data[4:36], data[36:])


def test_a_message_that_is_repeated_reordered_or_sent_back() -> None:
    ours, theirs = codecs()
    first, second = ours.packed({"n": 1}), ours.packed({"n": 2})
    with pytest.raises(Ended):
        opened(theirs, second)
    assert opened(theirs, first) == {"n": 1}
    with pytest.raises(Ended):
        opened(theirs, first)
    with pytest.raises(Ended):
        opened(ours, first)


def test_another_connections_message() -> None:
    (ours, _), (_, theirs) = codecs(), codecs()
    with pytest.raises(Ended):
        opened(theirs, ours.packed({"n": 1}))


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"[" * 100_000])
def test_what_is_no_object(text: bytes) -> None:
    ours, theirs = codecs()
    ours.packed({})
    code = ours._code(b">", 0, text)
    with pytest.raises(DecodeFailure):
        theirs.opened(code, text)


def test_a_message_that_is_too_long(server: Server, admitted: Admitted) -> None:
    ours = server.client()
    theirs, _ = admitted.result(60)
    ours.sock.sendall((channel.MOST + 1).to_bytes(4, "big") + bytes(40))
    with pytest.raises(Ended, match="the most is"):
        received(theirs)


def test_another_end_that_takes_nothing(server: Server, admitted: Admitted) -> None:
    ours = server.client()
    theirs, _ = admitted.result(60)

    def fill() -> None:
        while True:
            # time: nobody reads, so it cannot end otherwise
            theirs.send({"x": "x" * 1_000_000}, seconds=0.1)

    with pytest.raises(Ended, match="took no data"):
        fill()
    assert select.select([ours], [], [], 0)[0]


def test_it_listens_only_there(server: Server) -> None:
    assert server.sock.getsockname()[0] == "127.0.0.1"
