"""grpcio, the protocol's own implementation, as client of the server and as server of the client; and bad peers."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import given
from hypothesis import strategies as st
from support.grpc_server import DEVICES, Served, asking, listen, serving

from base.grpc import MESSAGE_MOST, Failed
from base.grpc import call as call_of_messages

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
GROWTH = 12 << 20  # bytes that a test's connections may cost


def call(path: Path, method: str, message: bytes, timeout: float = 60) -> bytes:
    return call_of_messages(path, method, BytesValue(value=message), BytesValue, timeout=timeout).value


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("grpc") / "s.sock") as one:
        yield one


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{served.path}") as one:
        yield one


@pytest.mark.parametrize("size", [0, 1, 16384, 70_000, 4_000_000])
def test_unary(channel: grpc.Channel, size: int) -> None:
    message = os.urandom(size)
    assert asking(channel, "/t.Test/Echo")(message, timeout=60) == message


def test_many_calls_on_a_connection(channel: grpc.Channel) -> None:
    echo = asking(channel, "/t.Test/Echo")
    calls = [echo.future(b"%d" % i, timeout=60) for i in range(500)]
    assert [one.result() for one in calls] == [b"%d" % i for i in range(500)]


def test_two_services(channel: grpc.Channel) -> None:
    assert asking(channel, "/t.Other/Echo")(b"abc", timeout=60) == b"cba"


@pytest.mark.parametrize(
    ("method", "message", "code", "says"),
    [
        ("/t.Test/None", b"", grpc.StatusCode.UNIMPLEMENTED, "Method not found"),
        ("/t.Test/Refuse", "50% of ä\n".encode(), grpc.StatusCode.FAILED_PRECONDITION, "50% of ä\n"),
        ("/t.Test/Break", b"", grpc.StatusCode.INTERNAL, "the call failed; see the log of hpn node"),
        ("/t.Test/Echo", bytes(MESSAGE_MOST), grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit is 16777216"),
    ],
)
def test_failures(channel: grpc.Channel, method: str, message: bytes, code: grpc.StatusCode, says: str) -> None:
    with pytest.raises(grpc.RpcError) as e:
        asking(channel, method)(message, timeout=60)
    assert e.value.code() == code
    assert says in e.value.details()
    assert asking(channel, "/t.Test/Echo")(b"on", timeout=60) == b"on"


def test_what_is_no_message(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match=r"the message is not of type google\.protobuf\.BytesValue"):
        channel.unary_unary("/t.Test/Echo")(b"\xff\xff", timeout=60)


def test_compressed(served: Served) -> None:
    with (
        grpc.insecure_channel(f"unix:{served.path}", compression=grpc.Compression.Gzip) as channel,
        pytest.raises(grpc.RpcError) as e,
    ):
        asking(channel, "/t.Test/Echo")(bytes(1000), timeout=60)
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("authority", ["localhost", "%2Frun%2Fx.sock", "", "what is this"])
def test_any_authority(served: Served, authority: str) -> None:
    with grpc.insecure_channel(f"unix:{served.path}", options=[("grpc.default_authority", authority)]) as channel:
        assert asking(channel, "/t.Test/Echo")(b"on", timeout=60) == b"on"


def test_watch(channel: grpc.Channel) -> None:
    """3,000 devices are more than both windows; then each change."""
    stream = listen(channel)(b"", timeout=60)
    assert next(stream) == DEVICES
    for message in (b"a", bytes(100_000), b""):
        assert asking(channel, "/t.Test/Tell")(message, timeout=60) == b"1"
        assert next(stream) == message
    stream.cancel()


def test_fifty_watchers(served: Served) -> None:
    channels = [
        grpc.insecure_channel(f"unix:{served.path}", options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(50)
    ]
    streams = [listen(channel)(b"", timeout=60) for channel in channels]
    assert {next(stream) for stream in streams} == {DEVICES}
    tell = asking(channels[0], "/t.Test/Tell")
    assert tell(b"x", timeout=60) == b"50"
    assert {next(stream) for stream in streams} == {b"x"}
    for channel in channels[1:]:
        channel.close()
    while tell(b"y", timeout=60) != b"1":
        pass
    channels[0].close()


class Peer(grpc.GenericRpcHandler):
    """A server of grpcio's."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return {
            "/t.Test/Echo": grpc.unary_unary_rpc_method_handler(lambda message, _: message),
            "/t.Test/Refuse": grpc.unary_unary_rpc_method_handler(self._refuse),
            "/t.Test/Sleep": grpc.unary_unary_rpc_method_handler(self._sleep),
        }.get(details.method)

    def __init__(self) -> None:
        self.over = threading.Event()

    def _refuse(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, message.decode())
        return b""

    def _sleep(self, message: bytes, _: grpc.ServicerContext) -> bytes:
        self.over.wait(60)
        return message


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Path]:
    handler = Peer()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[handler], options=[("grpc.max_receive_message_length", 1 << 24)])
        server.add_insecure_port(f"unix:{tmp_path}/p.sock")
        server.start()
        yield tmp_path / "p.sock"
        handler.over.set()
        server.stop(None).wait()


