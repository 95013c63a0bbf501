"""Counts CNI commands: each reports its end by one datagram (base/protocol/report.py)."""

import asyncio
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base.protocol import report
from node.kubelet.sockets import Datagrams

# The histogram's upper bounds in seconds; a last one without a bound follows.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LINE: Final = re.compile(rb"1 (ADD|DEL|CHECK|GC|STATUS) ([a-z][a-z-]{0,15}|-) (0|[1-9][0-9]{0,2}) ([0-9]{1,12})\n")
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
        found = _LINE.fullmatch(line)
        if not found:
            return False
        verb, kind, code, microseconds = (word.decode() for word in found.groups())
        kind = "" if kind == "-" else kind
        if (verb, kind, code) not in self.ended and len(self.ended) >= _MOST:
            return False
        self.ended[verb, kind, code] += 1
        self.durations[verb, kind].add(int(microseconds) / 1e6)
        return True

    def count_all(self, lines: Sequence[bytes]) -> None:
        """Count the commands of all these datagrams."""
        for line in lines:
            self.count(line)


def receive(loop: asyncio.AbstractEventLoop, tally: Tally, path: Path = Path(report.SOCKET)) -> Datagrams:
    """Count commands' reports in the tally, until the result is closed.  Raises OSError, IoFailure, InvalidConfig."""
    return Datagrams(loop, path, tally.count_all)
