"""The agent's processes while there are no requests: they sleep, or work."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from unit.agent_processes import QUIET, SLOW, Agent, answered, ended, states, stopped, woken

agent = pytest.fixture(ended, name="agent")


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
        while (now := time.monotonic()) < end:
            asked = now
            agent.ask()
            time.sleep(QUIET / 10)
        assert not agent.written(0)
        assert agent.slow() not in workers
        # From before the last request, which the agent has heard later.
        assert time.monotonic() - asked > QUIET * 0.9
        assert not agent.written(3 * QUIET)


@pytest.mark.parametrize("agent", [["0"]], indirect=True)
def test_no_work_in_idle_time_while_a_request_is_served(agent: Agent) -> None:
    """Also where the other worker has had a request meanwhile, and says that it is idle again."""
    agent.slow()
    assert SLOW > 2 * QUIET
    with agent.connect(b"slow") as slow:
        pid, began = agent.slow(), time.monotonic()
        with stopped(pid):
            assert agent.ask() != pid
        assert not agent.written(max(0.0, began + SLOW - time.monotonic()))
        assert answered(slow) == pid
    agent.slow()


@pytest.mark.parametrize("agent", [["60"]], indirect=True)
def test_work_in_idle_time_is_in_nobodys_way(agent: Agent) -> None:
    pid = agent.slow()
    started = time.monotonic()
    for _ in range(50):
        assert agent.ask() != pid
    assert time.monotonic() - started < 20
    # There is one of it at a time, and the agent's end does not wait for it.
    time.sleep(3 * QUIET)
    assert not agent.written(0)
    agent.process.terminate()
    assert agent.process.wait(5) == 0
    assert states(pid) <= {"Z"}
    assert agent.said() == ""
