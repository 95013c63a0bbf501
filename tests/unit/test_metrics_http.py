"""The server of metrics, asked by Python's own HTTP client and by peers that break every rule."""

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import pytest
from topology import until
from unit.metrics_server import LINES, serving

from node.loop import Loop
from node.metrics.collection import Collection
from node.metrics.http import CONNECTIONS_MOST, HEARD_MOST, REQUEST_MOST, Server

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def port() -> Iterator[int]:
    with serving() as served:
        yield served.port


@pytest.fixture
def client(port: int) -> Iterator[HTTPConnection]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    yield connection
    connection.close()


def ask(client: HTTPConnection, method: str = "GET", path: str = "/metrics", body: bytes = b"") -> tuple[int, bytes]:
    client.request(method, path, body or None)
    answer = client.getresponse()
    return answer.status, answer.read()


def said(port: int, data: bytes) -> bytes:
    """What comes for these bytes, until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(data)
        return everything(sock)


def everything(sock: socket.socket) -> bytes:
    found = b""
    try:
        while more := sock.recv(1 << 16):
            found += more
    except ConnectionResetError:
        pass
    return found


def test_the_page_is_whole_and_the_connection_stays(client: HTTPConnection) -> None:
    client.connect()
    sock = client.sock
    for _ in range(3):
        status, page = ask(client)
        assert (status, page.count(b"hpn_line{"), page.count(b"\nmade ")) == (200, LINES, 1)
    assert client.sock is sock


def test_its_type_is_the_text_formats(client: HTTPConnection) -> None:
    client.request("GET", "/metrics?x=y")
    answer = client.getresponse()
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.read().endswith(b"\n")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/metrics/", b"", 404),
        ("GET", "//metrics", b"", 404),
        ("GET", "http://localhost/metrics", b"", 404),
        ("HEAD", "/metrics", b"", 405),
        ("POST", "/metrics", b"", 405),
        ("POST", "/metrics", b"x" * 100, 405),
        ("DELETE", "/", b"", 405),
        ("OPTIONS", "*", b"", 405),
        ("GET", "/metrics", b"x", 413),
    ],
)
def test_there_is_nothing_else(client: HTTPConnection, method: str, path: str, body: bytes, status: int) -> None:
    client.request(method, path, body or None)
    answer = client.getresponse()
    assert (answer.status, answer.read() == b"") == (status, method == "HEAD")
    assert answer.getheader("Allow") == ("GET" if status != 404 else None)


def test_a_page_is_used_again_for_a_while(client: HTTPConnection) -> None:
    """A tenth of the time goes into making pages, however often somebody asks."""
    made = set[tuple[float, ...]]()

    def other_pages() -> bool:
        made.add(tuple(map(float, ask(client)[1].rpartition(b"made")[2].split())))
        return len(made) == 3

    until(other_pages)
    for (began, first), (_, second) in pairwise(sorted(made)):
        assert second - first > 9 * (first - began)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /" + b"m" * REQUEST_MOST, b"431"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * REQUEST_MOST, b"431"),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
def test_what_is_no_request_ends_the_connection(port: int, data: bytes, status: bytes) -> None:
    assert said(port, data).startswith(b"HTTP/1.1 " + status)


def test_one_request_at_a_time(port: int) -> None:
    """What was sent before the answer has come is not answered, and the first is."""
    answered = said(port, GET * 3)
    assert answered.count(b"HTTP/1.1 200") == 1
    assert answered.count(b"hpn_line{") == LINES


def test_a_request_that_does_not_end(port: int) -> None:
    began = time.monotonic()
    assert said(port, GET[:-2]) == b""
    assert time.monotonic() - began > 9


def test_an_answer_that_nobody_takes() -> None:
    lines = 40 * LINES  # more than the kernel keeps of a connection
    with serving(lines=lines) as served, socket.socket() as sock:
        before = served.descriptors()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", served.port))
        sock.sendall(GET)
        client = HTTPConnection("127.0.0.1", served.port, timeout=60)
        assert ask(client)[0] == 200  # others have theirs
        client.close()
        until(lambda: served.descriptors() == before)
        assert everything(sock).count(b"hpn_line{") < lines


def test_more_connections_than_there_is_room_for() -> None:
    """Who has been idle for longest goes, long before it is to have asked."""
    with ExitStack() as stack:
        port = stack.enter_context(serving(patience=3600)).port
        peers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(CONNECTIONS_MOST)
        ]
        client = HTTPConnection("127.0.0.1", port, timeout=60)
        assert ask(client)[0] == 200
        client.close()
        peers[1].sendall(GET)
        assert peers[1].recv(12) == b"HTTP/1.1 200"
        assert peers[0].recv(1) == b""


def test_who_hangs_up_is_forgotten() -> None:
    """While a page is made that takes long."""
    loop, (hold, release) = Loop(), os.pipe()
    collection = Collection(loop, lambda: (os.read(hold, 1), ()), lambda _: None)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = Server(loop, listener, collection.ask, collection.withdraw)
    for _ in range(20):
        with socket.create_connection(address) as sock:
            sock.sendall(GET)
        for _ in range(4):
            loop.turn(0.01)

    def left() -> int:
        loop.turn(0.01)  # it may rest for a while
        gc.collect()
        return sum(type(one).__name__ == "_Peer" for one in gc.get_objects())

    until(lambda: left() == 0)
    server.close()
    collection.close()
    loop.close()
    os.close(hold)
    os.close(release)


def test_who_asks_all_the_time() -> None:
    """They are heard so often in a second and no more; the first second may have begun before."""
    with serving(lines=1) as served:
        client = HTTPConnection("127.0.0.1", served.port, timeout=60)
        began = time.monotonic()
        for _ in range(2 * HEARD_MOST):
            assert ask(client)[0] == 200
        assert time.monotonic() - began > 1
        client.close()


def test_others_are_heard_meanwhile() -> None:
    ends = threading.Event()

    def flood(port: int) -> None:
        while not ends.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as sock:
                while not ends.is_set():
                    sock.sendall(GET)
                    if not sock.recv(1 << 16):
                        break

    with serving(lines=1) as served, ThreadPoolExecutor(CONNECTIONS_MOST) as pool:
        for _ in range(CONNECTIONS_MOST - 1):
            pool.submit(flood, served.port)
        try:
            client = HTTPConnection("127.0.0.1", served.port, timeout=60)
            # One connection: with another one there would be more than there is room for.
            assert [ask(client)[0] for _ in range(3)] == [200] * 3
            client.close()
        finally:
            ends.set()


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "new" / "m.sock"
    with serving(f"unix:{path}"):
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
            assert everything(sock).count(b"hpn_line{") == LINES
