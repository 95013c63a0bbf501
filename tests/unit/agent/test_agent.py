"""The agent's server: after any bad or broken request it answers the next one."""

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import require
from support.agent_server import VERSION, Agent, answer, answered, descriptors, ended, everything, request
from support.topology import until

from agent import connection
from agent.connection import HEADER, MAGIC
from base.kernel.nsid import LeftToLauncher
from base.protocol.spec import Reply, Request

agent = pytest.fixture(ended, name="agent")


def test_it_answers(agent: Agent) -> None:
    assert answered(agent.ask(b'{"a":1}')) == 'False value {"a":1} False'


def test_it_knows_which_process_asks(agent: Agent) -> None:
    assert answered(agent.ask(b"process")) == f"{os.getpid()}"


@pytest.mark.parametrize("pieces", [2, 5, 29])
def test_a_request_in_pieces(agent: Agent, pieces: int) -> None:
    assert answered(agent.ask(pieces=pieces)) == "False value {} False"


def test_descriptors_come_along_and_are_closed(agent: Agent) -> None:
    fds = os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    before = descriptors()
    assert answered(agent.ask(fds=fds)) == "False value {} True"
    assert answered(agent.ask(fds=fds[:1])) == "False value {} False"
    agent.ask(fds=fds, version="f" * 16)
    until(lambda: descriptors() == before)
    for fd in fds:
        os.close(fd)


def test_descriptors_that_are_none_of_a_pod_are_closed_too(agent: Agent) -> None:
    """Duplicating the netlink socket fails, because the passed descriptor is no socket."""
    with Path("/dev/null").open() as file:
        agent.ask(b"pod", fds=(file.fileno(), file.fileno()))
        before = descriptors()
        for _ in range(50):
            agent.ask(b"pod", fds=(file.fileno(), file.fileno()))
        until(lambda: descriptors() <= before)


@pytest.mark.parametrize("many", [3, 5, 200])
def test_more_descriptors_than_a_launcher_passes_end_the_connection(agent: Agent, many: int) -> None:
    """The kernel drops some descriptors.  The request was not taken yet, so the launcher does the work itself."""
    before = descriptors()
    with Path("/dev/null").open() as file, agent.connect() as sock:
        socket.send_fds(sock, [request(b"{}")], [file.fileno()] * many)
        with suppress(ConnectionResetError):
            assert everything(sock) == b""
    assert answered(agent.ask()) == "False value {} False"
    until(lambda: descriptors() <= before)  # the last connection's end may be to come


def test_another_version_is_refused(agent: Agent) -> None:
    assert agent.ask(version="f" * 16) == connection.REFUSED


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n-----",
        HEADER.pack(MAGIC, VERSION.encode(), 0, 1 << 30, 0),
        HEADER.pack(MAGIC, VERSION.encode(), 0, 0, 1 << 30),
        HEADER.pack(MAGIC, VERSION.encode(), 7, 0, 0),
        HEADER.pack(b"HPN2", VERSION.encode(), 0, 0, 0),
        request(b"{}")[:-1],
        b"H",
        b"",
    ],
    ids=range(8),
)
def test_what_is_no_request_ends_the_connection(agent: Agent, frame: bytes) -> None:
    with agent.connect() as sock:
        sock.sendall(frame)
        sock.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # closed with some of it unread
            assert everything(sock) == b""
    assert answered(agent.ask()) == "False value {} False"


def test_what_is_left_to_the_launcher(tmp_path: Path) -> None:
    """The connection ends without an answer, as if the process were killed, and the server serves on."""

    def leaving(as_ipam: bool, request: Request) -> Reply:
        if request.stdin == b"left":
            raise LeftToLauncher
        return answer(as_ipam, request)

    agent = Agent(tmp_path / "s", leaving)
    try:
        for _ in range(2):
            assert agent.ask(b"left") == connection.TAKEN
        assert answered(agent.ask()) == "False value {} False"
    finally:
        agent.end()


@pytest.mark.parametrize(("environment", "stdin"), [(1, 0), (0, 1)])
def test_a_request_that_is_too_long(environment: int, stdin: int) -> None:
    """The header has the length, so the server buffers nothing."""
    most = connection.ENVIRONMENT_MOST, connection.STDIN_MOST
    assert connection.decode_header(HEADER.pack(MAGIC, VERSION.encode(), 0, *most)).end == HEADER.size + sum(most)
    with pytest.raises(ValueError, match="not a request"):
        connection.decode_header(HEADER.pack(MAGIC, VERSION.encode(), 0, most[0] + environment, most[1] + stdin))


def test_a_launcher_that_gave_up_is_not_served(tmp_path: Path) -> None:
    """The launcher does the work itself, so the server must not."""
    served = list[bytes]()

    def noting(as_ipam: bool, request: Request) -> Reply:
        served.append(request.stdin)
        return answer(as_ipam, request)

    agent = Agent(tmp_path / "s", noting, started=False)
    with agent.connect() as sock:
        sock.sendall(request(b"given up"))
        sock.shutdown(socket.SHUT_RDWR)
    agent.thread.start()
    agent.ask(b"next")
    agent.end()
    assert served == [b"next"]


def test_another_user_is_not_served() -> None:
    """For any permissions of the socket: the kernel reports the peer's user (man 7 unix, SO_PEERCRED)."""
    if os.geteuid():
        require("unit", "may not become another user; run as root")
    # An abstract name has no permissions, so the agent itself must refuse the other user.
    agent = Agent(f"\0hpn-test-{os.getpid()}", started=False)
    os.seteuid(65534)
    try:
        stranger = agent.connect()
    finally:
        os.seteuid(0)
    agent.thread.start()
    with stranger:
        try:
            stranger.sendall(request(b"{}"))
            told = everything(stranger)
        except (BrokenPipeError, ConnectionResetError):  # closed before its request came, or with it unread
            told = b""
    answer = agent.ask()
    agent.end()
    assert (told, answered(answer)) == (b"", "False value {} False")


def test_a_log_that_is_no_text() -> None:
    """It contains the name of a pod's interface, which may be any bytes."""
    assert connection.encode(Reply(log=("no \udcff",))).endswith(b"no \\udcff\n")
