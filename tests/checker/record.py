"""Record the steps of a run in order, one line each, in a file that remains after a failure.

If an address has two owners, the file shows requests, answers, faults and the store's traffic.  Each line has the time
of the checker's clock and of the store's clock, which jumps.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from checker.clock import Clock


@dataclass
class Record:
    """The record of a run; ``jump`` is the lead of the store's clock over the checker's clock."""

    clock: Clock
    to: FileIO
    jump: float = 0.0

    def note(self, what: str, **about: Any) -> None:
        """Append one line in a single write, because several processes write to the file."""
        now = self.clock.now()
        line = {"clock": round(now, 1), "store": round(now + self.jump, 1), "what": what, **about}
        self.to.write(json.dumps(line).encode() + b"\n")


@contextmanager
def recording(file: Path | str, clock: Clock) -> Iterator[Record]:
    with open(file, "ab", buffering=0) as to:
        yield Record(clock, to)
