"""HTTP to a backend's servers: which requests are repeated, and which servers are trusted."""

import ctypes
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from support.tls_server import Asked, Authority, Server, Told, authority, serving

from base.kernel import budget
from base.kubernetes import http
from base.kubernetes.http import Answer, Http
from base.kubernetes.tls import Tls, certificate
from base.protocol.errors import BackendRefused, Unreachable

ADDRESS = "IP:127.0.0.1"
_SO_ATTACH_FILTER = 26


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(signer: Authority, tmp_path: Path) -> Iterator[Server]:
    with serving(*signer.sign("/CN=server", names=ADDRESS), folder=tmp_path) as one:
        yield one


@contextmanager
def client(*urls: str, is_patient: bool = False, **trusted: bytes | str) -> Iterator[Http]:
    one = Http(urls, lambda: Tls(**trusted), is_patient=is_patient)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        one.close()


def closed_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"https://127.0.0.1:{one.getsockname()[1]}"


def test_an_answer(server: Server, signer: Authority) -> None:
    server.tell(Told(201, {"a": 1}))
    with client(server.url, ca=signer.ca) as http:
        answer = http.ask("POST", "/things?x=1", {"b": 2}, is_safe=False)
    # The date is the server's; the number is from `date +%s`.
    assert answer == Answer(201, b'{"a": 1}', at=1795413600.0)
    assert (answer.json(), answer.again) == ({"a": 1}, False)
    asked = server.asked[0]
    assert (asked.method, asked.path, asked.body) == ("POST", "/things?x=1", {"b": 2})
    assert asked.headers["Content-Type"] == "application/json"


def test_the_connection_is_kept(server: Server, signer: Authority) -> None:
    with client(server.url, ca=signer.ca) as http:
        for _ in range(3):
            http.ask("GET", "/", is_safe=True)
    assert len({asked.peer for asked in server.asked}) == 1


def test_a_connection_that_the_server_has_ended_is_not_used(server: Server, signer: Authority) -> None:
    """A change sent on it would count as possibly done."""
    server.tell(Told(headers={"Connection": "close"}))
    with client(server.url, ca=signer.ca) as http:
        http.ask("GET", "/", is_safe=True)
        assert http.ask("POST", "/", {}, is_safe=False).status == 200
    assert len({asked.peer for asked in server.asked}) == 2


def test_a_certificate_that_cannot_be_read_meanwhile(server: Server, signer: Authority) -> None:
    """OpenSSL keeps one queue of errors for a thread, and a read that has to wait would find it there."""

    def late(_: Asked) -> Told:
        # time: the read is to begin first
        time.sleep(0.1 * (len(server.asked) - 1))
        return Told()

    server.route = late
    with client(server.url, ca=signer.ca) as http:
        http.ask("GET", "/", is_safe=True)
        assert certificate(b"") is None
        assert not http.ask("GET", "/", is_safe=True).again


def test_a_path_of_the_server(server: Server, signer: Authority) -> None:
    with client(f"{server.url}/k8s/clusters/c-1/", ca=signer.ca) as http:
        http.ask("GET", "/version", is_safe=True)
    assert server.asked[0].path == "/k8s/clusters/c-1/version"


@pytest.mark.parametrize(
    "fault",
    [Told(cut=0), Told(body={"a": "long"}, cut=3), Told(500, {"message": "etcdserver: request timed out"}), Told(504)],
    ids=["no answer", "half an answer", "500", "504"],
)
def test_a_change_that_may_have_been_made_is_not_asked_again(server: Server, signer: Authority, fault: Told) -> None:
    server.tell(fault)
    with client(server.url, ca=signer.ca) as http, pytest.raises(Unreachable) as failed:
        http.ask("POST", "/things", {}, is_safe=False)
    assert len(server.asked) == 1
    assert "gives no answer to POST /things" in failed.value.msg


@pytest.mark.parametrize(
    "fault",
    [Told(cut=0), Told(body={"a": "long"}, cut=3), Told(500), Told(503)],
    ids=["no answer", "half", "500", "503"],
)
def test_a_question_is_asked_again(server: Server, signer: Authority, fault: Told) -> None:
    server.tell(fault, Told(body={"a": 1}))
    with client(server.url, ca=signer.ca) as http:
        answer = http.ask("GET", "/", is_safe=True)
    assert (answer.json(), answer.again) == ({"a": 1}, True)
    assert len(server.asked) == 2


