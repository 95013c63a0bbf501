"""The agent's processes: who answers, who is replaced, and how they end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from unit.agent_processes import (
    PROGRAM,
    ROOT,
    VERSION,
    Agent,
    answered,
    ended,
    everything,
    states,
    stopped,
    taken,
    until,
    woken,
)

from agent import protocol, workers

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


agent = pytest.fixture(ended, name="agent")


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
    # The second may be asked while the first is not back yet.  And a thread that had no processor meanwhile finds the
    # next request there when it would have slept.
    assert max(firsts) < 100
    assert (min(alls) < 100, max(alls) >= 50) == (True, True)


def test_threads_share_their_memory(agent: Agent) -> None:
    """glibc's malloc would set 64 MiB of addresses aside for each thread (arena.c, HEAP_MAX_SIZE)."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(agent.ask, [b"slow"] * 8))
    for pid in agent.workers():
        maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        spans = [[int(end, 16) for end in one[0].split("-")] for one in maps if one[1] == "---p" and len(one) == 5]
        assert [last - first for first, last in spans if last - first > 1 << 25] == []


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
            with suppress(ProcessLookupError):  # one that was killed the last time, and looked after meanwhile
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
