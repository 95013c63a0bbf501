"""The agent's threads: idle connections, slow requests, and the end."""

import os
import threading
from pathlib import Path

import pytest
from support.agent_processes import taken
from support.agent_server import Agent, answered, ended, everything, request
from support.threadless import threadless

from agent import connection
from base.child_process import Child
from base.protocol.spec import Reply, Request

agent = pytest.fixture(ended, name="agent")


class Together:
    """Answers only once this many requests wait."""

    def __init__(self, many: int) -> None:
        self._all = threading.Barrier(many)

    def __call__(self, as_ipam: bool, request: Request) -> Reply:  # noqa: ARG002
        self._all.wait(60)
        return Reply("together", 3, ("line",))


def test_idle_and_half_sent_ones_stop_nobody(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.server.REQUEST_TIMEOUT", 3600)  # they are not dropped
    idle = [agent.connect() for _ in range(250)]
    half = [agent.connect() for _ in range(250)]
    for sock in half:
        sock.sendall(request(b"{}")[:30])
    for _ in range(20):
        answered(agent.ask())
    for sock in idle + half:
        sock.close()


def test_they_are_dropped_in_time(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.server.REQUEST_TIMEOUT", 0.2)
    with agent.connect() as sock:
        assert everything(sock) == b""


def test_one_that_is_served_is_not_dropped(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any duration, and also if its request arrived in several pieces."""
    monkeypatch.setattr("agent.server.REQUEST_TIMEOUT", 0.2)
    assert answered(agent.ask(b"slow", pieces=2)) == "False value slow False"


def test_threads_are_bounded(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.server.THREADS_MOST", 3)
    many = [agent.connect() for _ in range(9)]
    for sock in many:
        sock.sendall(request(b"slow"))
    for sock in many:
        assert answered(everything(sock)) == "False value slow False"
        assert len([t for t in threading.enumerate() if t.name == "worker"]) <= 3
        sock.close()


def test_more_at_once_than_threads(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s", Together(40))
    many = [agent.connect() for _ in range(40)]
    for sock in many:
        sock.sendall(request(b"{}"))
    for sock in many:
        assert answered(everything(sock)) == "together"
        sock.close()
    agent.end()


def test_stopping_answers_what_has_connected(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s")
    with agent.connect() as working, agent.connect() as waiting:
        working.sendall(request(b"slow"))
        taken(working)
        agent.server.stop()
        waiting.sendall(request(b"{}"))
        assert answered(connection.TAKEN + everything(working)) == "False value slow False"
        assert answered(everything(waiting)) == "False value {} False"
    agent.end()


def test_stopping_answers_also_what_nobody_had_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in the listener's queue, which causes no more events."""
    monkeypatch.setattr("agent.server.STALL", 60)  # no other thread takes them
    agent = Agent(tmp_path / "s")
    with agent.connect() as working:
        working.sendall(request(b"slow"))
        taken(working)
        queued = [agent.connect() for _ in range(3)]
        for sock in queued:
            sock.sendall(request(b"{}"))
        agent.server.stop()
        assert answered(connection.TAKEN + everything(working)) == "False value slow False"
    for sock in queued:
        assert answered(everything(sock)) == "False value {} False"
        sock.close()
    agent.end()


def test_stopping_does_not_stop_making_up_for_those_that_wait(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s", Together(30))
    many = [agent.connect() for _ in range(30)]
    for sock in many:
        sock.sendall(request(b"{}"))
    agent.server.stop()
    for sock in many:
        assert answered(everything(sock)) == "together"
        sock.close()
    agent.end()


def test_stopping_again_is_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "s")
    agent.end()
    agent.server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_where_no_thread_can_be_started(tmp_path: Path) -> None:
    """Requests that wait go on, and the others are served by the threads that there are."""

    def served() -> list[str]:
        agent = Agent(tmp_path / "s")
        many = [agent.connect() for _ in range(6)]
        threadless()
        for sock in many:
            sock.sendall(request(b"slow"))
        found = [answered(everything(sock)) for sock in many]
        agent.end()
        return found

    assert Child(served).answer() == ["False value slow False"] * 6