@pytest.mark.parametrize("size", [0, 1, 100_000, 10_000_000])
def test_client(peer: Path, size: int) -> None:
    message = os.urandom(size)
    assert call(peer, "/t.Test/Echo", message) == message


@pytest.mark.parametrize(
    ("method", "message", "says"),
    [
        ("/t.Test/None", b"", "Method not found!"),
        ("/t.Test/Refuse", "50% of ä".encode(), "50% of ä"),
        ("/t.Test/Echo", bytes(17 << 20), "larger than max"),
    ],
)
def test_client_is_refused(peer: Path, method: str, message: bytes, says: str) -> None:
    with pytest.raises(Failed, match=says):
        call(peer, method, message)


def test_deadline(peer: Path) -> None:
    with pytest.raises(Failed, match=r"p.sock did not answer in 0\.2 s"):
        # time: it ends by that
        call(peer, "/t.Test/Sleep", b"", timeout=0.2)


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"none\.sock: No such file or directory"):
        call(tmp_path / "none.sock", "/t.Test/Echo", b"")


@contextmanager
def answering(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serve one connection at this path, without gRPC."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            sock, _ = listener.accept()
            with sock:
                serve(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(64), b"\xff" * 64])
def test_no_grpc(tmp_path: Path, answer: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.sendall(answer)

    with answering(tmp_path / "p.sock", serve), pytest.raises(Failed):
        call(tmp_path / "p.sock", "/t.Test/Echo", b"")


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">HBBBI", len(body) >> 8, len(body) & 255, kind, flags, stream) + body


def header(name: bytes, value: bytes) -> bytes:
    """HPACK: a literal without indexing, RFC 7541 6.2.2; for lengths below 127."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request(stream: int, path: bytes, body: bytes, flags: int = END_STREAM) -> bytes:
    headers = {b":method": b"POST", b":path": path, b"content-type": b"application/grpc", b"te": b"trailers"}
    block = b"".join(header(*pair) for pair in headers.items())
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, flags, stream, body)


def test_a_server_that_stops_reading(tmp_path: Path) -> None:
    """The connection ends with the call, although the server has not read all of the request."""
    windows = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, MESSAGE_MOST))
    windows += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", MESSAGE_MOST))
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        sock.sendall(windows)
        read = 0
        while read < 1_000_000:
            read += len(sock.recv(1 << 16))
        sock.sendall(frame(RST_STREAM, 0, 1, struct.pack(">I", 7)))  # REFUSED_STREAM
        over.wait(60)

    with answering(tmp_path / "p.sock", serve):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(Failed, match="Stream reset"):
            call(tmp_path / "p.sock", "/t.Test/Echo", bytes(10_000_000))
        after = len(os.listdir("/proc/self/fd"))
        over.set()
    assert after - before == 1  # the server's end


ABC = b"\0\0\0\0\5\n\3abc"
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HELLO + frame(GOAWAY, 0, 0, bytes(8)),
        HELLO + frame(DATA, 0, 0, b"x"),
        HELLO + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        HELLO + frame(SETTINGS, 0, 0, b"x"),
        HELLO + frame(CONTINUATION, 0, 1, b"x"),
        HELLO + frame(HEADERS, END_HEADERS, 1, b"\xff" * 9),
    ],
    ids=range(7),
)
def test_hangs_up(served: Served, channel: grpc.Channel, data: bytes) -> None:
    """A peer that does not speak HTTP/2 loses its connection; others do not."""
    with served.connect() as sock, suppress(ConnectionError):
        sock.sendall(data)
        while sock.recv(1 << 16):
            pass
    assert asking(channel, "/t.Test/Echo")(b"on", timeout=60) == b"on"


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=30)), max_size=30)
)
def test_any_frames(served: Served, frames: list[tuple[int, int, int, bytes]]) -> None:
    with served.connect() as sock, suppress(ConnectionError):
        sock.sendall(HELLO + b"".join(frame(*one) for one in frames))
    assert served.process.poll() is None


def test_one_connection_after_the_other(served: Served, channel: grpc.Channel) -> None:
    """An ended connection costs nothing, whether its request was whole or not."""
    echo = asking(channel, "/t.Test/Echo")
    echo(b"on", timeout=60)
    before = served.peak
    for number in range(1000):
        with served.connect() as sock:
            sock.sendall(HELLO + request(1, b"/t.Test/Echo", ABC, flags=number % 2))
            sock.recv(1)
    assert echo(b"on", timeout=60) == b"on"
    assert served.peak - before < GROWTH
