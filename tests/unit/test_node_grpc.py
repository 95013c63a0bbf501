"""grpcio, the protocol's own implementation, as client of the server and as server of the client."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from unit.grpc_server import DEVICES, Served, serving

from node.grpc.client import call
from node.grpc.status import Code, Failed, decode, encode


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("grpc") / "s.sock") as one:
        yield one


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{served.path}") as one:
        yield one


@pytest.mark.parametrize("size", [0, 1, 16384, 70_000, 500_000])
def test_unary(channel: grpc.Channel, size: int) -> None:
    message = os.urandom(size)
    assert channel.unary_unary("/t.Test/Echo")(message, timeout=60) == message


def test_many_calls_on_a_connection(channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/t.Test/Echo")
    calls = [echo.future(b"%d" % i, timeout=60) for i in range(500)]
    assert [one.result() for one in calls] == [b"%d" % i for i in range(500)]


def test_two_services(channel: grpc.Channel) -> None:
    assert channel.unary_unary("/t.Other/Echo")(b"abc", timeout=60) == b"cba"


@pytest.mark.parametrize(
    ("method", "message", "code", "says"),
    [
        ("/t.Test/None", b"", grpc.StatusCode.UNIMPLEMENTED, "there is no method /t.Test/None here"),
        ("/t.Test/Refuse", "50% of ä\n".encode(), grpc.StatusCode.FAILED_PRECONDITION, "50% of ä\n"),
        ("/t.Test/Break", b"", grpc.StatusCode.INTERNAL, "it failed; the log of hpn node says why"),
        ("/t.Test/Echo", bytes(600_000), grpc.StatusCode.RESOURCE_EXHAUSTED, "600000 bytes; 524288 are the most"),
    ],
)
def test_failures(channel: grpc.Channel, method: str, message: bytes, code: grpc.StatusCode, says: str) -> None:
    with pytest.raises(grpc.RpcError) as e:
        channel.unary_unary(method)(message, timeout=60)
    assert e.value.code() == code
    assert says in e.value.details()
    assert channel.unary_unary("/t.Test/Echo")(b"on", timeout=60) == b"on"


def test_compressed(served: Served) -> None:
    with (
        grpc.insecure_channel(f"unix:{served.path}", compression=grpc.Compression.Gzip) as channel,
        pytest.raises(grpc.RpcError) as e,
    ):
        channel.unary_unary("/t.Test/Echo")(bytes(1000), timeout=60)
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("authority", ["localhost", "%2Frun%2Fx.sock", "", "what is this"])
def test_any_authority(served: Served, authority: str) -> None:
    with grpc.insecure_channel(f"unix:{served.path}", options=[("grpc.default_authority", authority)]) as channel:
        assert channel.unary_unary("/t.Test/Echo")(b"on", timeout=60) == b"on"


def test_watch(channel: grpc.Channel) -> None:
    """3,000 devices are more than both windows; then each change."""
    stream = channel.unary_stream("/t.Test/Watch")(b"", timeout=60)
    assert next(stream) == DEVICES
    for message in (b"a", bytes(100_000), b""):
        assert channel.unary_unary("/t.Test/Tell")(message, timeout=60) == b"1"
        assert next(stream) == message
    stream.cancel()


def test_fifty_watchers(served: Served) -> None:
    channels = [
        grpc.insecure_channel(f"unix:{served.path}", options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(50)
    ]
    streams = [channel.unary_stream("/t.Test/Watch")(b"", timeout=60) for channel in channels]
    assert {next(stream) for stream in streams} == {DEVICES}
    tell = channels[0].unary_unary("/t.Test/Tell")
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
    assert call(peer, "/t.Test/Echo", message, timeout=60) == message


@pytest.mark.parametrize(
    ("method", "message", "code", "says"),
    [
        ("/t.Test/None", b"", Code.UNIMPLEMENTED, "Method not found!"),
        ("/t.Test/Refuse", "50% of ä".encode(), 5, "50% of ä"),
        ("/t.Test/Echo", bytes(17 << 20), Code.RESOURCE_EXHAUSTED, "larger than max"),
    ],
)
def test_client_is_refused(peer: Path, method: str, message: bytes, code: int, says: str) -> None:
    with pytest.raises(Failed, match=says) as e:
        call(peer, method, message, timeout=60)
    assert e.value.code == code


def test_deadline(peer: Path) -> None:
    with pytest.raises(Failed, match=r"p.sock did not answer in 0\.2 s"):
        # time: it ends by that
        call(peer, "/t.Test/Sleep", b"", timeout=0.2)


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"none\.sock: No such file or directory"):
        call(tmp_path / "none.sock", "/t.Test/Echo", b"", timeout=60)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(64), b"\xff" * 64])
def test_no_grpc(tmp_path: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "p.sock"))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Failed):
            call(tmp_path / "p.sock", "/t.Test/Echo", b"", timeout=60)
        thread.join()


def test_messages_of_a_status() -> None:
    assert encode("50% of ä\n") == b"50%25 of %C3%A4%0A"
    assert decode(encode("50% of ä")) == "50% of ä"
    assert decode(b"%zz%41\n%0Ab%") == "%zzA b%"
    assert len(encode("ä" * 10_000)) <= 1000
    assert decode(encode("ä" * 10_000)).rstrip("\ufffd") == "ä" * len(decode(encode("ä" * 10_000)).rstrip("\ufffd"))
