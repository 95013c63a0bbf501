"""The agent's processes without requests: they sleep, or do idle work."""

import os
import select
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.agent_processes import QUIET, SLOW, Agent, ended, everything, taken, woken
from support.processes import states, stopped
from support.topology import until

from agent.workers import WORKERS

agent = pytest.fixture(ended, name="agent")


@pytest.mark.parametrize("agent", [["0", "0", "0"]], indirect=True)
def test_idle_it_sleeps(agent: Agent) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(agent.ask, [b"{}"] * 40))
    agent.slow()

    def sleeps_for_a_while() -> bool:
        everybody = [agent.process.pid, *agent.workers()]
        with suppress(FileNotFoundError, ProcessLookupError):  # one did work in idle time, and has ended
            tasks = [task for pid in everybody for task in Path(f"/proc/{pid}/task").iterdir()]
            before = woken(tasks)
            # time: nothing is to happen
            time.sleep(3)
            return woken(tasks) == before
        return False

    until(sleeps_for_a_while)


@pytest.mark.parametrize("agent", [["0", "0", "0"]], indirect=True)
def test_work_in_idle_time(agent: Agent) -> None:
    """Once after each run of requests, and not before its end."""
    workers = agent.workers()
    agent.slow()  # what the fixture asked
    for _ in range(2):
        while asked_often(agent):  # this process had no processor for a while, and the agent had its quiet time
            agent.slow()
            assert not agent.written(3 * QUIET)
        asked = time.monotonic()
        agent.ask()
        assert agent.slow() not in workers
        # Measured from before the last request, which reaches the agent later.
        assert time.monotonic() - asked > QUIET * 0.9
        assert not agent.written(3 * QUIET)


def asked_often(agent: Agent) -> bool:
    """Send requests in a row; return whether the agent did idle work, because this process was once too slow."""
    gap, last = 0.0, time.monotonic()
    end = last + 3 * QUIET
    while last < end:
        agent.ask()
        now = time.monotonic()
        gap, last = max(gap, now - last), now
        # time: the pace of requests
        time.sleep(QUIET / 10)
    worked = agent.written(0)
    assert not worked or gap > QUIET * 0.9
    return worked


@pytest.mark.parametrize("agent", [["0", "0", "0"]], indirect=True)
def test_a_signal_that_comes_late_is_of_before(agent: Agent) -> None:
    """Workers may signal more than once before the work begins, without a request since."""
    agent.slow()
    os.kill(agent.process.pid, signal.SIGUSR1)
    assert not agent.written(3 * QUIET)


@pytest.mark.parametrize("agent", [["0", "0", "0"]], indirect=True)
def test_no_work_in_idle_time_while_a_request_is_served(agent: Agent) -> None:
    """Also if the other worker has had a request meanwhile, and reports that it is idle again."""
    agent.slow()
    assert SLOW > 2 * QUIET
    until(lambda: len(agent.workers()) == WORKERS)
    workers = agent.workers()
    with agent.connect(b"slow") as slow:
        taken(slow)
        while (pid := agent.slow()) not in workers:
            pass  # on a busy machine there may be work twice, which began before
        with stopped(pid):
            assert agent.ask() != pid
        until(lambda: agent.workers() == workers)
        while agent.written(0):
            agent.slow()
        # The answer comes first, by QUIET.
        assert slow in select.select([slow, agent.process.stdout], [], [], 60)[0]
        assert int(everything(slow)[12:]) == pid
    agent.slow()


@pytest.mark.parametrize("agent", [["-3600", "0", "0"]], indirect=True)
def test_work_in_idle_time_that_does_not_end(agent: Agent) -> None:
    pid = agent.slow()
    until(lambda: not states(pid))  # the agent has heard of it: an agent that stops says nothing
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    assert agent.said() == "hpn agent: idle work ended by signal 14\n"


@pytest.mark.parametrize("agent", [["3600", "0", "0"]], indirect=True)
def test_work_in_idle_time_is_in_nobodys_way(agent: Agent) -> None:
    pid = agent.slow()
    for _ in range(50):
        assert agent.ask() != pid
    assert states(pid) == {"S"}
    # Only one runs at a time, and the agent's end does not wait for it.
    # time: nothing is to happen
    time.sleep(3 * QUIET)
    assert not agent.written(0)
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    assert states(pid) <= {"Z"}
    assert agent.said() == ""


@pytest.mark.parametrize("agent", [["0", "2", "0"]], indirect=True)
def test_requests_that_leave_no_idle_time(agent: Agent) -> None:
    """Like a runtime that sends STATUS every few seconds: the idle work still runs, again and again."""
    agent.slow()
    for _ in range(2):
        end, workers = time.monotonic() + 60, agent.workers()
        while not agent.written(QUIET / 3):
            assert agent.ask() in workers
            assert time.monotonic() < end
        assert agent.slow() not in workers


@pytest.mark.parametrize("agent", [["0", "3", "0"]], indirect=True)
def test_workers_that_are_idle_one_after_the_other(agent: Agent) -> None:
    agent.slow()
    until(lambda: len(agent.workers()) == WORKERS)
    one, other = agent.workers()
    end = time.monotonic() + 60
    while not agent.written(QUIET * 0.6):
        with stopped(one):
            assert agent.ask() == other
        one, other = other, one
        assert time.monotonic() < end
    agent.slow()


@pytest.mark.parametrize(
    ("agent", "is_said"), [(["0", "0", "0.5"], False), (["0", "0", "0.5", "3"], True)], indirect=["agent"]
)
def test_work_that_is_done_again_though_nobody_asks(agent: Agent, is_said: bool) -> None:
    """If its result demands it, or it failed."""
    began = time.monotonic()
    found = [agent.slow() for _ in range(4)]
    assert len({*found}) == 4
    assert time.monotonic() - began > 2 * 0.5
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    assert ("idle work ended by status 3" in agent.said()) == is_said


@pytest.mark.parametrize("agent", [["0", "0", "0.1"]], indirect=True)
def test_it_sleeps_though_work_is_due(agent: Agent, tmp_path: Path) -> None:
    """While a worker serves a request, idle work waits for its end."""
    everybody = agent.workers()
    gate = tmp_path / "gate"
    with agent.connect(bytes(gate)) as slow:
        taken(slow)
        while agent.slow() not in everybody:
            pass
        # time: nothing is to happen
        time.sleep(0.2)
        until(lambda: states(agent.process.pid) == {"S"})
        assert not select.select([slow], [], [], 0)[0]
        gate.touch()


@pytest.mark.parametrize("agent", [["0", "0", "-0.5"]], indirect=True)
def test_work_that_need_not_be_done_again(agent: Agent) -> None:
    agent.slow()
    found = 1
    while agent.written(1.5):  # the other worker was idle later
        agent.slow()
        found += 1
    assert found <= 2
