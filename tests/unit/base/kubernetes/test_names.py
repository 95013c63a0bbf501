"""The look-up of a server's name ends with the request's time, whatever the name servers do."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import require
from support.topology import until

from base.kernel import budget
from base.kubernetes import http
from base.kubernetes.http import Http
from base.kubernetes.tls import Tls
from base.protocol.errors import Unreachable

ROOT = Path(__file__).parents[4]
# The only name server never answers.
SILENT = """
ip link set lo up
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
exec "$0" -c '
import socket, sys
sys.path.insert(0, ".")
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))
from base.protocol.errors import Unreachable
from base.kubernetes.http import Http
from base.kubernetes.tls import Tls
try:
    Http(["https://store.example:2379"], lambda: Tls()).ask("GET", "/", is_safe=True)
except Unreachable as e:
    print(e.msg)
'"""


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A name service that answers after the test."""
    over, asking = threading.Event(), threading.active_count()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [over.wait()][1:])
    yield
    over.set()
    until(lambda: threading.active_count() == asking)


def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "getaddrinfo")
    assert http.addresses("10.0.0.1", time.monotonic() + 60) == ["10.0.0.1"]
    assert http.addresses("fd00::1", time.monotonic() + 60) == ["fd00::1"]


def test_a_name() -> None:
    asked = [one[4][0] for one in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)]
    assert http.addresses("localhost", time.monotonic() + 60) == list(dict.fromkeys(asked))


@pytest.mark.parametrize("host", ["no such name", "nobody.invalid", "a" * 70])
def test_no_name(host: str) -> None:
    with pytest.raises(http.NotFound, match=rf"the name {host} could not be looked up: \w"):
        http.addresses(host, time.monotonic() + 60)


@pytest.mark.usefixtures("silent")
def test_it_takes_for_ever() -> None:
    with pytest.raises(http.NotFound, match="the name store could not be looked up in time"):
        # time: it ends by that
        http.addresses("store", time.monotonic() + 0.2)


def test_one_address_does_not_take_the_time_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first accepts no connection, because its queue is full."""
    monkeypatch.setattr(http, "_TIMEOUT", 20.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, socket.socket() as other:
        port = silent.getsockname()[1]
        other.bind(("127.0.0.2", port))
        other.listen()
        fill = [socket.socket() for _ in range(4)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))

        def reached() -> object:
            # time: half of it is the first one's; where we had no processor for the other half, again
            deadline = time.monotonic() + 4
            with (
                suppress(TimeoutError),
                http._connected_to(["127.0.0.1", "127.0.0.2"], port, deadline) as found,
            ):
                return found.getpeername()
            return None

        assert until(reached) == ("127.0.0.2", port)
        for one in fill:
            one.close()


def test_no_name_server_answers(tmp_path: Path) -> None:
    """glibc would wait for ten seconds, and report another error."""
    if os.geteuid():
        require("unit", "root, for a namespace with another resolv.conf")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    done = subprocess.run(
        ["unshare", "-mn", "sh", "-ec", SILENT, sys.executable, f"{tmp_path}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "the name store.example could not be looked up in time" in done.stdout, done.stderr


@pytest.mark.usefixtures("silent")
def test_through_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "REQUEST", 0.5)
    budget.begin()
    with pytest.raises(
        Unreachable, match=r"https://store:1 gives no answer to GET /: the name store could not be looked"
    ):
        Http(["https://store:1"], Tls).ask("GET", "/", is_safe=True)
