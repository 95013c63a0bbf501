"""The server of metrics, with Python's HTTP client and with peers that violate the protocol."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import pytest
from support.metrics_server import LINES, serving
from support.topology import until

from base.child_process import Child
from node.metrics import server as metrics
from node.metrics.address import Address
from node.metrics.server import CONNECTIONS_MOST, PACE, Server

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
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
    """The answer to these bytes, until the server closes the connection."""
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


def test_the_page_is_whole(client: HTTPConnection) -> None:
    for _ in range(3):
        status, page = ask(client)
        assert (status, page.count(b"hpn_line{"), page.count(b"\nmade ")) == (200, LINES, 1)


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
        ("GET", "/metrics.txt", b"", 404),
        ("GET", "http://localhost/metrics", b"", 404),
        ("HEAD", "/metrics", b"", 405),
        ("POST", "/metrics", b"", 405),
        ("POST", "/metrics", b"x" * 100, 405),
        ("DELETE", "/", b"", 405),
        ("OPTIONS", "*", b"", 405),
    ],
)
def test_there_is_nothing_else(client: HTTPConnection, method: str, path: str, body: bytes, status: int) -> None:
    client.request(method, path, body or None)
    answer = client.getresponse()
    assert (answer.status, answer.read() == b"") == (status, method == "HEAD")
    assert answer.getheader("Allow") == ("GET" if status != 404 else None)


def test_a_page_is_used_again_for_a_while() -> None:
    """At any rate of requests, making pages takes a tenth of the time."""
    made = set[tuple[float, ...]]()
    with serving(lines=10 * LINES) as served:  # ten times its build time is longer than the pause between connections
        client = HTTPConnection("127.0.0.1", served.port, timeout=60)

        def other_pages() -> bool:
            made.add(tuple(map(float, ask(client)[1].rpartition(b"made")[2].split())))
            return len(made) == 3

        until(other_pages)
        client.close()
    for (began, first), (_, second) in pairwise(sorted(made)):
        assert second - first > 9 * (first - began)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /metrics HTTP/9.1\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 101, b"431"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 16), b"431"),
    ],
)
def test_what_is_no_request_ends_the_connection(port: int, data: bytes, status: bytes) -> None:
    assert status in said(port, data)  # in the first line, or in the page for a peer of unknown version


def test_one_request_at_a_time(port: int) -> None:
    """Only the first request is answered, not those sent before the answer."""
    answered = said(port, GET * 3)
    assert answered.count(b"HTTP/1.0 200") == 1
    assert answered.count(b"hpn_line{") == LINES


def test_a_request_that_does_not_end() -> None:
    with serving(hurry=10) as served:
        began = time.monotonic()
        assert said(served.port, GET[:-2]) == b""
        assert time.monotonic() - began > 0.9


def test_an_answer_that_nobody_takes() -> None:
    lines = 40 * LINES  # more than the kernel buffers for a connection
    with serving(lines=lines, hurry=5) as served, socket.socket() as sock:
        before = served.descriptors()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", served.port))
        sock.sendall(GET)
        client = HTTPConnection("127.0.0.1", served.port, timeout=60)
        assert ask(client)[0] == 200  # others get their answers
        client.close()
        until(lambda: served.descriptors() == before)
        assert everything(sock).count(b"hpn_line{") < lines


def test_more_connections_than_there_is_room_for() -> None:
    """The connection that has been silent for longest is closed, long before its timeout."""
    with ExitStack() as stack:
        port = stack.enter_context(serving(hurry=1 / 360)).port
        peers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(CONNECTIONS_MOST)
        ]
        client = HTTPConnection("127.0.0.1", port, timeout=60)
        assert ask(client)[0] == 200
        client.close()
        peers[1].sendall(GET)
        assert peers[1].recv(12) == b"HTTP/1.0 200"
        assert peers[0].recv(1) == b""


def test_who_asks_all_the_time() -> None:
    """Connections are accepted one after the other, with a pause between."""
    with serving(lines=1) as served:
        client = HTTPConnection("127.0.0.1", served.port, timeout=60)
        began = time.monotonic()
        for _ in range(20):
            assert ask(client)[0] == 200
        assert time.monotonic() - began > 19 * PACE
        client.close()


def test_nothing_wakes_it_up() -> None:
    with serving(lines=1) as served:
        client = HTTPConnection("127.0.0.1", served.port, timeout=60)
        assert ask(client)[0] == 200
        client.close()

        def sleeps() -> bool:
            before = served.switches()
            # time: nothing is to happen
            time.sleep(2)
            return served.switches() == before

        until(sleeps)


def test_others_are_heard_meanwhile() -> None:
    ends = threading.Event()

    def flood(port: int) -> None:
        while not ends.is_set():
            with suppress(OSError):
                said(port, GET)

    with serving(lines=1) as served, ThreadPoolExecutor(CONNECTIONS_MOST) as pool:
        for _ in range(CONNECTIONS_MOST - 1):
            pool.submit(flood, served.port)
        try:
            client = HTTPConnection("127.0.0.1", served.port, timeout=60)
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


def test_a_page_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver or a disk blocks: the process ends, and its parent can start another one."""
    monkeypatch.setattr(metrics, "_LONGEST", 1)
    hold, release = os.pipe()
    ours, theirs = socket.socketpair()
    listener = Address(host="127.0.0.1").listen()
    with ours, theirs, listener:
        server = Server(listener, lambda: os.read(hold, 1))
        child = Child(partial(server.serve_until_end_of, theirs), keeps=(listener.fileno(), theirs.fileno()))
        try:
            assert said(listener.getsockname()[1], GET) == b""
        except TimeoutError:
            child.end()
            raise
        finally:
            os.close(hold)
            os.close(release)
        with pytest.raises(ChildProcessError, match="ended with status -14"):
            child.answer()
