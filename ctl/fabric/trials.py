"""Run the trials of a round: all pairs and rails of it at once, step by step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ctl.fabric import messages
from ctl.fabric.fleet import Fleet
from ctl.fabric.messages import Operation, Ran, Served, Target
from ctl.fabric.model import Ends, FabricRail, Reached, Spot, Trial
from ctl.fabric.perftest import Settings, Stage, Used

_MARGIN: Final = 30.0  # seconds that a host may need besides the programs' own time


@dataclass
class Draft:
    """A trial while it runs.  ``to_rail`` is the other host's rail, the same number or another one."""

    ends: Ends
    rail: int
    to_rail: int
    reached: Reached = Reached.DONE
    detail: str = ""
    values: dict[str, float] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)

    def spot(self, host: int) -> Spot:
        return Spot(host, self.rail if host == self.ends.one else self.to_rail)

    def fail(self, reached: Reached, detail: str) -> None:
        self.reached, self.detail = reached, detail

    def trial(self, number: int) -> Trial:
        return Trial(
            self.ends,
            self.rail,
            self.reached,
            forth=self.values.get("forth"),
            back=self.values.get("back"),
            latency=self.values.get("latency"),
            detail=self.detail,
            round=number,
            to_rail=self.to_rail if self.to_rail != self.rail else -1,
            remarks=tuple(self.remarks),
        )


