"""The real plugin in separate processes: several at once, or one that stops at a chosen moment.

The processes are forked: a new Python takes a second to start in an emulated machine.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from support.topology import PROGRAMS

from base.protocol.spec import Reply, Request
from cni.main import run as hpn


def at_once(requests: Sequence[Request]) -> list[Reply]:
    """Run each request in its own process, and start all at the same moment."""
    gate, opens = os.pipe()
    children = [_forked(request, lambda: os.read(gate, 1), also_close=opens) for request in requests]
    os.close(gate)
    os.close(opens)
    return [_reply(pid, answer) for pid, answer in children]


class Held:
    """A process that stopped at its chosen moment."""

    def __init__(self, pid: int, answer: int) -> None:
        self._pid, self._answer = pid, answer

    def goes_on(self) -> Reply:
        os.kill(self._pid, signal.SIGCONT)
        return _reply(self._pid, self._answer)


@contextmanager
def held(request: Request, when: Callable[[], bool]) -> Iterator[Held]:
    """Stop the process before its first message to the kernel at which the condition holds."""

    def prepare() -> None:
        stopped = False

        def audit(event: str, _: tuple[Any, ...]) -> None:
            nonlocal stopped
            if event == "socket.sendto" and not stopped and when():
                stopped = True
                os.kill(os.getpid(), signal.SIGSTOP)

        sys.addaudithook(audit)

    pid, answer = _forked(request, prepare)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended before that: {_read(answer)}"
    yield Held(pid, answer)


def _forked(request: Request, prepare: Callable[[], object], also_close: int | None = None) -> tuple[int, int]:
    answer, answers = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(answer)
            if also_close is not None:
                os.close(also_close)
            prepare()
            reply = hpn(request, PROGRAMS)
            os.write(answers, f"{reply.exit_code}\n{reply.stdout}".encode())
            os._exit(0)
        finally:
            os._exit(2)
    os.close(answers)
    return pid, answer


def _reply(pid: int, answer: int) -> Reply:
    code, _, stdout = _read(answer).partition("\n")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the process died"
    return Reply(stdout, exit_code=int(code))


def _read(answer: int) -> str:
    with open(answer, "rb") as f:
        return f.read().decode()