def test_a_server_that_is_busy_has_not_begun(server: Server, signer: Authority) -> None:
    server.tell(Told(429, headers={"Retry-After": "1"}), Told(201))
    with client(server.url, ca=signer.ca) as http:
        assert http.ask("POST", "/", {}, is_safe=False).status == 201
    assert budget.left() < budget.REQUEST - 1


def test_a_server_that_stays_busy(server: Server, signer: Authority) -> None:
    server.tell(Told(429, {"message": "too many requests"}, {"Retry-After": "3600"}))
    with client(server.url, ca=signer.ca) as http, pytest.raises(Unreachable, match="too many requests"):
        http.ask("POST", "/", {}, is_safe=False)
    assert len(server.asked) == 1


def test_nobody_is_there() -> None:
    url = closed_port()
    with client(url) as http, pytest.raises(Unreachable, match=f"{url} gives no answer.*Connection refused"):
        http.ask("POST", "/", {}, is_safe=False)


def test_another_server_is_there(server: Server, signer: Authority) -> None:
    with client(closed_port(), server.url, ca=signer.ca) as http:
        assert http.ask("POST", "/", {}, is_safe=False).status == 200
        assert http.server == server.url


def test_a_server_that_has_failed_is_left(server: Server, signer: Authority, tmp_path: Path) -> None:
    """An etcd member without a leader answers 503 for as long as it is cut off."""
    (tmp_path / "other").mkdir()
    with (
        serving(*signer.sign("/CN=server", names=ADDRESS), folder=tmp_path / "other") as other,
        client(server.url, other.url, ca=signer.ca) as http,
    ):
        server.tell(*[Told(503)] * 9)
        assert http.ask("POST", "/", {}, is_safe=True).status == 200
        assert http.ask("POST", "/", {}, is_safe=False).status == 200
    assert len(server.asked) == 1


def test_the_time_is_over(server: Server, signer: Authority) -> None:
    server.tell(Told(is_silent=True))
    budget.spend(budget.REQUEST - 0.2)
    with client(server.url, ca=signer.ca) as http, pytest.raises(Unreachable, match="no answer in time"):
        http.ask("GET", "/", is_safe=True)
    assert budget.left() == 0
    with client(server.url, ca=signer.ca) as http, pytest.raises(Unreachable):
        http.ask("GET", "/", is_safe=True)


def test_who_is_patient_has_a_budget_for_every_request(server: Server, signer: Authority) -> None:
    budget.spend(budget.REQUEST)
    with client(server.url, ca=signer.ca, is_patient=True) as http:
        http.begin()
        assert http.ask("GET", "/", is_safe=True).status == 200


def test_no_command_waits_and_each_request_has_a_budget(server: Server, signer: Authority) -> None:
    budget.begin(is_patient=True)
    budget.spend(budget.REQUEST)
    with client(server.url, ca=signer.ca) as http:
        http.begin()
        assert http.ask("GET", "/", is_safe=True).status == 200
        budget.begin()
        budget.spend(budget.REQUEST)
        http.begin()
        with pytest.raises(Unreachable):
            http.ask("GET", "/", is_safe=True)


