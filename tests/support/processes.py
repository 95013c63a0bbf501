"""Processes that tests start: where they are, and what state they are in."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.topology import until


def await_inside(process: "subprocess.Popen[Any]", inode: int) -> None:
    """Wait until a started process is in the namespace; nsenter and ``ip netns exec`` enter it some time later."""
    until(lambda: Path(f"/proc/{process.pid}/ns/net").stat().st_ino == inode)


def states(pid: int) -> set[str]:
    """Return the states of the process's threads: none if it is gone, Z if nothing reaps orphans."""
    found = set[str]()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop these processes with all their threads: until its first thread stops, another may still accept a request.

    It takes them out of epoll_wait.  A connection that wakes an agent's worker on its way out goes to another worker
    only with the next connection.
    """
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: all(states(pid) == {"T"} for pid in pids))
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
