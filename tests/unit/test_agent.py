"""The agent's server, in this process: whatever comes in, and whatever breaks off, the next one is answered."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import require

from agent import protocol
from agent.protocol import HEADER, MAGIC
from agent.server import Server
from cni.protocol.errors import BadEnvironment
from cni.protocol.spec import Reply, Request
from cni.state import pod

VERSION = "0123456789abcdef"


def answer(as_ipam: bool, request: Request) -> Reply:
    """What it was asked, so that the test sees it; or something that takes its time, or fails."""
    if request.stdin == b"slow":
        time.sleep(0.5)
    if request.stdin == b"pod":
        with suppress(BadEnvironment), pod.open_netns(request):
            pass
    return Reply(f"{as_ipam} {request.var('NAME')} {request.stdin.decode()} {request.inside is not None}", 3, ("line",))


class Agent:
    def __init__(self, path: Path | str, *, started: bool = True) -> None:
        self.path = str(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(600)
        self.server = Server(self.listener, VERSION, answer)
        self.thread = threading.Thread(target=self._serve)
        if started:
            self.thread.start()

    def _serve(self) -> None:
        with self.server:
            self.server.serve()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(self.path)
        return sock

    def ask(self, stdin: bytes = b"{}", version: str = VERSION, pieces: int = 1, fds: tuple[int, ...] = ()) -> bytes:
        with self.connect() as sock:
            frame = request(stdin, version)
            if fds:
                socket.send_fds(sock, [frame[: HEADER.size]], fds)
                frame = frame[HEADER.size :]
            step = -(-len(frame) // pieces)
            for at in range(0, len(frame), step):
                sock.sendall(frame[at : at + step])
                if pieces > 1:
                    time.sleep(0.02)
            return everything(sock)

    def end(self) -> None:
        self.server.stop()
        self.thread.join(15)
        assert not self.thread.is_alive()
        self.listener.close()


def request(stdin: bytes, version: str = VERSION) -> bytes:
    environ = b"NAME=value\0OTHER=a=b\0"
    return HEADER.pack(MAGIC, version.encode(), 0, len(environ), len(stdin)) + environ + stdin


def everything(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def answered(data: bytes) -> str:
    assert data[:1] == protocol.TAKEN
    assert data[1:] == protocol.reply(Reply(data[13:-5].decode(), 3, ("line",)))
    return data[13:-5].decode()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path / "s")
    yield agent
    agent.end()


def test_it_answers(agent: Agent) -> None:
    assert answered(agent.ask(b'{"a":1}')) == 'False value {"a":1} False'


@pytest.mark.parametrize("pieces", [2, 5, 29])
def test_a_request_in_pieces(agent: Agent, pieces: int) -> None:
    assert answered(agent.ask(pieces=pieces)) == "False value {} False"


def test_descriptors_come_along_and_are_closed(agent: Agent) -> None:
    fds = os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    before = descriptors()
    assert answered(agent.ask(fds=fds)) == "False value {} True"
    assert answered(agent.ask(fds=fds[:1])) == "False value {} False"
    agent.ask(fds=fds, version="f" * 16)
    deadline = time.monotonic() + 5
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert descriptors() == before
    for fd in fds:
        os.close(fd)


def test_descriptors_that_are_none_of_a_pod_are_closed_too(agent: Agent) -> None:
    """The netlink socket is duplicated, and what was passed is none."""
    with Path("/dev/null").open() as file:
        agent.ask(b"pod", fds=(file.fileno(), file.fileno()))
        before = descriptors()
        for _ in range(50):
            agent.ask(b"pod", fds=(file.fileno(), file.fileno()))
        deadline = time.monotonic() + 5
        while descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert descriptors() <= before


@pytest.mark.parametrize("many", [3, 5, 200])
def test_more_descriptors_than_a_launcher_passes_end_the_connection(agent: Agent, many: int) -> None:
    """Some of them are lost on the way, and nobody knows which; before it was taken, so a launcher does it itself."""
    before = descriptors()
    with Path("/dev/null").open() as file, agent.connect() as sock:
        socket.send_fds(sock, [request(b"{}")], [file.fileno()] * many)
        with suppress(ConnectionResetError):
            assert everything(sock) == b""
    assert answered(agent.ask()) == "False value {} False"
    assert descriptors() <= before + 1  # the last connection's end may be to come


def test_another_version_is_refused(agent: Agent) -> None:
    assert agent.ask(version="f" * 16) == protocol.REFUSED


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


def test_idle_and_half_sent_ones_stop_nobody(agent: Agent) -> None:
    idle = [agent.connect() for _ in range(250)]
    half = [agent.connect() for _ in range(250)]
    for sock in half:
        sock.sendall(request(b"{}")[:30])
    started = time.monotonic()
    for _ in range(20):
        answered(agent.ask())
    assert time.monotonic() - started < 10
    for sock in idle + half:
        sock.close()


def test_they_are_dropped_in_time(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.server.REQUEST_TIMEOUT", 0.2)
    with agent.connect() as sock:
        assert everything(sock) == b""


@pytest.mark.parametrize(("environment", "stdin"), [(1, 0), (0, 1)])
def test_a_request_that_is_too_long(environment: int, stdin: int) -> None:
    """Its header says so: nothing is kept in memory for it."""
    most = protocol.ENVIRONMENT_MOST, protocol.STDIN_MOST
    assert protocol.header(HEADER.pack(MAGIC, VERSION.encode(), 0, *most)).end == HEADER.size + sum(most)
    with pytest.raises(ValueError, match="not a request"):
        protocol.header(HEADER.pack(MAGIC, VERSION.encode(), 0, most[0] + environment, most[1] + stdin))


def test_one_that_is_served_is_not_dropped(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes, and also where its request came late enough to be waited for."""
    monkeypatch.setattr("agent.server.REQUEST_TIMEOUT", 0.2)
    assert answered(agent.ask(b"slow", pieces=2)) == "False value slow False"


