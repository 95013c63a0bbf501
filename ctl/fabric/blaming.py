"""The culprit of bad trials: a host's rail, or the path between two.  Pure.

A bad trial names two rails and a path, and only one of them is at fault.  So its ends are tried again, each with a
partner that was good.  A rail that is bad with two partners is at fault.  If its ends are bad only together, the path
between them is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ctl.fabric.model import BAD, Blame, Culprit, Ends, Judged, Spot, Verdict
from ctl.fabric.schedule import ends

ONLY_TOGETHER: Final = "good when no other rail of its hosts sends"

# A trial to repeat: two hosts, and the rail.
Again = tuple[Ends, int]


class Evidence:
    """All trials so far of rails of the same number; a repeated trial counts beside the first one."""

    def __init__(self, judged: Iterable[Judged]) -> None:
        self._good, self._bad = set[Spot](), dict[Spot, dict[int, Judged]]()
        for one in judged:
            if one.verdict is Verdict.OK:
                self._good |= {*one.trial.spots}
            if one.verdict in BAD:
                for spot in one.trial.spots:
                    self._bad.setdefault(spot, {})[one.trial.ends.partner(spot.host)] = one

    def is_good(self, spot: Spot) -> bool:
        """Whether it was good with any partner."""
        return spot in self._good

    def bad_with(self, spot: Spot) -> Mapping[int, Judged]:
        """The hosts with which this rail was bad, and the latest such trial with each."""
        return self._bad.get(spot, {})

    def partners(self, spot: Spot) -> list[int]:
        """The hosts to try this rail with: good ones, and not the only one with which it was bad.  Those with which it
        was not bad come first, and of them those with the fewest bad trials."""
        bad = self.bad_with(spot)
        found = [one.host for one in self._good if one.rail == spot.rail and one.host != spot.host]
        return sorted(
            (host for host in found if host not in bad or len(bad) > 1),
            key=lambda host: (host in bad, len(self.bad_with(Spot(host, spot.rail))), host),
        )


class Inquiry:
    """The search for the culprits.  Run ``next_trials``, give their verdicts to ``add``, until there are none.

    ``lost`` has the hosts that cannot be tried any more; it may grow meanwhile.
    """

    def __init__(self, first: Sequence[Judged], lost: Mapping[int, str]) -> None:
        self._first, self._again, self._lost = first, list[Judged](), lost
        self._bad = [one for one in first if one.verdict in BAD]
        self._tried = set[Spot]()
        self._alone: list[Again] | None = None

    def next_trials(self) -> list[Again]:
        """The trials that decide more: first those of suspects, then each slow pair without a culprit, alone at its
        hosts."""
        while spots := self._suspects():
            self._tried |= {*spots}
            if trials := self._of_suspects(spots):
                return trials
        if self._alone is None:
            slow = [one.trial for one in self._unexplained() if one.verdict is Verdict.SLOW]
            self._alone = [(one.ends, one.rail) for one in slow]
        now, self._alone = _parted(self._alone, rails_together=False)
        return now

    def add(self, judged: Iterable[Judged]) -> None:
        """Take the verdicts of ``next_trials``.  A partner that was lost has decided nothing, so another one may."""
        for one in judged:
            self._again.append(one)
            if one.verdict is Verdict.NOT_RUN and not self._lost.keys().isdisjoint(one.trial.ends):
                self._tried.difference_update(one.trial.spots)

    def blames(self) -> list[Blame]:
        """The findings: each convicted rail, then each bad trial that none of them explains."""
        evidence, found = self._evidence(), list[Blame]()
        for spot in sorted(self._convicted()):
            bad = evidence.bad_with(spot).values()
            judged = tuple(sorted(bad, key=lambda one: one not in self._again))  # those with a good partner first
            found.append(Blame(Culprit.RAIL, (spot,), _worst(judged), judged))
        return found + [self._of_pair(one) for one in self._unexplained()]

    def _evidence(self) -> Evidence:
        return Evidence([*self._first, *self._again])

    def _suspects(self) -> list[Spot]:
        """The rails to try again: of each unexplained bad trial the end with more of them.  Both, if they are equal or
        that end was tried already."""
        counts = Counter(spot for one in self._bad for spot in one.trial.spots)
        found = dict[Spot, None]()
        for one in self._unexplained():
            a, b = sorted(one.trial.spots, key=lambda spot: -counts[spot])
            found |= dict.fromkeys((a,) if counts[a] > counts[b] and a not in self._tried else (a, b))
        return [spot for spot in found if spot not in self._tried]

    def _of_suspects(self, spots: Iterable[Spot]) -> list[Again]:
        """A trial for each suspect that has a good partner, spread over the partners."""
        evidence, busy, found = self._evidence(), Counter[int](), dict[Again, None]()
        for spot in (one for one in spots if one.host not in self._lost):
            if partners := [host for host in evidence.partners(spot) if host not in self._lost]:
                bad = evidence.bad_with(spot)
                fresh = [host for host in partners if host not in bad] or partners
                partner = min(fresh, key=lambda host: busy[host])
                busy[partner] += 1
                found[ends(spot.host, partner), spot.rail] = None
        return list(found)

    def _convicted(self) -> set[Spot]:
        """The rails that were bad with two partners, once more with a good one, and never good again."""
        evidence, bad, acquitted = self._evidence(), set[Spot](), set[Spot]()
        for one in self._again:
            for spot in one.trial.spots:
                partner = Spot(one.trial.ends.partner(spot.host), spot.rail)
                if one.verdict is Verdict.OK:
                    acquitted.add(spot)
                elif one.verdict in BAD and evidence.is_good(partner) and len(evidence.bad_with(spot)) > 1:
                    bad.add(spot)
        return bad - acquitted

    def _unexplained(self) -> list[Judged]:
        convicted = self._convicted()
        return [one for one in self._bad if convicted.isdisjoint(one.trial.spots)]

    def _of_pair(self, one: Judged) -> Blame:
        """The finding of a bad trial whose rails were not convicted: the path, if both were good with others."""
        again = [more for more in self._again if more.trial.ends != one.trial.ends]
        acquitted = {spot for more in again if more.verdict is Verdict.OK for spot in more.trial.spots}
        culprit = Culprit.PATH if acquitted.issuperset(one.trial.spots) else Culprit.PAIR
        related = [more for more in self._again if not set(more.trial.spots).isdisjoint(one.trial.spots)]
        alone = [more.verdict for more in related if more.trial.spots == one.trial.spots][-1:]
        causes = (ONLY_TOGETHER,) if one.verdict is Verdict.SLOW and alone == [Verdict.OK] else ()
        return Blame(culprit, one.trial.spots, one.verdict, (one, *related), causes)


def batches(trials: Iterable[Again]) -> Iterator[list[Again]]:
    """Groups in which each host has one partner."""
    rest = list(trials)
    while rest:
        now, rest = _parted(rest, rails_together=True)
        yield now


def _parted(trials: Iterable[Again], *, rails_together: bool) -> tuple[list[Again], list[Again]]:
    """The trials that can run now, and the others.  Each host has one partner, and without ``rails_together`` one rail
    of it."""
    now, later, busy = list[Again](), list[Again](), dict[int, Ends]()
    for one in trials:
        if all(host not in busy or (rails_together and busy[host] == one[0]) for host in one[0]):
            now.append(one)
            busy |= dict.fromkeys(one[0], one[0])
        else:
            later.append(one)
    return now, later


def _worst(judged: Iterable[Judged]) -> Verdict:
    return Verdict.CUT if any(one.verdict is Verdict.CUT for one in judged) else Verdict.SLOW
