"""Traffic between two samples, its history, and its display.  Pure.

``hpn top -l`` has the layout of vnstat -l and eadm stat -l.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Final

from ctl.top.counters import Totals

_BARS: Final = "▁▂▃▄▅▆▇█"
# A rail is behind below this share of the median of its pod's rails, if the median is above _IDLE.
_BEHIND: Final = 0.5
_IDLE: Final = 1e6  # bytes per second


@dataclass(frozen=True)
class Rates:
    """Bytes and packets per second, and the errors counted in that time."""

    rx: float = 0.0
    tx: float = 0.0
    rx_packets: float = 0.0
    tx_packets: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def directions(self) -> tuple[float, float, float, float]:
        """Bytes received and sent, then packets."""
        return self.rx, self.tx, self.rx_packets, self.tx_packets


def between(before: Totals, after: Totals, seconds: float) -> Rates:
    """The traffic between two samples."""
    rx, tx, rx_packets, tx_packets = (
        _grown(getattr(before, name), getattr(after, name)) / seconds
        for name in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
    )
    grown = {name: _grown(before.errors.get(name, value), value) for name, value in after.errors.items()}
    return Rates(rx, tx, rx_packets, tx_packets, {name: number for name, number in grown.items() if number})


def _grown(before: int, after: int) -> int:
    # A counter that decreased restarted at zero: the device was removed and came back.
    return after - before if after >= before else after


def behind(own: float, rails: Sequence[float]) -> float | None:
    """This rail's share of the median of all ``rails`` of its pod, in bytes per second; None if it is normal."""
    middle = median(rails) if len(rails) > 1 else 0.0
    return own / middle if middle > _IDLE and own < _BEHIND * middle else None


def sparkline(values: Iterable[float]) -> str:
    """A bar for each value, scaled to the highest; zero has the lowest bar."""
    values = list(values)
    most = max(values, default=0.0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] if most else _BARS[0] for value in values)


@dataclass(frozen=True)
class History:
    """All traffic of one direction: bytes or packets, and their rates per second."""

    total: float = 0.0
    most: float = 0.0
    least: float | None = None

    def with_one(self, rate: float, seconds: float) -> "History":
        """The history after ``seconds`` more at this rate."""
        least = rate if self.least is None else min(self.least, rate)
        return History(self.total + rate * seconds, max(self.most, rate), least)

    def average(self, seconds: float) -> float:
        """The total divided by the time."""
        return self.total / seconds if seconds else 0.0


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Received and sent.
Both = tuple[History, History]
_RULE: Final = f"{'-' * 38}+{'-' * 18}"


def size(amount: float) -> str:
    """Bytes in a suitable unit: "0 B", "11.06 GiB"."""
    power = 0
    while amount >= 1024 and power < len(_UNITS) - 1:
        amount, power = amount / 1024, power + 1
    return f"{amount:.2f} {_UNITS[power]}" if power else f"{amount:.0f} B"


def bits(amount: float) -> str:
    """Bytes per second as bits per second, the unit of links: "93.41 Gb/s"."""
    value, units = amount * 8, iter(("b", "Kb", "Mb", "Gb", "Tb"))
    unit = next(units)
    while value >= 1000 and unit != "Tb":
        value, unit = value / 1000, next(units)
    return f"{value:.2f} {unit}/s" if unit != "b" else f"{value:.0f} b/s"


def now_line(at: datetime, rates: Rates) -> str:
    """The line of one second."""
    rx, tx = f"{size(rates.rx)}/s", f"{size(rates.tx)}/s"
    return (
        f" {at:%H:%M:%S}  rx: {rx:>15} {rates.rx_packets:>5.0f} p/s          tx: {tx:>15} {rates.tx_packets:>5.0f} p/s"
    )


def summary(device: str, sizes: Both, packets: Both, seconds: float) -> Iterator[str]:
    """The lines at the end; the first of each pair is received traffic."""
    yield from ("", "", f" {device}  /  traffic statistics", "", f"{'rx':>29}{'|':>10}       tx")
    yield _RULE
    yield from _part("bytes", [size(history.total) for history in sizes])
    yield _RULE
    yield from _histories([[f"{size(value)}/s" for value in _three(history, seconds)] for history in sizes])
    yield _RULE
    yield from _part("packets", [f"{history.total:.0f}" for history in packets])
    yield _RULE
    yield from _histories([[f"{int(value)} p/s" for value in _three(history, seconds)] for history in packets])
    yield _RULE
    yield f"  time{_span(seconds):>30}"


def _three(history: History, seconds: float) -> tuple[float, float, float]:
    return history.most, history.average(seconds), history.least or 0.0


def _part(name: str, both: list[str]) -> Iterator[str]:
    yield f"  {name:<10}{both[0]:>24}  |{both[1]:>16}"


def _histories(both: list[list[str]]) -> Iterator[str]:
    for name, rx, tx in zip(("max", "average", "min"), *both, strict=True):
        yield f"{name:>13}{rx:>23}  |{tx:>16}"


def _span(seconds: float) -> str:
    if seconds <= 60:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.2f} minutes" if seconds < 3600 else f"{seconds / 3600:.2f} hours"
