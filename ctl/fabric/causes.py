"""Known causes of a fault: facts of its rails that differ from the others', or that stop RDMA.  Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ctl.fabric.model import Blame, Culprit, FabricRail, Participant, Spot

_MEMLOCK: Final = 64 << 20  # bytes that a test may lock


@dataclass(frozen=True)
class Facts:
    """The participants before the test, and their rails' error counters after it."""

    before: Sequence[Participant]
    after: Mapping[int, Participant]

    def rail(self, spot: Spot) -> FabricRail | None:
        rails = self.before[spot.host].rails
        return rails[spot.rail] if spot.rail < len(rails) else None

    def peers(self, spot: Spot) -> list[FabricRail]:
        """The rails of that number on the other hosts."""
        spots = (Spot(host, spot.rail) for host in range(len(self.before)) if host != spot.host)
        return [rail for one in spots if (rail := self.rail(one))]


def causes(blame: Blame, facts: Facts) -> tuple[str, ...]:
    """Sentences about the rails of a finding, and what its trials remarked."""
    found = dict.fromkeys(blame.causes)
    for spot in blame.spots:
        rail = facts.rail(spot)
        if rail:
            name = f"{facts.before[spot.host].name}: " if blame.culprit is not Culprit.RAIL else ""
            found |= dict.fromkeys(f"{name}{one}" for one in of_rail(spot, rail, facts))
    for judged in blame.evidence:
        found |= dict.fromkeys(judged.trial.remarks)
    return tuple(found)


def of_rail(spot: Spot, rail: FabricRail, facts: Facts) -> Iterator[str]:
    """What is known to make this rail slow or unreachable."""
    if rail.state != "ACTIVE":
        yield f"the port of {rail.device} is {rail.state or 'unknown'}, not ACTIVE"
    if rail.layer == "Ethernet" and rail.address and rail.gid < 0:
        yield f"{rail.device} has no RoCE v2 GID of {rail.address}"
    if rail.pcie and rail.pcie_most not in ("", rail.pcie):
        yield f"{rail.device} has {rail.pcie} to the host, and supports {rail.pcie_most}"
    yield from _unlike(rail, facts.peers(spot))
    if -1 < facts.before[spot.host].memlock < _MEMLOCK:
        limit = facts.before[spot.host].memlock
        yield f"the limit of locked memory is {limit} bytes; raise it (ulimit -l), or give CAP_IPC_LOCK"
    if grown := growth(spot, rail, facts):
        yield f"errors of {rail.device} meanwhile: {', '.join(f'{name} +{more}' for name, more in grown.items())}"


def growth(spot: Spot, rail: FabricRail, facts: Facts) -> dict[str, int]:
    """The error counters that grew during the test."""
    after = facts.after.get(spot.host)
    if not after or spot.rail >= len(after.rails) or after.rails[spot.rail].device != rail.device:
        return {}
    now = after.rails[spot.rail].errors
    return {name: more for name, old in rail.errors.items() if (more := now.get(name, old) - old) > 0}


def _unlike(rail: FabricRail, peers: Sequence[FabricRail]) -> Iterator[str]:
    """Settings that most other hosts have otherwise on this rail."""
    for what, unknown, ours, theirs in (
        ("MTU", 0, rail.mtu, [one.mtu for one in peers]),
        ("rate", "", rail.lanes, [one.lanes for one in peers]),
        ("traffic class", -1, rail.traffic_class, [one.traffic_class for one in peers]),
    ):
        known = Counter(one for one in theirs if one != unknown)
        if known and ours != unknown:
            usual, count = known.most_common(1)[0]
            if usual != ours and 2 * count > len(theirs):
                yield f"its {what} is {ours}; the others have {usual}"
