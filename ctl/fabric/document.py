"""The result of a test as a JSON document, whose shape docs/user/commands.md describes, and as tables.  Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from base.protocol.spec import Json
from ctl.fabric.causes import Facts, causes
from ctl.fabric.model import BAD, Blame, Culprit, Judged, Limits, Participant, Spot, Verdict
from ctl.fabric.perftest import Settings
from ctl.screen import Alarm, Table

VERSION: Final = 1
_WORDS: Final = {
    Culprit.RAIL: "the rail itself: bad with two partners",
    Culprit.PATH: "the path between them: both rails are good with others",
    Culprit.PAIR: "one of the two rails, or the path: no good partner was left to decide",
    Culprit.LEAK: "they must not reach each other",
}


@dataclass(frozen=True)
class Result:
    """A whole test: ``trials`` of the plan, ``repeated`` ones, those across rails, and the findings."""

    facts: Facts
    limits: Limits
    settings: Settings
    trials: Sequence[Judged]
    repeated: Sequence[Judged]
    isolation: Sequence[Judged]
    blames: Sequence[Blame]
    seconds: float
    time: str

    @property
    def hosts(self) -> Sequence[Participant]:
        return self.facts.before

    @property
    def not_run(self) -> list[Judged]:
        return [one for one in (*self.trials, *self.isolation) if one.verdict is Verdict.NOT_RUN]

    @property
    def status(self) -> int:
        """The exit status: 1 for a finding, 2 if something could not be tested, else 0."""
        return 1 if self.blames else 2 if self.not_run or not self.trials else 0


def document(result: Result) -> Json:
    """The document of ``--json``."""
    return {
        "version": VERSION,
        "time": result.time,
        "seconds": round(result.seconds, 3),
        "status": result.status,
        "limits": {
            "ofMedian": result.limits.of_median, "ofRate": result.limits.of_rate, "ofLeast": result.limits.of_least,
        },
        "settings": {
            "seconds": result.settings.seconds, "queuePairs": result.settings.pairs,
            "trafficClass": _or_none(result.settings.traffic_class), "gpu": _or_none(result.settings.gpu),
        },
        "hosts": [_host(one) for one in result.hosts],
        "counts": dict(Counter(f"{one.verdict}" for one in (*result.trials, *result.isolation))),
        "findings": [_finding(one, result) for one in result.blames],
        "trials": [_trial(one, result) for one in result.trials],
        "repeated": [_trial(one, result) for one in result.repeated],
        "isolation": [_trial(one, result) for one in result.isolation],
    }  # fmt: skip


def _host(one: Participant) -> Json:
    rails = [
        {
            "rail": number, "device": rail.device, "port": rail.port, "netdev": rail.netdev, "address": rail.address,
            "gidIndex": _or_none(rail.gid), "linkLayer": rail.layer, "state": rail.state, "mtu": rail.mtu,
            "pathMtu": rail.path_mtu or None, "rate": rail.rate or None, "pcie": rail.pcie, "pcieMost": rail.pcie_most,
            "trafficClass": _or_none(rail.traffic_class),
        }
        for number, rail in enumerate(one.rails)
    ]  # fmt: skip
    return {"name": one.name, "memlock": _or_none(one.memlock), "trouble": one.trouble, "rails": rails}


def _trial(one: Judged, result: Result) -> Json:
    trial = one.trial
    return {
        "round": trial.round,
        "hosts": [result.hosts[host].name for host in trial.ends],
        "rails": [spot.rail for spot in trial.spots],
        "verdict": one.verdict,
        "why": one.why,
        "forth": trial.forth,
        "back": trial.back,
        "latency": trial.latency,
        "remarks": list(trial.remarks),
    }


def _finding(one: Blame, result: Result) -> Json:
    return {
        "culprit": one.culprit,
        "verdict": one.verdict,
        "places": [{"host": result.hosts[spot.host].name, "rail": spot.rail} for spot in one.spots],
        "why": reason(one),
        "causes": list(causes(one, result.facts)),
        "trials": len(one.evidence),
    }


def _or_none(number: int) -> int | None:
    return None if number < 0 else number


def reason(one: Blame) -> str:
    """The first reason among the trials of a finding."""
    return next((judged.why for judged in one.evidence if judged.why), "")


def parts(result: Result) -> Iterator[Table | str]:
    """The output for people: a row for each rail, the findings, and what could not be tested."""
    yield _summary(result)
    if result.blames:
        yield ""
    for one in result.blames:
        yield f"{one.verdict}: {_places(one.spots, result)}: {_WORDS[one.culprit]}"
        yield f"  {reason(one)}"
        yield from (f"  cause: {cause}" for cause in causes(one, result.facts))
    if result.not_run:
        yield ""
        reasons = Counter(one.why for one in result.not_run)
        yield from (f"not run: {why} ({count} trials)" for why, count in reasons.most_common())
    good = Counter(one.verdict for one in (*result.trials, *result.isolation))
    counts = ", ".join(f"{good[word]} {word}" for word in Verdict if good[word])
    yield ""
    yield f"{len(result.hosts)} hosts, {counts or 'no trial'}, {len(result.blames)} findings in {result.seconds:.0f} s"


def _summary(result: Result) -> Table:
    header = ("RAIL", "PAIRS", "OK", "SLOW", "CUT", "NOT RUN", "Gb/s LEAST", "MEDIAN", "MOST", "us LEAST", "MOST")
    by_rail = dict[int, list[Judged]]()
    for one in result.trials:
        by_rail.setdefault(one.trial.rail, []).append(one)
    return Table(header, [_row(number, by_rail[number]) for number in sorted(by_rail)])


def _row(number: int, judged: Sequence[Judged]) -> tuple[str, ...]:
    counts = Counter(one.verdict for one in judged)
    speeds = sorted(speed for one in judged for speed in (one.trial.forth, one.trial.back) if speed is not None)
    times = sorted(one.trial.latency for one in judged if one.trial.latency is not None)
    cells = [f"{counts[word]}" for word in (Verdict.OK, *BAD, Verdict.NOT_RUN)]
    marked = [Alarm(cell) if cell != "0" and at in (1, 2) else cell for at, cell in enumerate(cells)]
    three = [f"{speeds[at]:.4g}" for at in (0, len(speeds) // 2, -1)] if speeds else ["-"] * 3
    two = [f"{times[at]:.4g}" for at in (0, -1)] if times else ["-"] * 2
    return (f"{number}", f"{len(judged)}", *marked, *three, *two)


def _places(spots: Sequence[Spot], result: Result) -> str:
    return " and ".join(place(spot, result.hosts) for spot in spots)


def place(spot: Spot, hosts: Sequence[Participant]) -> str:
    """A rail by host, number and interface: "rail 3 of node7 (rail3, mlx5_3)"."""
    rails = hosts[spot.host].rails
    names = f" ({rails[spot.rail].netdev}, {rails[spot.rail].device})" if spot.rail < len(rails) else ""
    return f"rail {spot.rail} of {hosts[spot.host].name}{names}"
