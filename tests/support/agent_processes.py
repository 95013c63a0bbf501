"""Agent processes with a substitute for their work, and requests to them."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.topology import until

from agent import connection, workers
from agent.connection import HEADER, MAGIC

VERSION = "0123456789abcdef"
SLOW = 1.0
PROGRAM = f"""
import os, signal, socket, sys, time
from agent import workers
from base.protocol.spec import Reply

def answer(as_ipam, request):
    if request.stdin == b"slow":
        print(os.getpid(), flush=True)
        time.sleep({SLOW})
    if request.stdin.startswith(b"/"):  # until there is such a file
        print(os.getpid(), flush=True)
        while not os.path.exists(request.stdin):
            time.sleep(0.01)
    return Reply(str(os.getpid()), 0, ())

listener = socket.socket(fileno=int(sys.argv[1]))
"""
SERVE = f"{PROGRAM}workers.serve(listener, {VERSION!r}, answer)"
# The waits are shorter than on a real machine.
QUIET = 0.3
SOON = f"""{PROGRAM}
import agent.server
agent.server.QUIET, agent.server.REQUEST_TIMEOUT = {QUIET}, {QUIET}
lasts, overdue, again, *ends = map(float, sys.argv[2:])
workers.OVERDUE, workers.AGAIN, workers.IDLE_MOST = overdue or 600, abs(again) or 600, 600 if lasts >= 0 else 1

def when_idle():
    print(os.getpid(), flush=True)
    time.sleep(abs(lasts))
    if ends:
        os._exit(int(ends[0]))
    return again > 0

workers.serve(listener, {VERSION!r}, answer, when_idle)
"""
ROOT = Path(__file__).parents[2]


class Agent:
    """An agent in its own process group, as a shell starts it."""

    def __init__(self, path: Path, *arguments: str, program: str = SERVE) -> None:
        """Start an agent; arguments make its workers do idle work, which begins by printing a line on stdout.

        The arguments are four numbers.  First the work's duration in seconds, negative if that exceeds the limit.
        Second and third the seconds until it is overdue, and until it is repeated without a request; 0 means never, and
        a negative third number means that it does not ask for repetition.  The optional fourth is the exit status of
        its process.
        """
        self.path = str(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.path)
            listener.listen(100)
            self.fd = fd = listener.fileno()
            argv = [sys.executable, "-c", SOON if arguments else program, str(fd), *arguments]
            self.process = subprocess.Popen(
                argv, pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                cwd=ROOT,
            )  # fmt: skip
        self._lines = b""
        self.ask()
        until(lambda: len(self.workers()) == workers.WORKERS)

    def written(self, seconds: float) -> bool:
        """Return True if stdout has a line now or within this time."""
        assert self.process.stdout
        return b"\n" in self._lines or bool(select.select([self.process.stdout], [], [], seconds)[0])

    def workers(self) -> set[int]:
        """Return the ids of the workers, including one that does idle work."""
        pid = self.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def connect(self, stdin: bytes = b"{}") -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(60)
        sock.connect(self.path)
        sock.sendall(HEADER.pack(MAGIC, VERSION.encode(), 0, 0, len(stdin)) + stdin)
        return sock

    def ask(self, stdin: bytes = b"{}") -> int:
        """Return the id of the worker that answered."""
        with self.connect(stdin) as sock:
            return answered(sock)

    def slow(self) -> int:
        """Return the id of the worker that began a slow request or idle work."""
        assert self.process.stdout
        while b"\n" not in self._lines:
            assert self.written(60)
            self._lines += (more := os.read(self.process.stdout.fileno(), 4096))
            assert more, "it has ended"
        line, _, self._lines = self._lines.partition(b"\n")
        return int(line)

    def listens(self, pid: int) -> bool:
        """Return True if a new connection would wake this worker (man 5 proc, fdinfo of an epoll)."""
        found = f"tfd: {self.fd:8} "
        return any(found in info.read_text() for info in Path(f"/proc/{pid}/fdinfo").iterdir())

    def said(self) -> str:
        """Return the agent's stderr after it ended."""
        assert self.process.stderr
        return self.process.stderr.read()


def answered(sock: socket.socket) -> int:
    data = everything(sock)
    assert data[:1] == connection.TAKEN
    return int(data[13:])


def everything(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def taken(sock: socket.socket) -> None:
    assert sock.recv(1) == connection.TAKEN


def woken(tasks: Iterable[Path]) -> int:
    """Return how often these threads slept and were woken."""
    texts = [(task / "status").read_text() for task in tasks]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


@contextmanager
def running(path: Path, *arguments: str, program: str = SERVE) -> Iterator[Agent]:
    agent = Agent(path, *arguments, program=program)
    with agent.process as process:
        try:
            yield agent
            if process.poll() is None:
                process.terminate()
                assert process.wait(60) == 0
        finally:
            process.kill()


def ended(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """Run an agent until the test is over; a parameter enables idle work."""
    with running(tmp_path / "s", *getattr(request, "param", ())) as agent:
        yield agent
