"""The agent's processes, without what they do: who answers, who is replaced, and how they end."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent import protocol, workers
from agent.protocol import HEADER, MAGIC

VERSION = "0123456789abcdef"
SLOW = 1.0
PROGRAM = f"""
import os, signal, socket, sys, time
from agent import workers
from cni.protocol.spec import Reply

def answer(as_ipam, request):
    if request.stdin == b"slow":
        print(os.getpid(), flush=True)
        time.sleep({SLOW})
    return Reply(str(os.getpid()), 0, ())

listener = socket.socket(fileno=int(sys.argv[1]))
"""
SERVE = f"{PROGRAM}workers.serve(listener, {VERSION!r}, answer)"
# Where they have nothing to wait for sooner than on a real machine.
QUIET = 0.3
SOON = f"""{PROGRAM}
import agent.server
agent.server.QUIET, agent.server.REQUEST_TIMEOUT = {QUIET}, {QUIET}

def when_idle():
    print(os.getpid(), flush=True)
    time.sleep(float(sys.argv[2]))

workers.serve(listener, {VERSION!r}, answer, when_idle)
"""
# Each is signalled some time in its first moments, or before them.
MANY = f"""{PROGRAM}
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
signal.signal(signal.SIGALRM, lambda *_: sys.exit("one does not end"))
signal.alarm(30)
agents = []
try:
    for i in range(24):
        if not (pid := os.fork()):
            os.setpgid(0, 0)
            workers.serve(listener, {VERSION!r}, answer)
            os._exit(0)
        agents.append(pid)
        os.setpgid(pid, pid)
        time.sleep(float(sys.argv[2]))
        (os.kill, os.killpg)[i % 2](pid, (signal.SIGTERM, signal.SIGINT)[i // 2 % 2])
    while agents:
        pid, status = os.wait()
        agents.remove(pid)
        assert not status, status
finally:
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
"""
ROOT = Path(__file__).parents[2]


class Agent:
    """In a process group of its own, as a shell would start it."""

    def __init__(self, path: Path, *arguments: str) -> None:
        """With an argument it does work in idle time: a line on stdout, and that many seconds."""
        self.path = str(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.path)
            listener.listen(100)
            fd = listener.fileno()
            argv = [sys.executable, "-c", SOON if arguments else SERVE, str(fd), *arguments]
            self.process = subprocess.Popen(
                argv, pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                cwd=ROOT,
            )  # fmt: skip
        self.ask()
        until(lambda: len(self.workers()) == workers.WORKERS)

    def written(self, seconds: float) -> bool:
        """Whether there is a line on stdout, or comes in time."""
        assert self.process.stdout
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def workers(self) -> set[int]:
        """And who does work in idle time."""
        pid = self.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def connect(self, stdin: bytes = b"{}") -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(self.path)
        sock.sendall(HEADER.pack(MAGIC, VERSION.encode(), 0, 0, len(stdin)) + stdin)
        return sock

    def ask(self, stdin: bytes = b"{}") -> int:
        """Who answered it."""
        with self.connect(stdin) as sock:
            return answered(sock)

    def slow(self) -> int:
        """Who has just said so: took a slow request, or does work in idle time."""
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def said(self) -> str:
        """On stderr, once it has ended."""
        assert self.process.stderr
        return self.process.stderr.read()


def answered(sock: socket.socket) -> int:
    data = everything(sock)
    assert data[:1] == protocol.TAKEN
    return int(data[13:])


def everything(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def until(done: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def states(pid: int) -> set[str]:
    """Of its threads; none of one that is gone, Z where nobody looks after orphans."""
    found = set[str]()
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add(task.read_text().rpartition(")")[2].split()[0])
    return found


@contextmanager
def stopped(pid: int) -> Iterator[int]:
    """And so out of epoll_wait: a connection that wakes one on its way out is another's with the next one only."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: states(pid) == {"T"})
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


def taken(sock: socket.socket) -> None:
    assert sock.recv(1) == protocol.TAKEN


@pytest.fixture
def agent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(tmp_path / "s", *getattr(request, "param", ()))
    yield agent
    with agent.process as process:
        try:
            if process.poll() is None:
                process.terminate()
                assert process.wait(10) == 0
        finally:
            process.kill()


def test_all_work(agent: Agent) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(agent.ask, [b"slow"] * 8)) == agent.workers()


def test_one_is_woken(agent: Agent) -> None:
    def all_woken() -> list[tuple[int, int]]:
        """Of each worker: the thread that looks after the others, and all."""
        pids = sorted(agent.workers())
        return [(woken([Path(f"/proc/{pid}/task/{pid}")]), woken(Path(f"/proc/{pid}/task").iterdir())) for pid in pids]

    before = all_woken()
    for _ in range(200):
        agent.ask()
        time.sleep(0.002)
    firsts, alls = zip(*((a - b, c - d) for (a, c), (b, d) in zip(all_woken(), before, strict=True)), strict=True)
    # The second may be asked while the first is not back yet.
    assert max(firsts) < 100
    assert (min(alls) < 100, max(alls) >= 200) == (True, True)


def woken(tasks: Iterable[Path]) -> int:
    """How often threads have gone to sleep and been woken again."""
    texts = [(task / "status").read_text() for task in tasks]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


@pytest.mark.parametrize("agent", [["0"]], indirect=True)
def test_idle_it_sleeps(agent: Agent) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(agent.ask, [b"{}"] * 40))
    agent.slow()
    time.sleep(4 * QUIET)
    everybody = [agent.process.pid, *agent.workers()]
    tasks = [task for pid in everybody for task in Path(f"/proc/{pid}/task").iterdir()]
    before = woken(tasks)
    time.sleep(3)
    assert woken(tasks) == before


