"""Measurement of a build trick's gain: binaries against the first one, in cold commands, without an agent.

    as root: packaging/venv python packaging/measure.py [--rounds N] dist/hpn dist/without-inspect/hpn ...

In a round each binary answers VERSION and STATUS, ADD and DEL, in a random order.  A gain is the median of the rounds'
differences, followed by half the distance of their quartiles.  CPU time is the process's own (man 2 wait4), on which
the machine's other load has less effect than on wall time.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "netns-fixtures"), str(ROOT)]

from fabric import end_by_unwinding, entered, node  # noqa: E402
from sides import Side  # noqa: E402

COMMANDS = ("VERSION", "STATUS", "ADD", "DEL")
WARM_UP = 2
Times = dict[str, list[tuple[float, float]]]


def side(binary: Path, number: int, scratch: Path) -> Side:
    """Return a binary with its own network; all share a rail."""
    ipam = {"type": "hpn-ipam", "dataDir": str(scratch / "leases"), "ranges": [[{"subnet": f"10.{number}.0.0/16"}]]}
    conf: dict[str, Any] = {"cniVersion": "1.1.0", "name": f"measure{number}", "type": "hpn", "master": "rail0"}
    conf |= {"mode": "bridge", "ipam": ipam}
    # Each unpacks into its own directory, because a newer version would remove an older one.
    variables = {"HPN_AGENT": "", "HPN_PROGRAM_DIR": str(scratch / f"program{number}")}
    variables["HPN_STATE_DIR"] = str(scratch / "state")
    return Side(str(binary), binary, conf, variables)


def milliseconds(side: Side, command: str, pod: str) -> tuple[float, float]:
    """Run one command; return its CPU and wall time in ms."""
    started = time.perf_counter()
    pid, stdout = side.start(command, pod)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    side.end(command, status, stdout)
    return (usage.ru_utime + usage.ru_stime) * 1000, wall * 1000


def row(name: str, command: str, which: int, times: Times, first: Times) -> str:
    mine, base = ([one[which] for one in each[command]] for each in (times, first))
    gains = [x - y for x, y in zip(mine, base, strict=True)]
    low, _, high = statistics.quantiles(gains, n=4)
    gain, median = statistics.median(gains), statistics.median(base)
    share = f"{gain:+7.2f} ± {(high - low) / 2:.2f} ms {gain / median:+7.1%}"
    return f"{('CPU', 'wall')[which]:5} {command:8} {statistics.median(mine):8.2f} ms {share}   {name}"


def measure(sides: Sequence[Side], pod: str, rounds: int) -> list[Times]:
    found: list[Times] = [{command: [] for command in COMMANDS} for _ in sides]
    for i in range(-WARM_UP, rounds):
        order = list(range(len(sides)))
        random.Random(i).shuffle(order)  # noqa: S311  # the same in every run
        for n in order:
            for command in COMMANDS:
                took = milliseconds(sides[n], command, pod)
                if i >= 0:
                    found[n][command].append(took)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description="Measure the gain of the build's tricks.")
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("binaries", type=lambda path: Path(path).resolve(), nargs="+")
    chosen = options.parse_args()
    end_by_unwinding()
    prefix = f"hpn-measure-{os.getpid()}"
    with (
        tempfile.TemporaryDirectory(prefix="hpn-measure-", dir="/dev/shm") as scratch,
        node(prefix, ["pod"]) as it,
        entered(it.netns),
    ):
        sides = [side(binary, 56 + n, Path(scratch)) for n, binary in enumerate(chosen.binaries)]
        found = measure(sides, it.pod("pod"), chosen.rounds)
    for which in (0, 1):
        for command in COMMANDS:
            for one, times in zip(sides, found, strict=True):
                print(row(one.name, command, which, times, found[0]))  # noqa: T201


if __name__ == "__main__":
    main()
