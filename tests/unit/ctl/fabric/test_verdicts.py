"""Verdicts and culprits, on random fabrics with injected faults: the findings are exactly those faults."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from ctl.fabric import schedule
from ctl.fabric.blaming import ONLY_TOGETHER, Again, Inquiry, batches
from ctl.fabric.judging import Rates, judge, judge_isolation, yardstick
from ctl.fabric.model import (
    Culprit,
    Ends,
    Judged,
    Limits,
    Reached,
    Spot,
    Trial,
    Verdict,
)

LIMITS = Limits()
RATE = 100.0


@dataclass
class Fabric:
    """A model of a fabric: the share of the bandwidth that a faulty rail or path leaves, 0 for none."""

    hosts: int
    rails: int
    chance: random.Random
    spots: dict[Spot, float] = field(default_factory=dict)
    paths: dict[tuple[Ends, int], float] = field(default_factory=dict)
    late: dict[Spot, float] = field(default_factory=dict)
    unable: set[Spot] = field(default_factory=set)
    dying: set[int] = field(default_factory=set)  # hosts that end before the repeated trials
    lost: dict[int, str] = field(default_factory=dict)

    def again(self, ends: Ends, rail: int) -> Trial:
        """A repeated trial, the first thing that notices a host's end."""
        self.lost |= dict.fromkeys(self.dying.intersection(ends), "it has ended")
        return Trial(ends, rail, Reached.NOT_RUN) if self.dying.intersection(ends) else self.trial(ends, rail)

    def trial(self, ends: Ends, rail: int, number: int = 0) -> Trial:
        here = [Spot(host, rail) for host in ends]
        if not self.unable.isdisjoint(here):
            return Trial(ends, rail, Reached.NOT_RUN, detail="no GID", round=number)
        share = min(self.paths.get((ends, rail), 1.0), *(self.spots.get(spot, 1.0) for spot in here))
        if not share:
            return Trial(ends, rail, Reached.UNREACHED, detail="no answer", round=number)
        forth, back = (RATE * share * self.chance.uniform(0.96, 1.0) for _ in range(2))
        if self.chance.random() < 0.5:  # a fault may concern one direction only
            back = max(back, RATE * 0.98) if share < 1 else back
        latency = 2.0 * self.chance.uniform(1.0, 1.5) + sum(self.late.get(spot, 0.0) for spot in here)
        return Trial(ends, rail, Reached.DONE, forth, back, latency, round=number)


@dataclass
class Run:
    first: list[Judged]
    inquiry: Inquiry
    repeated: int


def test(fabric: Fabric, plan: list[list[Ends]]) -> Run:
    rates = Rates({Spot(host, rail): RATE for host in range(fabric.hosts) for rail in range(fabric.rails)})
    trials = [
        fabric.trial(ends, rail, number)
        for number, one in enumerate(plan)
        for ends in one
        for rail in range(fabric.rails)
    ]
    measure = yardstick(trials, rates)
    first = [judge(trial, measure, rates, LIMITS) for trial in trials]
    inquiry, repeated = Inquiry(first, fabric.lost), 0
    while wanted := inquiry.next_trials():
        for batch in batches(wanted):
            inquiry.add(judge(fabric.again(*again), measure, rates, LIMITS) for again in batch)
        repeated += len(wanted)
    return Run(first, inquiry, repeated)


test.__test__ = False  # type: ignore[attr-defined]  # it is a helper


def named(run: Run) -> set[tuple[Culprit, tuple[Spot, ...]]]:
    return {(one.culprit, one.spots) for one in run.inquiry.blames()}


def expected(fabric: Fabric) -> set[tuple[Culprit, tuple[Spot, ...]]]:
    bad = {*fabric.spots, *fabric.late}
    found = {(Culprit.RAIL, (spot,)) for spot in bad}
    for ends, rail in fabric.paths:
        spots = Spot(ends.one, rail), Spot(ends.other, rail)
        if bad.isdisjoint(spots):
            found.add((Culprit.PATH, spots))
    return found


def share(chance: random.Random) -> float:
    return chance.choice((0.0, 0.1, 0.5, 0.85))


