"""A peer that breaks every rule costs the server a bounded amount of memory, and nobody else their answers."""

import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology import until
from unit.grpc_server import DEVICES, Served, serving

from node.grpc.guard import FRAMES_MOST, PREFACE
from node.grpc.server import CONNECTIONS_MOST

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
GROWTH = 12 << 20  # bytes that all of a test may cost


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">HBBBI", len(body) >> 8, len(body) & 255, kind, flags, stream) + body


def header(name: bytes, value: bytes) -> bytes:
    """HPACK: a literal without indexing, RFC 7541 6.2.2; for lengths below 127."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request(stream: int, path: bytes, body: bytes = b"", *, flags: int = END_STREAM) -> bytes:
    block = header(b":path", path) + header(b"content-type", b"application/grpc")
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, flags, stream, body)


LONG = b"\0\0\7\0\0" + bytes(11_000)
ABC = b"\0\0\0\0\3abc"
EMPTY = b"\0\0\0\0\0"
HELLO = PREFACE + frame(SETTINGS, 0, 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """One that does not hang up because time has passed."""
    with serving(tmp_path / "s.sock", "3600") as one:
        yield one


def echo(served: Served) -> None:
    """Ask as a decent peer."""
    with grpc.insecure_channel(f"unix:{served.path}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        assert channel.unary_unary("/t.Test/Echo")(b"on", timeout=60) == b"on"


def pour(sock: socket.socket, data: bytes) -> int:
    """Send it, and read what comes; how much the server took before it hung up, or took no more for so long."""
    rest = memoryview(data)
    while rest:
        readable, writable, _ = select.select([sock], [sock], [], 60)
        if not readable and not writable:
            break
        try:
            if writable:
                rest = rest[sock.send(rest[: 1 << 14]) :]
            if readable and not sock.recv(1 << 20):
                break
        except ConnectionError:
            break
    return len(data) - len(rest)


def receive(sock: socket.socket, expected: bytes) -> None:
    received = b""
    while expected not in received:
        received += (piece := sock.recv(1 << 16))
        assert piece, received


def hangs_up(sock: socket.socket) -> bool:
    with suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass
    return True


MANY = FRAMES_MOST + 1
FLOODS = {
    "ping": frame(PING, 0, 0, bytes(8)) * MANY,
    "settings": frame(SETTINGS, 0, 0) * MANY,
    "reset": b"".join(request(i, b"/t.Test/Watch") + frame(RST, 0, i, bytes(4)) for i in range(1, MANY, 2)),
    "window": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * MANY,
    "empty": request(1, b"/t.Test/Echo", flags=0) + frame(DATA, 0, 1) * MANY,
    "unknown": frame(99, 0, 0) * MANY,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_floods(served: Served, flood: str) -> None:
    echo(served)
    before = served.peak
    with served.connect() as sock:
        pour(sock, HELLO + FLOODS[flood])
        echo(served)
        assert hangs_up(sock)
    assert served.peak - before < GROWTH


def test_answers_that_nobody_reads(served: Served) -> None:
    echo(served)
    before = served.peak
    with served.connect() as sock:
        # time: it ends by that, or is hung up on
        sock.settimeout(1)
        with pytest.raises((TimeoutError, ConnectionError)):
            sock.sendall(HELLO + frame(PING, 0, 0, bytes(8)) * 1_000_000)
        echo(served)
    assert served.peak - before < GROWTH


def test_a_watcher_that_reads_nothing(served: Served) -> None:
    """It is told 2,000 lists, keeps all windows shut, and costs two of them."""
    with served.connect() as shut, served.connect() as deaf:
        shut.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + request(1, b"/t.Test/Watch", EMPTY))
        deaf.sendall(HELLO + request(1, b"/t.Test/Watch", EMPTY))
        with grpc.insecure_channel(f"unix:{served.path}") as channel:
            tell = channel.unary_unary("/t.Test/Tell")
            while tell(b"x", timeout=60) != b"2":
                pass
            before = served.peak
            for _ in range(2000):
                tell(DEVICES, timeout=60)
    assert served.peak - before < GROWTH


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
        HELLO + b"\xff\xff\xff\0\0\0\0\0\1",
        HELLO + frame(HEADERS, 0, 1, bytes(1 << 14)) + frame(CONTINUATION, 0, 1, b"x"),
        HELLO + frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 70,
        HELLO + frame(HEADERS, END_HEADERS, 1, b"\x40" + header(b"x", b"y" * 120)[1:] + b"\xbe" * 9000),
        HELLO + b"".join(request(2 * i + 1, b"/t.Test/Watch", EMPTY) for i in range(101)),
        HELLO + b"".join(request(2 * i + 1, b"/t.Test/Echo", LONG, flags=0) for i in range(99)),
    ],
    ids=range(13),
)  # fmt: skip
def test_hangs_up_at_once(served: Served, data: bytes) -> None:
    with served.connect() as sock:
        pour(sock, data)
        assert hangs_up(sock)
    echo(served)


def test_a_gigabyte_is_announced(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(HELLO + request(1, b"/t.Test/Echo", b"\0\x40\0\0\0" + bytes(9), flags=0))
        receive(sock, frame(RST, 0, 1, bytes(4)))


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_byte_at_a_time(served: Served, size: int) -> None:
    data = HELLO + request(1, b"/t.Test/Echo", ABC)
    with served.connect() as sock:
        for at in range(0, len(data), size):
            sock.sendall(data[at : at + size])
        receive(sock, ABC)


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=30)), max_size=30)
)
def test_any_frames(fuzzed: Served, frames: list[tuple[int, int, int, bytes]]) -> None:
    with fuzzed.connect() as sock:
        pour(sock, HELLO + b"".join(frame(*one) for one in frames))
    assert fuzzed.process.poll() is None


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fuzzed") / "s.sock") as one:
        yield one
        echo(one)


def test_one_connection_after_the_other(served: Served) -> None:
    """What has ended costs nothing any more, whether or not its request was whole."""
    echo(served)
    before = served.peak
    for number in range(1000):
        with served.connect() as sock:
            sock.sendall(HELLO + request(1, b"/t.Test/Echo", ABC, flags=number % 2))
            sock.recv(1)
    echo(served)
    assert served.peak - before < GROWTH


def test_many_half_requests_of_many_peers(served: Served) -> None:
    """Whoever has sent most of what is not whole goes, and others have their answers."""
    half = HELLO + b"".join(request(2 * i + 1, b"/t.Test/Echo", LONG, flags=0) for i in range(50))
    echo(served)
    before = served.peak
    with ExitStack() as stack:
        peers = [stack.enter_context(served.connect()) for _ in range(CONNECTIONS_MOST // 2)]
        for sock in peers:
            pour(sock, half)
        echo(served)
        assert hangs_up(peers[0])
    assert served.peak - before < GROWTH


def test_no_room(served: Served) -> None:
    """Of connections without a call the longest idle one goes; those with a call stay, and then nobody new comes in."""
    with ExitStack() as stack:

        def ask(method: bytes) -> socket.socket:
            sock = stack.enter_context(served.connect())
            sock.sendall(HELLO + request(1, b"/t.Test/" + method, ABC))
            receive(sock, ABC)
            return sock

        idle = [ask(b"Echo") for _ in range(2)]
        watching = [ask(b"Watch") for _ in range(CONNECTIONS_MOST)]
        assert all(map(hangs_up, idle))
        assert hangs_up(stack.enter_context(served.connect()))
        watching.pop().close()

        def is_let_in() -> bool:
            with suppress(AssertionError, ConnectionError):  # it has not heard of that end yet
                ask(b"Echo")
                return True
            return False

        until(is_let_in)


def test_no_descriptors(served: Served) -> None:
    """A newcomer that cannot be let in waits, and nothing spins meanwhile."""
    open_now = len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))
    soft, hard = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (open_now, hard))
    with served.connect() as sock:
        sock.sendall(HELLO + request(1, b"/t.Test/Echo", ABC))
        # time: nothing is to happen
        time.sleep(1.5)
        assert served.ticks < 50
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        receive(sock, ABC)


def test_a_slow_reader_with_open_windows(served: Served) -> None:
    """It has all of a long message, however little its socket takes."""
    size = 500_000
    windows = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)) + frame(
        WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)
    )
    with served.connect() as sock:
        sock.sendall(PREFACE + windows + request(1, b"/t.Test/Watch", b"\0\0\0\0\1x"))
        receive(sock, b"\0\0\0\0\1x")
        with grpc.insecure_channel(f"unix:{served.path}") as channel:
            assert channel.unary_unary("/t.Test/Tell")(bytes(size), timeout=60) == b"1"
        received = 0
        while received < size:
            received += len(piece := sock.recv(1 << 12))
            assert piece


def test_half_of_everything(tmp_path: Path) -> None:
    """Connections that send nothing, or half of something, end by themselves, and leave room for others."""
    whole = HELLO + request(1, b"/t.Test/Echo", EMPTY)
    with serving(tmp_path / "s.sock") as served:
        peers = [served.connect() for _ in range(CONNECTIONS_MOST)]
        for i, sock in enumerate(peers):
            sock.sendall(whole[: i * (len(whole) - 1) // len(peers)])
        echo(served)
        for sock in peers:
            assert hangs_up(sock)
            sock.close()
