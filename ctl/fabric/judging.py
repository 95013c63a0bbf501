"""The verdict on each trial, by limits that are relative to other trials, and by absolute ones.  Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Final

from ctl.fabric.model import Judged, Limits, Reached, Spot, Trial, Verdict

_CUT: Final = (Reached.UNREACHED, Reached.BROKEN)


@dataclass(frozen=True)
class Yardstick:
    """What good trials of the run reached, for comparison.

    - ``rounds``: the median share of each round's trials; ``typical``: the median over all spots, of the best share
      that each reached.  A faulty host spoils the trials of its partners, but not their best ones.
    - ``least``: the least latency in microseconds; None without one.
    """

    rounds: Mapping[int, float]
    typical: float
    least: float | None

    def of(self, round_number: int) -> float:
        return max(self.rounds.get(round_number, 0.0), self.typical)


class Rates:
    """The rates of ports in Gb/s.  A bandwidth is compared as its share of the slower port's rate, so that rails of
    different rates are compared fairly.  If a rate is unknown, all are compared as they are."""

    def __init__(self, rates: Mapping[Spot, float]) -> None:
        self._rates, self._known = rates, bool(rates) and all(rates.values())

    def least(self, trial: Trial) -> float:
        """The slower port's rate in Gb/s; 0 if unknown."""
        return min((self._rates.get(spot, 0.0) for spot in trial.spots), default=0.0)

    def unit(self, trial: Trial) -> float:
        return self.least(trial) if self._known else 1.0


def yardstick(trials: Iterable[Trial], rates: Rates) -> Yardstick:
    """The comparison for trials of rails of the same number."""
    rounds, best, latencies = dict[int, list[float]](), dict[Spot, float](), list[float]()
    for trial in trials:
        if trial.latency is not None:
            latencies.append(trial.latency)
        if trial.bandwidth is not None:
            share = trial.bandwidth / rates.unit(trial)
            rounds.setdefault(trial.round, []).append(share)
            for spot in trial.spots:
                best[spot] = max(share, best.get(spot, 0.0))
    return Yardstick(
        {number: median_high(shares) for number, shares in rounds.items()},
        median_high(best.values()) if best else 0.0,
        min(latencies, default=None),
    )


def judge(trial: Trial, measure: Yardstick, rates: Rates, limits: Limits) -> Judged:
    """The verdict on a trial of rails of the same number."""
    if trial.reached is Reached.NOT_RUN:
        return Judged(trial, Verdict.NOT_RUN, trial.detail)
    if trial.reached in _CUT:
        return Judged(trial, Verdict.CUT, trial.detail)
    if trial.reached is Reached.STALLED:
        return Judged(trial, Verdict.SLOW, trial.detail)
    if reasons := [*_too_slow(trial, measure, rates, limits), *_too_late(trial, measure, limits)]:
        return Judged(trial, Verdict.SLOW, "; ".join(reasons))
    return Judged(trial, Verdict.OK)


def _too_slow(trial: Trial, measure: Yardstick, rates: Rates, limits: Limits) -> Iterator[str]:
    relative = limits.of_median * measure.of(trial.round) * rates.unit(trial)
    absolute = limits.of_rate * rates.least(trial)
    least = max(relative, absolute)
    what = f"{limits.of_rate:g} of the port's rate" if absolute >= relative else f"{limits.of_median:g} of the median"
    for word, found in (("forth", trial.forth), ("back", trial.back)):
        if found is not None and found < least:
            yield f"{word} {found:.4g} Gb/s, at least {least:.4g} expected ({what})"


def _too_late(trial: Trial, measure: Yardstick, limits: Limits) -> Iterator[str]:
    if trial.latency is None or measure.least is None or not limits.of_least:
        return
    most = limits.of_least * measure.least
    if trial.latency > most:
        yield f"latency {trial.latency:.4g} us, at most {most:.4g} expected ({limits.of_least:g} of the least)"


def judge_isolation(trial: Trial, judged: Sequence[Judged]) -> Judged:
    """The verdict on two rails that must not reach each other.

    They are isolated only if both reached their own kind in this run: else a rail that cannot send at all would pass.
    """
    if trial.reached is Reached.NOT_RUN:
        return Judged(trial, Verdict.NOT_RUN, trial.detail)
    if trial.reached is not Reached.UNREACHED:
        return Judged(trial, Verdict.LEAKS, trial.detail or "they reached each other")
    passed = {spot for one in judged if one.verdict in (Verdict.OK, Verdict.SLOW) for spot in one.trial.spots}
    if missing := [spot for spot in trial.spots if spot not in passed]:
        return Judged(trial, Verdict.NOT_RUN, f"rail {missing[0].rail} reached no rail of its own number in this run")
    return Judged(trial, Verdict.OK)
