"""The agent's processes: answers, replacement and end."""

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
from support.agent_processes import (
    PROGRAM,
    ROOT,
    SERVE,
    VERSION,
    Agent,
    answered,
    ended,
    everything,
    running,
    taken,
    woken,
)
from support.processes import states, stopped
from support.topology import until

from agent import connection, workers

# Each agent gets a signal during its start, or before it.
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
        until(lambda: set(pool.map(agent.ask, [b"slow"] * 8)) == agent.workers())


def test_one_is_woken(tmp_path: Path) -> None:
    """In that process the supervising thread stays asleep; it may wake later."""

    def asleep() -> tuple[list[int], list[int]]:
        """For each worker, once all sleep: the wakeups of the supervising thread, and of all threads."""
        until(lambda: all(states(pid) == {"S"} for pid in pids))
        return (
            [woken([Path(f"/proc/{pid}/task/{pid}")]) for pid in pids],
            [woken(Path(f"/proc/{pid}/task").iterdir()) for pid in pids],
        )

    with running(tmp_path / "s", program=f"import agent.server\nagent.server.STALL = 600\n{SERVE}") as agent:
        pids = sorted(agent.workers())
        firsts, before = asleep()
        both = 0
        for _ in range(100):
            who = pids.index(agent.ask())
            _, after = asleep()
            assert after[who] > before[who]
            both += after[1 - who] > before[1 - who]
            before = after
        # A thread that waits for the interpreter sleeps too, which counts as another wakeup.
        assert both < 50
        assert all(now - then < 50 for now, then in zip(asleep()[0], firsts, strict=True))


def test_threads_share_their_memory(agent: Agent) -> None:
    """Otherwise glibc's malloc reserves 64 MiB of addresses per thread (arena.c, HEAP_MAX_SIZE)."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(agent.ask, [b"slow"] * 8))
    for pid in agent.workers():
        maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        spans = [[int(end, 16) for end in one[0].split("-")] for one in maps if one[1] == "---p" and len(one) == 5]
        assert [last - first for first, last in spans if last - first > 1 << 25] == []


def test_one_that_hangs_delays_nobody(agent: Agent) -> None:
    with agent.connect(b"slow") as slow:
        with stopped(pid := agent.slow()):
            assert {agent.ask() for _ in range(50)} == agent.workers() - {pid}
        assert answered(slow) == pid


def test_one_that_is_killed_is_replaced(agent: Agent) -> None:
    # time: it has lived for so long
    time.sleep(workers.PAUSE)
    with agent.connect(b"slow") as slow:
        before, killed = agent.workers(), agent.slow()
        os.kill(killed, signal.SIGKILL)
        assert everything(slow) == connection.TAKEN  # code 11, says the launcher
    until(lambda: len(agent.workers() - {killed}) == workers.WORKERS)
    assert agent.workers() & before == before - {killed}
    with ThreadPoolExecutor(8) as pool:
        until(lambda: set(pool.map(agent.ask, [b"slow"] * 8)) == agent.workers())
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    assert agent.said() == f"hpn agent: worker {killed} ended by signal 9\n"


def test_where_they_die_at_once_the_machine_is_not_kept_busy(agent: Agent) -> None:
    """The second worker of a place may start at once; each later one starts after a pause."""
    seen, started = set[int](), time.monotonic()

    def four_in_each_place() -> bool:
        for pid in agent.workers():
            seen.add(pid)
            with suppress(ProcessLookupError):  # one that was killed the last time, and looked after meanwhile
                os.kill(pid, signal.SIGKILL)
        return len(seen) >= 4 * workers.WORKERS

    until(four_in_each_place)
    assert time.monotonic() - started > 2 * workers.PAUSE * 0.9
    assert agent.ask() not in seen


def test_killed_it_leaves_none(agent: Agent) -> None:
    left = agent.workers()
    with agent.connect(b"slow") as slow:
        taken(slow)
        agent.process.kill()
        agent.process.wait(60)
        until(lambda: all(states(pid) <= {"Z"} for pid in left))
        assert everything(slow) == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_ending(agent: Agent, send: Callable[[int, int], None], number: int, tmp_path: Path) -> None:
    """A signal to the first process, or to all like systemd and a terminal: pending requests get answers first."""
    left = agent.workers()
    gate = tmp_path / "gate"
    working = [agent.connect(bytes(gate)) for _ in range(6)]
    for sock in working:
        taken(sock)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(agent.path)
        send(agent.process.pid, number)
        # Asleep: it has served the queue, too.
        until(lambda: not any(agent.listens(pid) for pid in left) and all(states(pid) == {"S"} for pid in left))
        with agent.connect() as late:
            gate.touch()
            for sock in working:
                with sock:
                    assert everything(sock)[12:].isdigit()
            assert everything(silent) == b""
            # The agent has closed the queue with this connection: its launcher does the work itself.
            with pytest.raises(ConnectionResetError):
                late.recv(1)
    assert agent.process.wait(60) == 0
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