def test_threads_are_bounded(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.server.THREADS_MOST", 3)
    many = [agent.connect() for _ in range(9)]
    for sock in many:
        sock.sendall(request(b"slow"))
    time.sleep(0.3)
    assert len([t for t in threading.enumerate() if t.name == "worker"]) <= 3
    for sock in many:
        assert answered(everything(sock)) == "False value slow False"
        sock.close()


def test_more_at_once_than_threads(agent: Agent) -> None:
    many = [agent.connect() for _ in range(40)]
    started = time.monotonic()
    for sock in many:
        sock.sendall(request(b"slow"))
    for sock in many:
        assert answered(everything(sock)) == "False value slow False"
        sock.close()
    assert time.monotonic() - started < 40 * 0.5 / 4


def test_stopping_answers_what_has_connected(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s")
    with agent.connect() as working, agent.connect() as waiting:
        working.sendall(request(b"slow"))
        time.sleep(0.1)
        agent.server.stop()
        waiting.sendall(request(b"{}"))
        assert answered(everything(working)) == "False value slow False"
        assert answered(everything(waiting)) == "False value {} False"
    agent.end()


def test_stopping_answers_also_what_nobody_had_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in the listener's queue, which no event tells of any more."""
    monkeypatch.setattr("agent.server.STALL", 60)  # no other thread takes them
    agent = Agent(tmp_path / "s")
    with agent.connect() as working:
        working.sendall(request(b"slow"))
        time.sleep(0.1)
        queued = [agent.connect() for _ in range(3)]
        for sock in queued:
            sock.sendall(request(b"{}"))
            sock.settimeout(5)
        agent.server.stop()
        assert answered(everything(working)) == "False value slow False"
    for sock in queued:
        assert answered(everything(sock)) == "False value {} False"
        sock.close()
    agent.end()


def test_stopping_does_not_stop_making_up_for_those_that_wait(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s")
    many = [agent.connect() for _ in range(30)]
    for sock in many:
        sock.sendall(request(b"slow"))
    started = time.monotonic()
    agent.server.stop()
    for sock in many:
        assert answered(everything(sock)) == "False value slow False"
        sock.close()
    assert time.monotonic() - started < 30 * 0.5 / 4
    agent.end()


def test_stopping_again_is_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s")
    agent.end()
    agent.server.stop()


def test_a_launcher_that_gave_up_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does the work itself, so nobody else may."""
    served = list[bytes]()

    def noting(as_ipam: bool, request: Request) -> Reply:
        served.append(request.stdin)
        return answer(as_ipam, request)

    monkeypatch.setitem(globals(), "answer", noting)
    agent = Agent(tmp_path / "s", started=False)
    monkeypatch.undo()
    with agent.connect() as sock:
        sock.sendall(request(b"given up"))
        sock.shutdown(socket.SHUT_RDWR)
    agent.thread.start()
    agent.ask(b"next")
    agent.end()
    assert served == [b"next"]


def test_another_user_is_not_served() -> None:
    """Whatever the socket's permissions are: the kernel tells who connected (man 7 unix, SO_PEERCRED)."""
    if os.geteuid():
        require("unit", "may not become another user; run as root")
    # An abstract name: no directory's permissions keep the other user away, so the agent itself has to.
    agent = Agent(f"\0hpn-test-{os.getpid()}", started=False)
    os.seteuid(65534)
    try:
        stranger = agent.connect()
    finally:
        os.seteuid(0)
    agent.thread.start()
    with stranger:
        stranger.sendall(request(b"{}"))
        try:
            told = everything(stranger)
        except ConnectionResetError:  # closed with its request unread
            told = b""
    answer = agent.ask()
    agent.end()
    assert (told, answered(answer)) == (b"", "False value {} False")
