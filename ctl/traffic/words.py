"""Pure: rates as people read them, and the layout that ``hpn top -l`` shares with vnstat -l and eadm stat -l."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from ctl.traffic.rates import Course, Rates

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Of what was received, and of what was sent.
Both = tuple[Course, Course]
_RULE: Final = f"{'-' * 38}+{'-' * 18}"


def size(octets: float) -> str:
    """In the unit that fits: "0 B", "11.06 GiB"."""
    power = 0
    while octets >= 1024 and power < len(_UNITS) - 1:
        octets, power = octets / 1024, power + 1
    return f"{octets:.2f} {_UNITS[power]}" if power else f"{octets:.0f} B"


def bits(octets: float) -> str:
    """Octets a second as the bits that links are sold by: "93.41 Gb/s"."""
    value, units = octets * 8, iter(("b", "Kb", "Mb", "Gb", "Tb"))
    unit = next(units)
    while value >= 1000 and unit != "Tb":
        value, unit = value / 1000, next(units)
    return f"{value:.2f} {unit}/s" if unit != "b" else f"{value:.0f} b/s"


def now(at: datetime, rates: Rates) -> str:
    """The line of one second."""
    rx, tx = f"{size(rates.rx)}/s", f"{size(rates.tx)}/s"
    return (
        f" {at:%H:%M:%S}  rx: {rx:>15} {rates.rx_packets:>5.0f} p/s          tx: {tx:>15} {rates.tx_packets:>5.0f} p/s"
    )


def summary(device: str, octets: Both, packets: Both, seconds: float) -> Iterator[str]:
    """What is shown at the end; of each pair the first is what was received."""
    yield from ("", "", f" {device}  /  traffic statistics", "", f"{'rx':>29}{'|':>10}       tx")
    yield _RULE
    yield from _part("bytes", [size(course.total) for course in octets])
    yield _RULE
    yield from _courses([[f"{size(value)}/s" for value in _three(course, seconds)] for course in octets])
    yield _RULE
    yield from _part("packets", [f"{course.total:.0f}" for course in packets])
    yield _RULE
    yield from _courses([[f"{int(value)} p/s" for value in _three(course, seconds)] for course in packets])
    yield _RULE
    yield f"  time{_span(seconds):>30}"


def _three(course: Course, seconds: float) -> tuple[float, float, float]:
    return course.most, course.average(seconds), course.least or 0.0


def _part(name: str, both: list[str]) -> Iterator[str]:
    yield f"  {name:<10}{both[0]:>24}  |{both[1]:>16}"


def _courses(both: list[list[str]]) -> Iterator[str]:
    for name, rx, tx in zip(("max", "average", "min"), *both, strict=True):
        yield f"{name:>13}{rx:>23}  |{tx:>16}"


def _span(seconds: float) -> str:
    if seconds <= 60:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.2f} minutes" if seconds < 3600 else f"{seconds / 3600:.2f} hours"
