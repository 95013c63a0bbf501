"""The agent's socket: its permissions, its owner, and the conditions for creating it."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent import listening
from agent.listening import Unusable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    with closing(listening.bind(path)) as listener:
        yield listener


def test_root_alone_may_connect(path: Path, listener: socket.socket) -> None:
    """With any umask of the agent."""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    before = os.umask(0)
    other = path.with_name("other")
    try:
        listening.bind(other).close()
    finally:
        os.umask(before)
    assert other.stat().st_mode & 0o777 == 0o600


def test_an_agent_that_answers_is_left_alone(path: Path, listener: socket.socket) -> None:
    with pytest.raises(Unusable, match="in use by another agent"):
        listening.bind(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))


def test_one_that_was_killed_is_in_nobodys_way(path: Path) -> None:
    listening.bind(path).close()
    with closing(listening.bind(path)), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))


def test_the_workers_of_one_that_was_killed_are_waited_for(path: Path) -> None:
    """Its workers share its socket, and end a little later."""
    theirs, ours = os.pipe()
    agent = os.fork()
    if not agent:
        os.close(ours)
        _listener = listening.bind(path)
        if not os.fork():
            os.read(theirs, 1)
            os._exit(0)
        os._exit(0)
    os.waitpid(agent, 0)
    os.close(theirs)
    threading.Timer(0.2, os.close, (ours,)).start()
    with closing(listening.bind(path)), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))


@pytest.mark.parametrize("environ", [{}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "1"}], ids=str)
def test_a_descriptor_that_is_another_programs(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Children inherit the environment, but systemd's socket is for one process (man 3 sd_listen_fds)."""
    for name in ("LISTEN_FDS", "LISTEN_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert listening.take_passed() is None


@pytest.mark.parametrize("what", ["file", "link"])
def test_nothing_but_a_socket_is_removed(path: Path, what: str) -> None:
    path.parent.mkdir(mode=0o700)
    other = path.with_name("other")
    listening.bind(other).close()
    if what == "link":
        path.symlink_to(other)
    else:
        path.write_text("precious")
    with pytest.raises(Unusable, match="exists and is not a socket"):
        listening.bind(path)
    assert path.is_symlink() or path.read_text() == "precious"


def test_no_socket_where_others_could_put_one(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(Unusable, match="others than root can change"):
        listening.bind(path)
    assert list(path.parent.iterdir()) == []