@pytest.mark.parametrize("seed", range(300))
def test_the_findings_are_the_faults(seed: int) -> None:
    """In a full run: fewer faulty hosts than half on each rail, and on each host at most one cut path of a rail."""
    chance = random.Random(seed)
    fabric = Fabric(chance.randint(4, 12), chance.randint(1, 4), chance)
    for rail in range(fabric.rails):
        hosts = chance.sample(range(fabric.hosts), fabric.hosts)
        faulty, rest = hosts[: chance.randint(0, (fabric.hosts - 2) // 2)], hosts
        for host in faulty:
            if chance.random() < 0.3:
                fabric.late[Spot(host, rail)] = 20.0
            else:
                fabric.spots[Spot(host, rail)] = share(chance)
        rest = [host for host in hosts if host not in faulty]
        for one, other in zip(rest[::2], rest[1::2], strict=False):
            if chance.random() < 0.2 and len(rest) > 4:
                fabric.paths[schedule.ends(one, other), rail] = share(chance)
    assert named(test(fabric, schedule.full(fabric.hosts))) == expected(fabric)


@pytest.mark.parametrize("seed", range(100))
def test_quick_names_one_fault(seed: int) -> None:
    chance = random.Random(seed)
    fabric = Fabric(chance.randint(4, 16), chance.randint(1, 8), chance)
    plan = schedule.quick(fabric.hosts)
    rail = chance.randrange(fabric.rails)
    if chance.random() < 0.5:
        fabric.spots[Spot(chance.randrange(fabric.hosts), rail)] = share(chance)
    else:
        fabric.paths[chance.choice(plan[0]), rail] = share(chance)
    run = test(fabric, plan)
    assert named(run) == expected(fabric)
    assert run.repeated <= 4


@pytest.mark.parametrize("seed", range(100))
def test_no_fault_no_finding(seed: int) -> None:
    chance = random.Random(seed)
    fabric = Fabric(chance.randint(2, 16), chance.randint(1, 8), chance)
    for plan in (schedule.full(fabric.hosts), schedule.quick(fabric.hosts)):
        run = test(fabric, plan)
        assert {one.verdict for one in run.first} == {Verdict.OK}
        assert (named(run), run.repeated) == (set(), 0)


@pytest.mark.parametrize("seed", range(50))
def test_what_could_not_run_is_no_finding(seed: int) -> None:
    chance = random.Random(seed)
    fabric = Fabric(chance.randint(3, 8), 2, chance)
    spot = Spot(chance.randrange(fabric.hosts), 1)
    fabric.unable.add(spot)
    run = test(fabric, schedule.full(fabric.hosts))
    assert named(run) == set()
    assert {one.trial.spots for one in run.first if one.verdict is Verdict.NOT_RUN} == {
        one.trial.spots for one in run.first if spot in one.trial.spots
    }


@pytest.mark.parametrize("dying", [{1}, {1, 3}, {1, 3, 5}, {1, 3, 4, 5}])
def test_hosts_that_die_before_they_help(dying: set[int]) -> None:
    """Another good partner decides, as long as one is left."""
    fabric = Fabric(6, 2, random.Random(0), spots={Spot(0, 1): 0.0}, dying=dying)
    found = named(test(fabric, [[Ends(0, 2), Ends(1, 3), Ends(4, 5)]]))
    decided, undecided = (Culprit.RAIL, (Spot(0, 1),)), (Culprit.PAIR, (Spot(0, 1), Spot(2, 1)))
    assert found == {undecided if dying == {1, 3, 4, 5} else decided}


def test_a_suspect_that_dies() -> None:
    fabric = Fabric(4, 1, random.Random(0), spots={Spot(0, 0): 0.0}, dying={0})
    run = test(fabric, [[Ends(0, 2), Ends(1, 3)]])
    assert named(run) == {(Culprit.PAIR, (Spot(0, 0), Spot(2, 0)))}
    assert run.repeated == 2


def test_slow_pairs_without_a_culprit_are_tried_alone() -> None:
    """No host of them is in another trial at the same time, also not with another rail."""
    pairs = [Ends(0, 1), Ends(2, 3), Ends(1, 2)]
    first = [
        Judged(Trial(pair, rail, Reached.DONE, 1.0, 1.0, 1.0), Verdict.SLOW) for pair in pairs for rail in range(2)
    ]
    inquiry, seen = Inquiry(first, {}), list[Again]()
    while wanted := inquiry.next_trials():
        (together,) = batches(wanted)
        hosts = [host for pair, _ in together for host in pair]
        assert len({*hosts}) == len(hosts)
        seen += together
        inquiry.add(Judged(Trial(*again, Reached.DONE, 1.0, 1.0, 1.0), Verdict.OK) for again in wanted)
    assert sorted(seen) == sorted((one.trial.ends, one.trial.rail) for one in first)
    assert {one.causes for one in inquiry.blames()} == {(ONLY_TOGETHER,)}


def test_two_hosts_cannot_decide() -> None:
    chance = random.Random(0)
    fabric = Fabric(2, 2, chance, spots={Spot(1, 1): 0.0})
    run = test(fabric, schedule.full(2))
    assert named(run) == {(Culprit.PAIR, (Spot(0, 1), Spot(1, 1)))}


def test_one_faulty_host_costs_one_repeated_trial() -> None:
    """Not one for each of its partners."""
    fabric = Fabric(16, 1, random.Random(0), spots={Spot(3, 0): 0.5})
    assert test(fabric, schedule.full(16)).repeated == 1


def test_a_path_that_is_slow_only_beside_others() -> None:
    first = [
        Judged(Trial(ends, 0, Reached.DONE, 1.0, 1.0, 1.0), Verdict.SLOW if ends == (0, 1) else Verdict.OK)
        for ends in (Ends(*pair) for pair in combinations(range(4), 2))
    ]
    inquiry = Inquiry(first, {})
    wanted = inquiry.next_trials()
    assert sorted(pair for pair, _ in wanted) != [Ends(0, 1)]
    while wanted:
        inquiry.add(Judged(Trial(*again, Reached.DONE, 1.0, 1.0, 1.0), Verdict.OK) for again in wanted)
        wanted = inquiry.next_trials()
    (blame,) = inquiry.blames()
    assert (blame.culprit, blame.causes) == (Culprit.PATH, (ONLY_TOGETHER,))


@pytest.mark.parametrize(
    ("trial", "verdict", "why"),
    [
        (Trial(Ends(0, 1), 0, Reached.DONE, 99, 99, 2), Verdict.OK, ""),
        (Trial(Ends(0, 1), 0, Reached.DONE, 92, 99, 2), Verdict.SLOW, "forth 92 Gb/s, at least 92.07 expected"),
        (Trial(Ends(0, 1), 0, Reached.DONE, 99, 80, 2), Verdict.SLOW, "back 80 Gb/s"),
        (Trial(Ends(0, 1), 0, Reached.DONE, 99, 99, 5), Verdict.SLOW, "latency 5 us, at most 4.2 expected"),
        (Trial(Ends(0, 1), 0, Reached.STALLED, detail="10 s"), Verdict.SLOW, "10 s"),
        (Trial(Ends(0, 1), 0, Reached.BROKEN, detail="retries"), Verdict.CUT, "retries"),
        (Trial(Ends(0, 1), 0, Reached.UNREACHED, detail="no answer"), Verdict.CUT, "no answer"),
        (Trial(Ends(0, 1), 0, Reached.NOT_RUN, detail="no GID"), Verdict.NOT_RUN, "no GID"),
    ],
)
def test_limits(trial: Trial, verdict: Verdict, why: str) -> None:
    others = [Trial(Ends(2, 3), rail, Reached.DONE, 99, 99, 2) for rail in range(3)]
    judged = judge(trial, yardstick([trial, *others], rates(100.0)), rates(100.0), LIMITS)
    assert (judged.verdict, judged.why.startswith(why)) == (verdict, True), judged.why


def rates(rate: float) -> Rates:
    return Rates({Spot(host, rail): rate for host in range(4) for rail in range(3)})


def test_a_port_below_its_rate() -> None:
    """All are equally slow, so only the absolute limit shows it; without a rate nothing does."""
    trials = [Trial(Ends(0, 1), rail, Reached.DONE, 50, 50, 2) for rail in range(3)]
    for known, verdict in ((rates(100.0), Verdict.SLOW), (rates(0.0), Verdict.OK)):
        judged = [judge(one, yardstick(trials, known), known, LIMITS) for one in trials]
        assert {one.verdict for one in judged} == {verdict}


def test_rails_of_different_rates() -> None:
    known = Rates({Spot(host, rail): (400.0, 200.0, 200.0)[rail] for host in range(2) for rail in range(3)})
    trials = [Trial(Ends(0, 1), rail, Reached.DONE, speed, speed, 2) for rail, speed in enumerate((390, 195, 195))]
    assert {judge(one, yardstick(trials, known), known, LIMITS).verdict for one in trials} == {Verdict.OK}


def isolated(reached: Reached, verdicts: Iterable[Verdict]) -> Verdict:
    trial = Trial(Ends(0, 1), 0, reached, to_rail=1)
    judged = [Judged(Trial(Ends(0, 1), rail, Reached.DONE), verdict) for rail, verdict in enumerate(verdicts)]
    return judge_isolation(trial, judged).verdict


@pytest.mark.parametrize("reached", Reached)
def test_isolation_passes_only_if_the_rails_work(reached: Reached) -> None:
    works = isolated(reached, (Verdict.OK, Verdict.SLOW))
    unknown = {isolated(reached, (Verdict.OK, one)) for one in (Verdict.CUT, Verdict.NOT_RUN)}
    match reached:
        case Reached.UNREACHED:
            assert (works, unknown) == (Verdict.OK, {Verdict.NOT_RUN})
        case Reached.NOT_RUN:
            assert (works, unknown) == (Verdict.NOT_RUN, {Verdict.NOT_RUN})
        case _:
            assert (works, unknown) == (Verdict.LEAKS, {Verdict.LEAKS})
