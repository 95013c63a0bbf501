"""What a run did and in which order, a line for each thing, in a file that is there when the run has failed.

Whoever finds an address with two owners reads there who asked for what, what was answered, what went wrong, and what
the store was asked meanwhile: each with the time of the checker's clock, and of the store's, which jumps.
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
    """``jump`` is by how much the store's clock is ahead of the checker's."""

    clock: Clock
    to: FileIO
    jump: float = 0.0

    def note(self, what: str, **about: Any) -> None:
        """One write, because several processes write to the file."""
        now = self.clock.now()
        line = {"clock": round(now, 1), "store": round(now + self.jump, 1), "what": what, **about}
        self.to.write(json.dumps(line).encode() + b"\n")


@contextmanager
def recording(file: Path | str, clock: Clock) -> Iterator[Record]:
    with open(file, "ab", buffering=0) as to:
        yield Record(clock, to)
