"""What a store answers to whoever reads back all that a network holds.  Imported only then."""

from dataclasses import dataclass

from ipam.ranges import Span
from ipam.stores.holdings import Holding


@dataclass(frozen=True)
class Listed:
    """A holding as it was read back.  ``line`` is its number in the store; ``is_over`` says that its holder is provably
    dead, or that it was kept back for long enough."""

    line: int
    holding: Holding
    is_over: bool


@dataclass(frozen=True)
class Contents:
    """All that a network holds, for people and for migration: read without a lock."""

    name: str
    place: str
    listed: tuple[Listed, ...] = ()
    # The ranges of each set, as the latest ADD had them; empty where they are not known.
    sets: tuple[tuple[Span, ...], ...] = ()
    # Lines that could not be read, and files that were set aside.
    unreadable: tuple[int, ...] = ()
    quarantined: tuple[str, ...] = ()
    problem: str = ""  # why nothing could be read
