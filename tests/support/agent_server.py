"""The agent's server in this process, and requests to it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agent import connection
from agent.connection import HEADER, MAGIC
from agent.server import Answer, Server
from base.protocol.errors import BadEnvironment
from base.protocol.spec import Reply, Request
from base.state import pod

VERSION = "0123456789abcdef"


def answer(as_ipam: bool, request: Request) -> Reply:
    """Reply with the request's content for the test to compare, or be slow, or fail."""
    if request.stdin == b"slow":
        # time: work that takes its time
        time.sleep(0.5)
    if request.stdin == b"pod":
        with suppress(BadEnvironment), pod.open_netns(request):
            pass
    if request.stdin == b"process":
        return Reply(f"{request.process}", 3, ("line",))
    return Reply(f"{as_ipam} {request.var('NAME')} {request.stdin.decode()} {request.inside is not None}", 3, ("line",))


class Agent:
    def __init__(self, path: Path | str, answer: Answer = answer, *, started: bool = True) -> None:
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
        sock.settimeout(60)
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
                    # time: the pace of pieces
                    time.sleep(0.02)
            return everything(sock)

    def end(self) -> None:
        self.server.stop()
        self.thread.join(60)
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
    assert data[:1] == connection.TAKEN
    assert data[1:] == connection.encode(Reply(data[13:-5].decode(), 3, ("line",)))
    return data[13:-5].decode()


def ended(tmp_path: Path) -> Iterator[Agent]:
    """Run an agent until the test is over."""
    agent = Agent(tmp_path / "s")
    yield agent
    agent.end()
