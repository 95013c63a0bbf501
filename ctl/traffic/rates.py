"""Pure: two samples -> what went through meanwhile, how it compares with others, and how it went on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ctl.traffic.counted import Totals

_BARS: Final = "▁▂▃▄▅▆▇█"
# A rail is behind if it carries less than this part of the median of its pod's rails, and that is anything to speak of.
_BEHIND: Final = 0.5
_IDLE: Final = 1e6  # octets a second


@dataclass(frozen=True)
class Rates:
    """Octets and packets per second, and errors that were counted in that time."""

    rx: float = 0.0
    tx: float = 0.0
    rx_packets: float = 0.0
    tx_packets: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def directions(self) -> tuple[float, float, float, float]:
        """Octets received and sent, then packets."""
        return self.rx, self.tx, self.rx_packets, self.tx_packets


def between(before: Totals, after: Totals, seconds: float) -> Rates:
    """What went through between two samples.

    A counter that is smaller than before began again at zero: the device was taken away and is back.
    """

    def per_second(name: str) -> float:
        return _grown(getattr(before, name), getattr(after, name)) / seconds

    grown = {name: _grown(before.errors.get(name, value), value) for name, value in after.errors.items()}
    rx, tx, rx_packets, tx_packets = map(per_second, ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets"))
    return Rates(rx, tx, rx_packets, tx_packets, {name: number for name, number in grown.items() if number})


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after


def behind(own: float, rails: Sequence[float]) -> float | None:
    """The part of the median of the pod's rails that this one carries, where that is low; None where all is well.

    ``rails``: octets per second of all of them, this one among them.
    """
    middle = median(rails) if len(rails) > 1 else 0.0
    return own / middle if middle > _IDLE and own < _BEHIND * middle else None


def sparkline(values: Iterable[float]) -> str:
    """A bar for each value; the highest of them has the highest bar, and nothing has the lowest."""
    values = list(values)
    most = max(values, default=0.0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] if most else _BARS[0] for value in values)


@dataclass(frozen=True)
class Course:
    """All that was seen of one direction: octets or packets, and their rates per second."""

    total: float = 0.0
    most: float = 0.0
    least: float | None = None

    def with_one(self, rate: float, seconds: float) -> "Course":
        """The course, after a time at this rate."""
        least = rate if self.least is None else min(self.least, rate)
        return Course(self.total + rate * seconds, max(self.most, rate), least)

    def average(self, seconds: float) -> float:
        """All of it by all of the time."""
        return self.total / seconds if seconds else 0.0
