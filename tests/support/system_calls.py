"""The system calls of a piece of work, by the interpreter's count of its calls into C."""

import socket
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

# Functions of posix that ask the kernel nothing.
_OTHERS = {"fspath", "fsencode", "urandom"}
# The kernel decides how many datagrams carry an answer.
_ANSWERS = {"recv", "recvfrom", "recv_into", "recvmsg"}


def made_by(work: Callable[[], object]) -> Counter[str]:
    """The calls for files, descriptors and processes, and the requests to sockets, each with its number."""
    made = Counter[str]()

    def count(_: object, event: str, function: Any) -> None:
        if event != "c_call" or function.__name__ in _OTHERS | _ANSWERS:
            return
        if function.__module__ in ("posix", "fcntl", "_io") or isinstance(function.__self__, socket.socket):
            made[function.__name__] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


def fewest(rounds: int, work: Callable[[], object]) -> Counter[str]:
    """``made_by`` of the round with the fewest: some work is done in a part of the rounds only."""
    return min((made_by(work) for _ in range(rounds)), key=Counter.total)
