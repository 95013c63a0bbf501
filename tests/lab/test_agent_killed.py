"""The agent is killed while it attaches or detaches a VF: all its processes end, and another agent recovers."""

import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import drawn
import pytest
from guest.node import Node, picture
from support.killing import at_step
from support.topology import PROGRAMS, Pod

from agent import connection, workers
from agent.server import Answer
from base.protocol.spec import Reply, Request
from cni.main import run

VERSION = "0123456789abcdef"
CHANGES = {"vlan": 7, "trust": "on", "mtu": 1400}

Ask = Callable[[Request], "int | None"]


@contextmanager
def agent(path: Path, answer: Answer) -> Iterator[Ask]:
    """An agent that answers this way.  Asking it returns the exit status, or None if the agent died before its
    answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}")
        listener.listen(10)
        pid = os.fork()
        if not pid:
            try:
                workers.serve(listener, VERSION, answer)
                os._exit(0)
            finally:
                os._exit(1)
    died = False

    def ask(request: Request) -> int | None:
        nonlocal died
        environ = "".join(f"{name}={value}\0" for name, value in request.environ.items()).encode()
        header = connection.HEADER.pack(connection.MAGIC, VERSION.encode(), 0, len(environ), len(request.stdin))
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(120)
            sock.connect(f"{path}")
            sock.sendall(header + environ + request.stdin)
            said = b""
            while more := sock.recv(65536):
                said += more
        assert said[:1] == connection.TAKEN
        died = len(said) == 1
        return None if died else int(struct.unpack_from("=i", said, 1)[0])

    try:
        yield ask
    finally:
        if not died:
            os.kill(pid, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        path.unlink()
    assert status == (-signal.SIGKILL if died else 0)


def answer(_as_ipam: bool, request: Request) -> Reply:
    return run(request, PROGRAMS)


def killed(command: str, boundary: int) -> Answer:
    """The answer of an agent whose first process is killed when a worker reaches that boundary of the command.  The
    kernel then kills the workers: the worker stops there, and does not end by itself."""

    def kill() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    def answer_or_die(as_ipam: bool, request: Request) -> Reply:
        if request.var("CNI_COMMAND") == command:
            at_step(boundary, kill)
        return answer(as_ipam, request)

    return answer_or_die


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_the_agent_is_killed(node: Node, pod: Pod, command: str) -> None:
    conf, path, before = node.conf(**CHANGES), node.tmp_path / "agent.sock", picture()
    # Warm up the imports, as in an agent.
    node.ok("ADD", pod, conf)
    node.ok("DEL", pod, conf)
    for boundary in drawn.steps():
        with agent(path, killed(command, boundary)) as ask:
            if command == "DEL":
                assert ask(node.request("ADD", pod, conf)) == 0
            has_ended = ask(node.request(command, pod, conf)) == 0
        with agent(path, answer) as ask:
            assert ask(node.request("DEL", pod, conf)) == 0, f"at boundary {boundary}"
        left = (pod.links(), node.state_files(), picture())
        assert left == (set(), set(), before), f"at boundary {boundary}"
        if has_ended:
            break
    assert boundary > 10