class Trials:
    """The trials of a run over its hosts."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet, self._settings = fleet, settings

    def run(self, number: int, wanted: Iterable[tuple[Ends, int, int]]) -> list[Trial]:
        """Run these trials at once: pairs of hosts, with the rail of each.  A pair of different rails is only tried for
        a connection."""
        drafts = [Draft(*one) for one in wanted]
        for draft in drafts:
            self._exclude(draft)
        self._step(drafts, Stage.MESSAGE, "message", _to_other)
        same = [draft for draft in drafts if draft.rail == draft.to_rail]
        self._step(same, Stage.LATENCY, "latency", _to_other)
        self._step(same, Stage.BANDWIDTH, "forth", _to_other)
        self._step(same, Stage.BANDWIDTH, "back", _to_one)
        return [draft.trial(number) for draft in drafts]

    def rail(self, spot: Spot) -> FabricRail | None:
        """The rail as its host reported it; None if the host has none of that number."""
        found = self._fleet.participants[spot.host].rails
        return found[spot.rail] if spot.rail < len(found) else None

    def _exclude(self, draft: Draft) -> None:
        """End a trial that cannot begin."""
        for host in draft.ends:
            who, rail = self._fleet.participants[host], self.rail(draft.spot(host))
            where = f"rail {draft.spot(host).rail} of {who.name}"
            if host in self._fleet.lost:
                draft.fail(Reached.NOT_RUN, f"{who.name}: {self._fleet.lost[host]}")
            elif who.trouble:
                draft.fail(Reached.NOT_RUN, f"{who.name}: {who.trouble}")
            elif not rail:
                draft.fail(Reached.NOT_RUN, f"{who.name} has no rail {draft.spot(host).rail}")
            elif rail.state != "ACTIVE":
                draft.fail(Reached.UNREACHED, f"{where}: its port is {rail.state or 'unknown'}, not ACTIVE")
            elif not rail.address:
                draft.fail(Reached.NOT_RUN, f"{where}: {rail.netdev} has no IPv4 address")
            elif rail.layer == "Ethernet" and rail.gid < 0:
                draft.fail(Reached.NOT_RUN, f"{where}: {rail.device} has no RoCE v2 GID of {rail.address}")
            else:
                continue
            return

    def _step(
        self, drafts: Sequence[Draft], stage: Stage, value: str, direction: Callable[[Draft], tuple[int, int]]
    ) -> None:
        """Run one stage of all trials that came so far; ``direction`` gives the client's and the server's host."""
        active = [draft for draft in drafts if draft.reached is Reached.DONE]
        if not active:
            return
        sides = {id(draft): direction(draft) for draft in active}
        served = self._serve(active, sides, stage)
        ran = self._measure([draft for draft in active if draft.reached is Reached.DONE], sides, served, stage)
        stopped = self._stop({server for _, server in sides.values()})
        for draft in active:
            if draft.reached is not Reached.DONE:
                continue
            client, server = (draft.spot(host) for host in sides[id(draft)])
            result, other = ran.get(client), stopped.get(server)
            if result is None or server.host in self._fleet.lost:
                lost = client.host if client.host in self._fleet.lost else server.host
                name = self._fleet.participants[lost].name
                draft.fail(Reached.NOT_RUN, f"{name}: {self._fleet.lost.get(lost, 'it gave no answer')}")
            else:
                self._conclude(draft, value, (client, result), (server, other))

    def _serve(
        self, active: Sequence[Draft], sides: Mapping[int, tuple[int, int]], stage: Stage
    ) -> Mapping[Spot, Served]:
        """Start the servers; fail the trials without one."""
        spots = {id(draft): draft.spot(sides[id(draft)][1]) for draft in active}
        requests = {
            host: messages.serve(stage, sorted({spot.rail for spot in found}), self._settings)
            for host in {spot.host for spot in spots.values()}
            for found in [[spot for spot in spots.values() if spot.host == host]]
        }
        found = dict[Spot, Served]()
        for host, body in self._fleet.ask(requests, self._settings.patience + _MARGIN).items():
            with self._fleet.losing(host):
                found |= {Spot(host, rail): one for rail, one in messages.served(body).items()}
        for draft in active:
            spot = spots[id(draft)]
            if (one := found.get(spot)) is None or not one.port:
                why = one.trouble if one else self._fleet.lost.get(spot.host, "it started no server")
                draft.fail(Reached.NOT_RUN, f"rail {spot.rail} of {self._fleet.participants[spot.host].name}: {why}")
        return found

    def _measure(
        self, active: Sequence[Draft], sides: Mapping[int, tuple[int, int]], served: Mapping[Spot, Served], stage: Stage
    ) -> Mapping[Spot, Ran]:
        targets = dict[int, list[Target]]()
        for draft in active:
            client, server = (draft.spot(host) for host in sides[id(draft)])
            there = self.rail(server)
            if there:
                probe = served[server].probe if stage is Stage.MESSAGE else 0
                target = Target(client.rail, there.address, served[server].port, probe)
                targets.setdefault(client.host, []).append(target)
        requests = {host: messages.measure(stage, found, self._settings) for host, found in targets.items()}
        seconds = self._settings.patience + self._settings.seconds + _MARGIN
        return self._ran(requests, seconds)

    def _stop(self, hosts: Iterable[int]) -> Mapping[Spot, Ran]:
        return self._ran({host: {"operation": Operation.STOP} for host in hosts}, _MARGIN)

    def _ran(self, requests: Mapping[int, dict[str, object]], seconds: float) -> Mapping[Spot, Ran]:
        found = dict[Spot, Ran]()
        for host, body in self._fleet.ask(requests, seconds).items():
            with self._fleet.losing(host):
                found |= {Spot(host, rail): one for rail, one in messages.ran(body).items()}
        return found

    def _conclude(self, draft: Draft, value: str, client: tuple[Spot, Ran], server: tuple[Spot, Ran | None]) -> None:
        """Take over a stage's result.  A server that could not run outweighs the client's complaint about it."""
        spot, result = client
        name = self._fleet.participants[spot.host].name
        if result.reached is not Reached.DONE:
            other = server[1]
            if other and other.reached is Reached.NOT_RUN:
                there = self._fleet.participants[server[0].host].name
                draft.fail(Reached.NOT_RUN, f"rail {server[0].rail} of {there}: {other.detail}")
            else:
                draft.fail(result.reached, f"from {name}: {result.detail}")
            return
        if result.value is not None:
            draft.values[value] = result.value
        for place, used in ((spot, result.used), (server[0], server[1].used if server[1] else None)):
            draft.remarks |= dict.fromkeys(self._differences(place, used))

    def _differences(self, spot: Spot, used: Used | None) -> list[str]:
        """What perftest used, if it is not what the host reported."""
        rail, found = self.rail(spot), list[str]()
        if rail and used:
            compared: list[tuple[str, str | int, str | int]] = [("device", rail.device, used.device)]
            compared += [("GID index", rail.gid, used.gid)] if rail.gid >= 0 else []
            where = f"rail {spot.rail} of {self._fleet.participants[spot.host].name}"
            found += [f"{where}: perftest used {what} {its}, not {ours}" for what, ours, its in compared if ours != its]
            if rail.path_mtu and used.mtu < rail.path_mtu:
                found.append(f"{where}: perftest used the MTU {used.mtu}; its port has {rail.path_mtu}")
        return found


def _to_other(draft: Draft) -> tuple[int, int]:
    """The client's host and the server's: the first sends to the other."""
    return draft.ends.one, draft.ends.other


def _to_one(draft: Draft) -> tuple[int, int]:
    return draft.ends.other, draft.ends.one
