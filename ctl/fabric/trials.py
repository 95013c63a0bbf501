"""Run the trials of a round: all pairs and rails of it at once, step by step."""

from collections.abc import Iterable, Mapping, Sequence
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

    @property
    def spots(self) -> tuple[Spot, Spot]:
        return Spot(self.ends.one, self.rail), Spot(self.ends.other, self.to_rail)

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


# A trial, its client and its server.
Part = tuple[Draft, Spot, Spot]


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
        self._step(drafts, Stage.MESSAGE, "message")
        same = [draft for draft in drafts if draft.rail == draft.to_rail]
        self._step(same, Stage.LATENCY, "latency")
        self._step(same, Stage.BANDWIDTH, "forth")
        self._step(same, Stage.BANDWIDTH, "back", is_back=True)
        return [draft.trial(number) for draft in drafts]

    def rail(self, spot: Spot) -> FabricRail | None:
        """The rail as its host reported it; None if the host has none of that number."""
        found = self._fleet.participants[spot.host].rails
        return found[spot.rail] if spot.rail < len(found) else None

    def _exclude(self, draft: Draft) -> None:
        """End a trial that cannot begin."""
        for spot in draft.spots:
            who, rail, where = self._fleet.participants[spot.host], self.rail(spot), self._place(spot)
            if spot.host in self._fleet.lost:
                draft.fail(Reached.NOT_RUN, f"{who.name}: {self._fleet.lost[spot.host]}")
            elif who.trouble:
                draft.fail(Reached.NOT_RUN, f"{who.name}: {who.trouble}")
            elif not rail:
                draft.fail(Reached.NOT_RUN, f"{who.name} has no rail {spot.rail}")
            elif rail.state != "ACTIVE":
                draft.fail(Reached.UNREACHED, f"{where}: its port is {rail.state or 'unknown'}, not ACTIVE")
            elif not rail.address:
                draft.fail(Reached.NOT_RUN, f"{where}: {rail.netdev} has no IPv4 address")
            elif rail.layer == "Ethernet" and rail.gid < 0:
                draft.fail(Reached.NOT_RUN, f"{where}: {rail.device} has no RoCE v2 GID of {rail.address}")
            else:
                continue
            return

    def _place(self, spot: Spot) -> str:
        return f"rail {spot.rail} of {self._fleet.participants[spot.host].name}"

    def _step(self, drafts: Sequence[Draft], stage: Stage, value: str, *, is_back: bool = False) -> None:
        """Run one stage of all trials that came so far.  The first host sends to the other, or with ``is_back`` the
        other way round."""
        active: list[Part] = [
            (draft, *(draft.spots[::-1] if is_back else draft.spots))
            for draft in drafts
            if draft.reached is Reached.DONE
        ]
        served = self._serve(active, stage)
        ready = [part for part in active if part[0].reached is Reached.DONE]
        ran = self._measure(ready, served, stage)
        stopped = self._ran({server.host: {"operation": Operation.STOP} for _, _, server in active}, _MARGIN)
        for draft, client, server in ready:
            result, other = ran.get(client), stopped.get(server)
            if result is None or server.host in self._fleet.lost:
                lost = client.host if client.host in self._fleet.lost else server.host
                name = self._fleet.participants[lost].name
                draft.fail(Reached.NOT_RUN, f"{name}: {self._fleet.lost.get(lost, 'it gave no answer')}")
            else:
                self._conclude(draft, value, (client, result), (server, other))

    def _serve(self, active: Sequence[Part], stage: Stage) -> Mapping[Spot, Served]:
        """Start the servers; fail the trials without one."""
        rails = dict[int, list[int]]()
        for _, _, server in active:
            rails.setdefault(server.host, []).append(server.rail)
        requests = {host: messages.serve(stage, sorted(theirs), self._settings) for host, theirs in rails.items()}
        found = dict[Spot, Served]()
        for host, body in self._fleet.ask(requests, self._settings.patience + _MARGIN).items():
            with self._fleet.losing(host):
                found |= {Spot(host, rail): one for rail, one in messages.served(body).items()}
        for draft, _, server in active:
            if (one := found.get(server)) is None or not one.port:
                why = one.trouble if one else self._fleet.lost.get(server.host, "it started no server")
                draft.fail(Reached.NOT_RUN, f"{self._place(server)}: {why}")
        return found

    def _measure(self, ready: Sequence[Part], served: Mapping[Spot, Served], stage: Stage) -> Mapping[Spot, Ran]:
        targets = dict[int, list[Target]]()
        for _, client, server in ready:
            if there := self.rail(server):
                probe = served[server].probe if stage is Stage.MESSAGE else 0
                target = Target(client.rail, there.address, served[server].port, probe)
                targets.setdefault(client.host, []).append(target)
        requests = {host: messages.measure(stage, found, self._settings) for host, found in targets.items()}
        return self._ran(requests, self._settings.patience + self._settings.seconds + _MARGIN)

    def _ran(self, requests: Mapping[int, dict[str, object]], seconds: float) -> Mapping[Spot, Ran]:
        found = dict[Spot, Ran]()
        for host, body in self._fleet.ask(requests, seconds).items():
            with self._fleet.losing(host):
                found |= {Spot(host, rail): one for rail, one in messages.ran(body).items()}
        return found

    def _conclude(self, draft: Draft, value: str, client: tuple[Spot, Ran], server: tuple[Spot, Ran | None]) -> None:
        """Take over a stage's result.  A server that could not run outweighs the client's complaint about it."""
        spot, result = client
        if result.reached is not Reached.DONE:
            if server[1] and server[1].reached is Reached.NOT_RUN:
                draft.fail(Reached.NOT_RUN, f"{self._place(server[0])}: {server[1].detail}")
            else:
                draft.fail(result.reached, f"from {self._fleet.participants[spot.host].name}: {result.detail}")
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
            where = self._place(spot)
            found += [f"{where}: perftest used {what} {its}, not {ours}" for what, ours, its in compared if ours != its]
            if rail.path_mtu and used.mtu < rail.path_mtu:
                found.append(f"{where}: perftest used the MTU {used.mtu}; its port has {rail.path_mtu}")
        return found
