"""A process that does one piece of work: its result, its end, and what it does not touch."""

import os
import select
import signal
import socket

import pytest

from base.child_process import Child


def test_its_answer() -> None:
    child = Child(lambda: {"pid": os.getpid()})
    assert child.answer() not in ({"pid": os.getpid()}, None)


def test_it_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    try:
        child = Child(lambda: os.read(reader, 1))
        # time: nothing is to come
        assert select.select([child.fd], [], [], 0.2)[0] == []
        os.write(writer, b"x")
        assert select.select([child.fd], [], [], 60)[0] == [child.fd]
        assert child.answer() == b"x"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_process_that_the_work_leaves_is_not_waited_for() -> None:
    """It holds the pipe to the parent open, and ends when the test lets it."""
    reader, writer = os.pipe()
    living, lives = os.pipe()

    def leave_a_process() -> str:
        if not os.fork():
            signal.alarm(60)
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        return "done"

    child = Child(leave_a_process)
    os.close(lives)
    assert child.answer() == "done"
    assert select.select([living], [], [], 0)[0] == []
    os.close(writer)
    assert os.read(living, 1) == b""
    os.close(reader)
    os.close(living)


def test_work_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildProcessError, match="ended with status 1"):
        Child(lambda: 1 // 0).answer()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_it_is_killed() -> None:
    with pytest.raises(ChildProcessError, match=f"ended with status -{signal.SIGKILL}"):
        Child(lambda: os.kill(os.getpid(), signal.SIGKILL)).answer()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_by_a_signal_that_its_parent_only_takes_note_of(number: signal.Signals) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        with pytest.raises(ChildProcessError, match=f"ended with status -{number}"):
            Child(lambda: os.kill(os.getpid(), number)).answer()
    finally:
        signal.signal(number, before)


def test_a_peer_sees_the_end_of_a_socket_meanwhile() -> None:
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    with theirs:
        child = Child(lambda: os.read(reader, 1))
        ours.close()
        theirs.settimeout(60)
        assert theirs.recv(1) == b""
        os.write(writer, b"x")
        child.answer()
    os.close(reader)
    os.close(writer)