@pytest.mark.parametrize("agent", [["0"]], indirect=True)
def test_work_in_idle_time(agent: Agent) -> None:
    """Once after each time that something was asked, and not before that is over."""
    workers = agent.workers()
    agent.slow()  # what the fixture asked
    for _ in range(2):
        end = time.monotonic() + 3 * QUIET
        while time.monotonic() < end:
            agent.ask()
            time.sleep(QUIET / 10)
        assert not agent.written(0)
        last = time.monotonic()
        assert agent.slow() not in workers
        assert time.monotonic() - last > QUIET * 0.9
        assert not agent.written(3 * QUIET)


@pytest.mark.parametrize("agent", [["0"]], indirect=True)
def test_no_work_in_idle_time_while_a_request_is_served(agent: Agent) -> None:
    agent.slow()
    assert SLOW > 2 * QUIET
    with agent.connect(b"slow") as slow:
        pid = agent.slow()
        assert not agent.written(SLOW - QUIET)
        assert answered(slow) == pid
    agent.slow()


@pytest.mark.parametrize("agent", [["60"]], indirect=True)
def test_work_in_idle_time_is_in_nobodys_way(agent: Agent) -> None:
    pid = agent.slow()
    started = time.monotonic()
    for _ in range(50):
        assert agent.ask() != pid
    assert time.monotonic() - started < 2
    # There is one of it at a time, and the agent's end does not wait for it.
    time.sleep(3 * QUIET)
    assert not agent.written(0)
    agent.process.terminate()
    assert agent.process.wait(5) == 0
    assert states(pid) <= {"Z"}
    assert agent.said() == ""


def test_one_that_hangs_delays_nobody(agent: Agent) -> None:
    with agent.connect(b"slow") as slow:
        with stopped(agent.slow()) as pid:
            started = time.monotonic()
            assert {agent.ask() for _ in range(50)} == agent.workers() - {pid}
            assert time.monotonic() - started < 5
        assert answered(slow) == pid


def test_one_that_is_killed_is_replaced(agent: Agent) -> None:
    time.sleep(workers.PAUSE)  # it has lived for so long
    with agent.connect(b"slow") as slow:
        before, killed = agent.workers(), agent.slow()
        os.kill(killed, signal.SIGKILL)
        assert everything(slow) == protocol.TAKEN  # code 11, says the launcher
    until(lambda: len(agent.workers() - {killed}) == workers.WORKERS, workers.PAUSE / 2)
    assert agent.workers() & before == before - {killed}
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(agent.ask, [b"slow"] * 8)) == agent.workers()
    agent.process.terminate()
    assert agent.process.wait(10) == 0
    assert agent.said() == f"hpn agent: worker {killed} ended by signal 9\n"


def test_where_they_die_at_once_the_machine_is_not_kept_busy(agent: Agent) -> None:
    seen, started = set[int](), time.monotonic()
    while time.monotonic() < started + 2.5 * workers.PAUSE:
        for pid in agent.workers():
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    assert 2 * workers.WORKERS <= len(seen) <= 4 * workers.WORKERS
    assert agent.ask() not in seen


def test_killed_it_leaves_none(agent: Agent) -> None:
    left = agent.workers()
    with agent.connect(b"slow") as slow:
        taken(slow)
        agent.process.kill()
        agent.process.wait(10)
        until(lambda: all(states(pid) <= {"Z"} for pid in left))
        assert everything(slow) == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_ending(agent: Agent, send: Callable[[int, int], None], number: int) -> None:
    """To the one that was started, or as systemd and a terminal may, to all: what was there is answered first."""
    left = agent.workers()
    working = [agent.connect(b"slow") for _ in range(6)]
    for sock in working:
        taken(sock)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(agent.path)
        send(agent.process.pid, number)
        time.sleep(0.2)
        with agent.connect() as late:
            for sock in working:
                with sock:
                    assert everything(sock)[12:].isdigit()
            assert everything(silent) == b""
            # It was in the queue, and that was closed: its launcher does the work itself.
            with pytest.raises(ConnectionResetError):
                late.recv(1)
    assert agent.process.wait(10) == 0
    assert all(states(pid) <= {"Z"} for pid in left)
    assert agent.said() == ""


@pytest.mark.parametrize("pause", ["0", "0.001", "0.003", "0.01"])
def test_a_signal_at_any_time(tmp_path: Path, pause: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(100)
        fd = listener.fileno()
        argv = [sys.executable, "-c", MANY, str(fd), pause]
        done = subprocess.run(argv, pass_fds=[fd], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
