"""The daily tenth of cases that are too many for each run.

HPN_DRAW=2026-11-24 repeats that day's draw, HPN_DRAW=all takes every case, and HPN_DRAW=2026-11-24,all every case with
that day's seed.  A run without it draws by its first day, and its first lines name that day.

Some cases have an order, such as the steps before which a plugin is killed.  Each of these is drawn on one day of any
ten in a row.  For random cases a run makes a tenth, by the day's seed.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from random import Random
from typing import TypeVar

VARIABLE = "HPN_DRAW"
DAYS = 10
# No command has as many steps.
MOST = 10_000
T = TypeVar("T")
# The number of drawn cases in the present test: "kills" and others.  conftest.py moves it into the report.
TAKEN = dict[str, int]()


@dataclass(frozen=True)
class Draw:
    """A day, and whether all cases are taken."""

    day: date
    everything: bool

    def __str__(self) -> str:
        return f"{self.day}{',all' if self.everything else ''}"


def draw() -> Draw:
    """The run's draw.  The environment holds it from now on: every child process draws the same, also after
    midnight."""
    words = os.environ.get(VARIABLE, "").split(",")
    days = [word for word in words if word not in ("", "all")]
    found = Draw(date.fromisoformat(days[0]) if days else datetime.now(UTC).date(), "all" in words)
    os.environ[VARIABLE] = str(found)
    return found


def seed() -> int:
    """The day's seed for random cases."""
    return draw().day.toordinal()


def count(whole: int, what: str) -> int:
    """The number of random cases to make."""
    return noted(what, whole if draw().everything else max(1, whole // DAYS))


def share(cases: Sequence[T], family: str) -> list[T]:
    """The day's share of the cases, in their order: at least one, and each on one day of ten."""
    if draw().everything or not cases:
        return list(cases)
    shuffled = list(range(len(cases)))
    Random(family).shuffle(shuffled)
    turn = seed() % DAYS
    return [cases[n] for n in sorted(shuffled[turn::DAYS] or [shuffled[turn % len(shuffled)]])]


def steps(first: int = 0) -> Iterator[int]:
    """The steps before which the present test kills, in their order: the first, and one of each ten.

    A command shows the number of its steps by ending before the next kill, so a new step is drawn like the others.
    Each test draws other steps of the ten.
    """
    family = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    for ten in range(first, MOST, DAYS):
        drawn = share(range(ten, ten + DAYS), f"{family} {ten}")
        for step in sorted({first, *drawn} if ten == first else drawn):
            yield step
            noted("kills", 1)  # else there would be no next step
    raise AssertionError(f"it has not ended before step {MOST}")


def turn() -> int:
    """A number that changes whenever a step is drawn again: it chooses the action after the step."""
    return seed() // DAYS


def noted(what: str, number: int) -> int:
    """Count the cases in the present test's report, and return their number."""
    TAKEN[what] = TAKEN.get(what, 0) + number
    return number