def test_a_slow_server_costs_one_request(server: Server, signer: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would wait as long.  A connection that was kept may be the fault, so that one is replaced."""
    monkeypatch.setattr(http, "_TIMEOUT", 0.3)
    server.tell(Told(is_silent=True))
    with client(server.url, ca=signer.ca) as one:
        with pytest.raises(Unreachable, match="no answer in time"):
            one.ask("GET", "/", is_safe=True)
        assert len(server.asked) == 1
        monkeypatch.setattr(http, "_TIMEOUT", 60.0)
        assert one.ask("GET", "/", is_safe=True).status == 200
        server.tell(Told(is_silent=True))
        monkeypatch.setattr(http, "_TIMEOUT", 3.0)
        assert one.ask("GET", "/", is_safe=True).status == 200


def test_a_slow_server_is_left_for_another(server: Server, signer: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TIMEOUT", 3.0)
    server.tell(Told(is_silent=True))
    with client(server.url, server.url, ca=signer.ca) as one:
        assert one.ask("GET", "/", is_safe=True).status == 200
    assert len(server.asked) == 2


def test_a_server_that_no_longer_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that lost its power, or that a firewall cuts off, without a word.  Who is patient with a slow server does
    not wait for that, and sends over a new connection."""
    monkeypatch.setattr(http, "_DEAF", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        threads.submit(_serve_and_become_deaf, listener)
        try:
            with client(f"http://127.0.0.1:{listener.getsockname()[1]}", is_patient=True) as asking:
                asking._patience = 10.0
                for number in range(2):
                    asking.begin()
                    assert asking.ask("GET", f"/{number}", is_safe=True).again == (number == 1)
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _serve_and_become_deaf(listener: socket.socket) -> None:
    """Answer the first request of each connection, and drop what follows in the kernel."""
    with ExitStack() as stack, suppress(OSError):
        while True:
            connection = stack.enter_context(listener.accept()[0])
            connection.recv(1 << 16)
            drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET with 0 bytes
            program = struct.pack("HL", 1, ctypes.addressof(drop_all))
            connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_a_client_certificate(signer: Authority, tmp_path: Path) -> None:
    cert, key = signer.sign("/O=system:nodes/CN=system:node:node1")
    with serving(*signer.sign("/CN=server", names=ADDRESS), ca=signer.ca, folder=tmp_path) as server:
        with client(server.url, ca=signer.ca, cert=cert, key=key) as http:
            assert http.ask("GET", "/", is_safe=True).status == 200
        with client(server.url, ca=signer.ca) as http, pytest.raises((BackendRefused, Unreachable)):
            http.ask("GET", "/", is_safe=True)
    assert len(server.asked) == 1


def test_a_client_certificate_that_has_expired(signer: Authority, tmp_path: Path) -> None:
    cert, key = signer.sign("/CN=system:node:node1", until="20200102000000Z")
    with (
        serving(*signer.sign("/CN=server", names=ADDRESS), ca=signer.ca, folder=tmp_path) as server,
        client(server.url, ca=signer.ca, cert=cert, key=key, source="f") as http,
        pytest.raises(
            BackendRefused,
            match="certificate expired; that of f expired at 2020-01-02T00:00:00Z; renew it",
        ),
    ):
        http.ask("GET", "/", is_safe=True)


def test_a_server_of_another_authority(server: Server, signer: Authority, tmp_path: Path) -> None:
    with client(server.url) as http, pytest.raises(BackendRefused, match="is not trusted: unable to get local issuer"):
        http.ask("GET", "/", is_safe=True)
    assert server.asked == []


def test_a_server_whose_certificate_has_expired(signer: Authority, tmp_path: Path) -> None:
    old = signer.sign("/CN=server", names=ADDRESS, until="20200102000000Z")
    with (
        serving(*old, folder=tmp_path) as server,
        client(server.url, ca=signer.ca) as http,
        pytest.raises(BackendRefused, match="certificate has expired; renew it there, or correct this machine's clock"),
    ):
        http.ask("GET", "/", is_safe=True)


def test_the_name_in_the_servers_certificate(signer: Authority, tmp_path: Path) -> None:
    with serving(*signer.sign("/CN=server", names="DNS:kubernetes"), folder=tmp_path) as server:
        with client(server.url, ca=signer.ca, server_name="kubernetes") as http:
            assert http.ask("GET", "/", is_safe=True).status == 200
        with client(server.url, ca=signer.ca) as http, pytest.raises(BackendRefused, match="IP address mismatch"):
            http.ask("GET", "/", is_safe=True)


def test_certificates_that_are_none(server: Server, signer: Authority) -> None:
    cert, key = signer.sign("/CN=one")
    _, another = signer.sign("/CN=another")
    with (
        client(server.url, ca=b"x", source="f") as http,
        pytest.raises(BackendRefused, match="f: its certificate authority is not PEM"),
    ):
        http.ask("GET", "/", is_safe=True)
    for wrong in ({"cert": b"x", "key": key}, {"cert": cert, "key": another}):
        with (
            client(server.url, ca=signer.ca, source="f", **wrong) as http,
            pytest.raises(BackendRefused, match="f: its client certificate and key cannot be used"),
        ):
            http.ask("GET", "/", is_safe=True)


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "\x2e.example"])
def test_a_name_that_no_host_can_have(host: str) -> None:
    with client(f"https://{host}:6443") as one, pytest.raises(Unreachable, match="gives no answer to GET /x: "):
        one.ask("GET", "/x", is_safe=True)


def test_an_answer_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is in time, and all of them together are not."""
    monkeypatch.setattr(http, "_TIMEOUT", 0.3)

    def drip(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                with one, suppress(OSError):
                    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
                        one.sendall(bytes([byte]))
                        # time: the pace of bytes
                        time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with client(url) as one, pytest.raises(Unreachable, match="no answer in time"):
                one.ask("POST", "/", {}, is_safe=False)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
