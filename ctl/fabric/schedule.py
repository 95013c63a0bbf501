"""The rounds of a test: which hosts are tested at once.  Pure.

In a round each host has one partner.  So a round loads the fabric as a job does, and no host measures two at once.
"""

from collections.abc import Iterator, Sequence

from base.protocol import written
from base.protocol.errors import InvalidConfig
from ctl.fabric.model import Ends

_MOST_ROUND = 4096


def full(hosts: int) -> list[list[Ends]]:
    """Every host with every other, by the circle method: hosts - 1 rounds, or as many as hosts if their number is
    odd.  Then one host pauses in each round."""
    ring = [*range(hosts), *([-1] if hosts % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([ends(one, other) for one, other in pairs if -1 not in (one, other)])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return [one for one in rounds if one]


def quick(hosts: int) -> list[list[Ends]]:
    """Each host once, with one of the other half, so that pairs span a fabric whose hosts are listed in its order.  Of
    an odd number, the last host meets the first in a second round."""
    half = hosts // 2
    first = [Ends(one, one + half) for one in range(half)]
    return [one for one in (first, [Ends(0, hosts - 1)] if hosts % 2 and hosts > 1 else []) if one]


def ends(one: int, other: int) -> Ends:
    return Ends(min(one, other), max(one, other))


def from_lines(text: str, names: Sequence[str]) -> list[list[Ends]]:
    """The rounds of a file with lines "ROUND HOST HOST", as ClusterKit reads them.  ``names`` are the hosts'.  Raises
    InvalidConfig with the line's number."""
    rounds = dict[int, list[Ends]]()
    for line, (number, *pair) in _lines(text):
        if unknown := [name for name in pair if names.count(name) != 1]:
            hint = f"the hosts are {', '.join(names)}"
            raise InvalidConfig(f"--pairs, line {line}: {unknown[0]!r} is not one of the hosts; {hint}")
        one, other = map(names.index, pair)
        try:
            at = written.number(number)
        except ValueError as e:
            raise InvalidConfig(f"--pairs, line {line}: {e}") from e
        if at > _MOST_ROUND:
            raise InvalidConfig(f"--pairs, line {line}: round {at}; the last possible one is {_MOST_ROUND}")
        busy = {host for found in rounds.get(at, ()) for host in found}
        if one == other or busy & {one, other}:
            name = pair[1] if one == other or other in busy else pair[0]
            raise InvalidConfig(f"--pairs, line {line}: {name} is already in round {at}; give the pair another round")
        rounds.setdefault(at, []).append(ends(one, other))
    if not rounds:
        raise InvalidConfig("--pairs: the file has no pair; write lines ROUND HOST HOST")
    return [rounds[at] for at in sorted(rounds)]


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and len(words) != 3:
            raise InvalidConfig(f"--pairs, line {number}: {len(words)} words; write ROUND HOST HOST")
        if words:
            yield number, words


def rails_of(text: str) -> tuple[int, ...]:
    """The numbers of "0-3,6".  Raises ValueError."""
    found = set[int]()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = written.number(first)
        high = written.number(last) if dash else low
        if not low <= high < 64:
            raise ValueError(f"{part!r} is not a span of rails; write it as 0-7")
        found |= {*range(low, high + 1)}
    return tuple(sorted(found))
