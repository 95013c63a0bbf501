"""hpn top: live RDMA traffic, per device and pod."""

import argparse
import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from itertools import repeat
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.protocol import written
from base.protocol.errors import BadEnvironment
from base.table import printable
from ctl.command_line import parser_for
from ctl.screen import Alarm, Table, live, show, show_over
from ctl.top.counters import Name, Sample, Seen, sample
from ctl.top.rates import History, Rates, behind, between, bits, now_line, sparkline, summary
from hardware.ports import NOBODY
from hardware.rdma_users import CHARGED, RESOURCES

_SHOWN: Final = 30  # samples in a sparkline
_DAY: Final = 86400  # seconds, the longest interval
_HEADER: Final = ("POD", "RDMA/PORT", "STATE", "RX", "TX", "RX p/s", "TX p/s", "COURSE", "RAILS", "ERRORS")
_USERS: Final = ("RDMA", "USER", "QPS", "MRS", "CQS", "OBJECTS", "PEAK")
_EXAMPLE: Final = """\
example:
  hpn top                       all ports, once a second
  hpn top default/train-0       the ports that this pod owns or uses
  hpn top mlx5_0 -l             one device: a line a second, and a summary on Ctrl-C
  hpn top --count 1 --json      one sample for a script"""

# A sample, the rates since the previous one by port, and the seconds between the two.
Step = tuple[Sample, dict[Name, Rates], float]


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """Show the traffic until Ctrl-C, or for ``--count`` samples; return the remaining output and the exit status."""
    options = _parser().parse_args(words)
    sysfs.refuse_hidden(root)
    remarks = dict[str, None]()

    def read() -> Sample:
        return sample(
            set(options.what), lambda remark: remarks.setdefault(f"{remark}; run it as root on the host"), root
        )

    first = read()
    _complain(first, options, remarks)
    steps = _steps(first, options.interval, options.count, read)
    try:
        if options.l:
            return _line_by_line(steps, next(iter(first.shown))), 0
        if options.json:
            for step in steps:
                show(_document(step))
        else:
            live(_frames(steps, remarks))
    except KeyboardInterrupt:
        pass
    return "", 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("top", "Show live RDMA traffic.", _EXAMPLE)
    parser.add_argument("what", nargs="*", metavar="DEVICE|POD", help="an RDMA device, or a pod (default: all)")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="between samples; default 1")
    parser.add_argument("--count", type=_number, default=0, metavar="N", help="stop after N samples")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-l", action="store_true", help="one device, a line for each sample, a summary at the end")
    form.add_argument("--json", action="store_true", help="a JSON document for each sample, each on a line")
    return parser


def _seconds(word: str) -> float:
    with suppress(ValueError):
        if 0.1 <= (value := float(word)) <= _DAY:  # false for nan
            return value
    raise argparse.ArgumentTypeError(f"{word!r} is not a number from 0.1 to {_DAY}")


