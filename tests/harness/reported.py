"""Merge the reports of the runs of one `make test`: one JUnit file, the failures, and the times."""

import os
import re
import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

TIERS = Path(__file__).parents[2] / "docs" / "develop" / "testing.md"
LONGEST = 20


@dataclass(frozen=True)
class Done:
    """A finished run: its times in seconds, including all processes that it waited for, and its report.

    ``inside`` has the suites that ran in its guest.
    """

    name: str
    tier: str
    status: int
    wall: float = 0.0
    processor: float = 0.0
    suites: list[ET.Element] = field(default_factory=list)
    inside: list[ET.Element] = field(default_factory=list)

    def cases(self) -> Iterator[tuple[str, ET.Element, float]]:
        """Each test by name with its own time: a test in a guest counts there, not in the test that booted the
        guest."""
        less = 0.0
        for suite in self.inside:
            for case in suite.iter("testcase"):
                less += (time := float(case.get("time", 0)))
                yield f"{node_id(case)} in the guest of {self.name}", case, time
        for suite in self.suites:
            for case in suite.iter("testcase"):
                yield (
                    node_id(case) + (" of make plain" if self.tier == "plain" else ""),
                    case,
                    max(0.0, float(case.get("time", 0)) - less),
                )


def suites(report: Path, name: str) -> list[ET.Element]:
    """The suites of a report, under this name; none if the report is missing or incomplete."""
    try:
        found = [*ET.parse(report).getroot().iter("testsuite")]
    except (OSError, ET.ParseError):
        return []
    for suite in found:
        suite.set("name", name)
    return found


def merged(done: Sequence[Done]) -> ET.Element:
    """All reports as one: a suite for each, and one for each guest."""
    root = ET.Element("testsuites")
    for run in done:
        root.extend([*run.inside, *run.suites])
    return root


def node_id(case: ET.Element) -> str:
    """The name with which pytest runs the test again: in tests.unit.test_x.TestY the file is test_x."""
    found = re.fullmatch(r"((?:\w+\.)*?test_\w+)((?:\.\w+)*)", case.get("classname", ""))
    if found:
        return f"{found[1].replace('.', '/')}.py{found[2].replace('.', '::')}::{case.get('name')}"
    return str(case.get("name"))  # a file that could not be collected


def failure(case: ET.Element) -> str | None:
    """The message of a failure or an error; None without either."""
    found = next((element for element in case if element.tag in ("failure", "error")), None)
    return None if found is None else found.get("message", "")


def summary(done: Sequence[Done]) -> str:
    """The failures by name, and the counts."""
    lines, count = list[str](), dict.fromkeys(("passed", "failed", "skipped"), 0)
    for name, case, _ in (one for run in done for one in run.cases()):
        failed, is_skipped = failure(case), case.find("skipped") is not None
        if failed is not None:
            lines.append(f"FAILED {name}: {''.join(failed.splitlines()[:1])}")
        count["failed" if failed is not None else "skipped" if is_skipped else "passed"] += 1
    return "\n".join([*lines, ", ".join(f"{number} {what}" for what, number in count.items() if number)])


def budgets() -> dict[str, int]:
    """The budget of each tier in minutes of a processor, from docs/develop/testing.md."""
    rows = re.findall(r"^\| `(?:tests/|make )(\w+)` \| (\d+) \|", TIERS.read_text(), re.MULTILINE)
    return {tier: int(minutes) for tier, minutes in rows}


def times(done: Sequence[Done]) -> str:
    """Each tier beside its budget, and the longest tests."""
    allowed, files = budgets(), defaultdict[str, float](float)
    tests = [(time, name) for run in done for name, _, time in run.cases()]
    for time, name in tests:
        files[name.partition("::")[0]] += time
    lines = ["minutes of a processor, their budget, minutes from begin to end:"]
    for tier in dict.fromkeys(run.tier for run in done):
        took = sum(run.processor for run in done if run.tier == tier) / 60
        wall = sum(run.wall for run in done if run.tier == tier) / 60
        over = " is over its budget" if took > allowed[tier] else ""
        lines.append(f"{took:8.1f} {allowed[tier]:5} {wall:7.1f}  {tier}{over}")
    slowest = sorted(((time, name) for name, time in files.items()), reverse=True)
    for what, found in (("files", slowest), ("tests", sorted(tests, reverse=True))):
        lines += [
            f"seconds of the {LONGEST} longest {what}:",
            *(f"{time:8.1f}  {name}" for time, name in found[:LONGEST]),
        ]
    return "\n".join(lines)


class Processors:
    """The work of all processors of the machine from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    def __str__(self) -> str:
        idle, spent, ours = (now - before for now, before in zip(self._now(), self._before, strict=True))
        whole = (idle + spent) or 1.0
        return (
            f"{os.cpu_count()} processors: {ours / whole:.0%} with these tests, "
            f"{max(0.0, spent - ours) / whole:.0%} with other work, {idle / whole:.0%} idle"
        )

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: idle, not idle, and of all child processes that ended."""
        with open("/proc/stat") as file:
            user, nice, system, idle, waiting, *others = map(int, file.readline().split()[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (
            (idle + waiting) / ticks,
            (user + nice + system + sum(others)) / ticks,
            children.ru_utime + children.ru_stime,
        )
