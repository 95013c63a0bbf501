"""Counts CNI commands: each reports its end by one datagram (base/protocol/report.py)."""

import asyncio
import errno
import re
import socket
from bisect import bisect_left
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from base.kernel import unix_sockets
from base.protocol import report
from base.state import durable, trust
from node.kubelet import sockets

# The histogram's upper bounds in seconds; a last one without a bound follows.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LINE: Final = re.compile(rb"1 (ADD|DEL|CHECK|GC|STATUS) ([a-z][a-z-]{0,15}|-) (0|[1-9][0-9]{0,2}) ([0-9]{1,12})\n")
_ROOM: Final = 128  # bytes; a line has 40
_AT_ONCE: Final = 64  # datagrams read before other callbacks get a turn
# Different (verb, kind, code); hpn sends fewer, and only root can send others.
_MOST: Final = 1000


class Durations:
    """Durations of commands: the number per interval between bounds, and the sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Tally:
    """The commands since the start: their number by (verb, kind, code), and their durations by (verb, kind)."""

    def __init__(self) -> None:
        self.ended = Counter[tuple[str, str, str]]()
        self.durations = defaultdict[tuple[str, str], Durations](Durations)

    def count(self, line: bytes) -> bool:
        """Count the command of a datagram; return False if it is not a report of hpn."""
        found = _LINE.fullmatch(line)  # guard: a-line-of-ours = _LINE.match(line)
        if not found:
            return False
        verb, kind, code, microseconds = (word.decode() for word in found.groups())
        kind = "" if kind == "-" else kind
        if (verb, kind, code) not in self.ended and len(self.ended) >= _MOST:  # guard: not-without-end
            return False
        self.ended[verb, kind, code] += 1
        self.durations[verb, kind].add(int(microseconds) / 1e6)
        return True


class Commands:
    """The socket for commands' reports, which ``tally`` counts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tally: Tally, path: Path = Path(report.SOCKET)) -> None:
        """Raises OSError, IoFailure, InvalidConfig."""
        self._loop, self._tally, self._path = loop, tally, path
        durable.directory(path.parent)
        trust.refuse_unless_ours(str(path.parent))  # guard: of-root
        path.unlink(missing_ok=True)
        self._sock = unix_sockets.bind(path, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._inode = sockets.inode(path)
        loop.add_reader(self._sock.fileno(), self._receive)

    def close(self) -> None:
        """Close and remove the socket; commands then report nothing."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        sockets.remove(self._path, self._inode)

    def _receive(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                self._tally.count(self._sock.recv(_ROOM))
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