def _number(word: str) -> int:
    with suppress(ValueError):
        if (value := written.number(word)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{word!r} is not a whole number, at least 1")


def _steps(first: Sample, interval: float, count: int, read: Callable[[], Sample]) -> Iterator[Step]:
    """Samples, one per interval, and the rates since the previous one; endless if ``count`` is 0."""
    before, due = first, first.at
    for _ in range(count) if count else repeat(None):
        # Sleeping a full interval after each sample would accumulate the samples' own time.
        due = max(due + interval, time.monotonic() - interval)
        time.sleep(max(due - time.monotonic(), 0.0))
        after = read()
        seconds, old = after.at - before.at, before.ports
        rates = {
            name: between(old[name].totals, seen.totals, seconds) if name in old else Rates()
            for name, seen in after.ports.items()
        }
        yield after, rates, seconds
        before = after


def _complain(found: Sample, options: argparse.Namespace, remarks: Iterable[str]) -> None:
    """Raise BadEnvironment if there is no port to show, or too many."""
    if not found.shown:
        seen = "; ".join(remarks) or "list the devices: hpn devices"
        what = f"{', '.join(options.what)} has no RDMA device" if options.what else "no RDMA device is visible"
        raise BadEnvironment(f"{what}: {seen}")
    if options.l and len(found.shown) != 1:
        names = ", ".join("/".join(name) for name in found.shown)
        raise BadEnvironment(f"-l shows one port, and these match: {names}; name one of them")


def _line_by_line(steps: Iterator[Step], name: Name) -> str:
    """Show the layout of vnstat -l and eadm stat -l; return the summary.

    A port may disappear at any time; while it is away, it carries nothing.
    """
    histories, seconds, device = [History()] * 4, 0.0, printable(name[0])
    try:
        show(f"Monitoring {device}...    (press CTRL-C to stop)\n\n")
        for _, rates, passed in steps:
            now = rates.get(name, Rates())
            # Counted before it is shown, so that Ctrl-C at the first line still gives a summary.
            histories = [one.with_one(rate, passed) for one, rate in zip(histories, now.directions, strict=True)]
            seconds += passed
            show_over(now_line(datetime.now(), now))  # noqa: DTZ005  # local time, as in vnstat
    except KeyboardInterrupt:
        pass
    lines = summary(device, (histories[0], histories[1]), (histories[2], histories[3]), seconds) if seconds else ()
    return "".join(f"{line}\n" for line in lines)


def _document(step: Step) -> str:
    after, rates, seconds = step
    ports = [
        {"device": name[0], "port": int(name[1]), "state": seen.state, "pod": seen.pod, "netdev": seen.totals.netdev,
         "counted": seen.totals.known, **asdict(rates[name])}
        for name, seen in after.shown.items()
    ]  # fmt: skip
    users = [
        {"device": device, "pod": user.name, "uid": user.uid, "other": user.other, **_numbers(uses)}
        for (device, user), uses in after.shown_uses.items()
    ]
    return json.dumps({"time": time.time(), "seconds": seconds, "ports": ports, "users": users}) + "\n"


def _numbers(uses: Mapping[str, int]) -> dict[str, int]:
    return {**dict.fromkeys(RESOURCES, 0), **uses}


def _frames(steps: Iterator[Step], remarks: dict[str, None]) -> Iterator[list[Table | str]]:
    """A table for each step, with each port's history, and the errors since the start."""
    histories = defaultdict[Name, deque[float]](lambda: deque(maxlen=_SHOWN))
    errors = defaultdict[Name, Counter[str]](Counter)
    for after, rates, _ in steps:
        rows = []
        for name, seen in after.shown.items():
            now = rates[name]
            histories[name].append(now.rx + now.tx)
            errors[name].update(now.errors)
            low = behind(now.tx, _rails(after, rates, seen))
            row = _row(name, seen, now, sparkline(histories[name]))
            rows.append((*row, f"{low:.2f} of median" if low is not None else "-", _errors(errors[name], now)))
        uses = [
            (device, user.title, *(str(_numbers(n).get(one, "-")) for one in (*RESOURCES, *CHARGED)))
            for (device, user), n in after.shown_uses.items()
        ]
        yield [Table(_HEADER, rows), *(["", Table(_USERS, uses)] if uses else ()), *_notes(after), *remarks]


def _rails(after: Sample, rates: Mapping[Name, Rates], seen: Seen) -> list[float]:
    """The rates sent by each port of the same pod.  Ports without an owner are not compared."""
    if seen.owner == NOBODY:
        return []
    return [rates[name].tx for name, one in after.ports.items() if one.owner == seen.owner]


def _row(name: Name, seen: Seen, now: Rates, history: str) -> tuple[str, ...]:
    carried = (bits(now.rx), bits(now.tx)) if seen.totals.known else ("-", "-")
    return (
        seen.pod or "-", "/".join(name), seen.state, *carried, f"{now.rx_packets:.0f}", f"{now.tx_packets:.0f}", history
    )  # fmt: skip


def _errors(counted: Counter[str], now: Rates) -> str:
    """All errors since the start; an alarm if one of them has just increased."""
    cell = ", ".join(f"{name} +{number}" for name, number in sorted(counted.items())) or "-"
    return Alarm(cell) if now.errors else cell


def _notes(after: Sample) -> Iterator[str]:
    """Yield a note for each port without byte counts, or whose counts include traffic that is not RDMA."""
    for (device, port), seen in after.shown.items():
        if seen.totals.netdev:
            yield f"{device}/{port} counts no bytes: these are all bytes of {seen.totals.netdev}, RDMA or not"
        elif not seen.totals.known:
            yield f"{device}/{port}: its driver counts no bytes"
