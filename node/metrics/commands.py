"""CNI commands, counted: each tells of its end by one datagram (base/protocol/report.py)."""

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

# Upper bounds in seconds; what is longer than the last is counted too.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LINE: Final = re.compile(rb"1 (ADD|DEL|CHECK|GC|STATUS) ([a-z][a-z-]{0,15}|-) (0|[1-9][0-9]{0,2}) ([0-9]{1,12})\n")
_ROOM: Final = 128  # bytes; a line has 40
_AT_ONCE: Final = 64  # datagrams that are read before others have their turn
# Different (verb, kind, code).  Only root can tell us any, and what hpn can tell is fewer.
_MOST: Final = 1000


class Durations:
    """How long commands took: how many of them up to each bound and no shorter, and seconds altogether."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Tally:
    """What was told since the start: of each (verb, kind, code) how many, of each (verb, kind) how long."""

    def __init__(self) -> None:
        self.ended = Counter[tuple[str, str, str]]()
        self.durations = defaultdict[tuple[str, str], Durations](Durations)

    def take(self, line: bytes) -> bool:
        """Count what a datagram tells; False if it is none of ours."""
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
    """The socket by which commands tell.  ``tally`` has what they told."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tally: Tally, path: Path = Path(report.SOCKET)) -> None:
        """Raises OSError, IoFailure, InvalidConfig."""
        self._loop, self._tally, self._path = loop, tally, path
        durable.directory(path.parent)
        trust.refuse_unless_ours(str(path.parent))  # guard: of-root
        path.unlink(missing_ok=True)
        self._sock = unix_sockets.bind(path, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._made = sockets.inode(path)
        loop.add_reader(self._sock.fileno(), self._hear)

    def close(self) -> None:
        """Hear no more; commands then find nobody."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        sockets.remove(self._path, self._made)

    def _hear(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                self._tally.take(self._sock.recv(_ROOM))
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
