"""One process answering one request: the only reader of environment and stdin, the only writer of stdout."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from cni.protocol.dispatch import failed
from cni.protocol.errors import IoFailure
from cni.protocol.spec import NEWEST, Program, Reply, Request, variables


def environment() -> dict[str, str]:
    """This process's environment as it was given, for other programs: Python adds variables to it (PEP 538)."""
    given = variables(Path("/proc/self/environ").read_bytes())
    return {name: value for name, value in given.items() if name in os.environ}


def serve(program: Program) -> NoReturn:
    """Answer the request this process was started with, and exit with its code."""
    reply = _answer(program)
    for line in reply.log:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(reply.stdout)
    sys.stdout.flush()
    sys.exit(reply.exit_code)


def _answer(program: Program) -> Reply:
    try:
        environ = environment()
    except OSError as e:
        why = f"/proc/self/environ cannot be read: {e.strerror}; run: mount -t proc proc /proc"
        return failed(NEWEST, IoFailure(why))
    try:
        # VERSION may come with no stdin at all, and a person at a terminal gives none.
        stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
        return program(Request(environ, stdin, process=os.getpid()))
    except OSError as e:
        return failed(NEWEST, IoFailure(f"stdin cannot be read: {e.strerror}"))
