"""The result of a fabric test: causes, table, JSON document, page."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ctl.fabric.causes import Facts, causes
from ctl.fabric.document import Result, document, parts
from ctl.fabric.model import (
    Blame,
    Culprit,
    Ends,
    FabricRail,
    Judged,
    Limits,
    Participant,
    Reached,
    Spot,
    Trial,
    Verdict,
)
from ctl.fabric.page import page
from ctl.fabric.perftest import Settings
from ctl.screen import text

RAIL = FabricRail(
    "mlx5_0", 1, "rail0", "10.0.0.1", 3, "Ethernet", "ACTIVE", 9000, 4096, 400.0, "400 Gb/sec (4X NDR)",
    "32.0 GT/s PCIe x16", "32.0 GT/s PCIe x16", 106, {"out_of_sequence": 5},
)  # fmt: skip
BAD = Spot(1, 0)


def facts(**changes: object) -> Facts:
    """Four hosts, of which the rail of the second has these changes."""
    hosts = [Participant(f"node{number}", (RAIL,)) for number in range(4)]
    hosts[1] = replace(hosts[1], rails=(replace(RAIL, **changes),))  # type: ignore[arg-type]
    return Facts(hosts, dict(enumerate(hosts)))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, ""),
        ({"state": "DOWN"}, "the port of mlx5_0 is DOWN, not ACTIVE"),
        ({"gid": -1}, "mlx5_0 has no RoCE v2 GID of 10.0.0.1"),
        ({"pcie": "32.0 GT/s PCIe x8"}, "mlx5_0 has 32.0 GT/s PCIe x8 to the host, and supports 32.0 GT/s PCIe x16"),
        ({"pcie": ""}, ""),  # as a VF, whose present link is unknown
        ({"pcie_most": ""}, ""),
        ({"mtu": 1500}, "its MTU is 1500; the others have 9000"),
        ({"lanes": "200 Gb/sec (2X NDR)"}, "its rate is 200 Gb/sec (2X NDR); the others have 400 Gb/sec (4X NDR)"),
        ({"traffic_class": 0}, "its traffic class is 0; the others have 106"),
        ({"traffic_class": -1, "mtu": 0, "lanes": ""}, ""),  # unknown is not different
    ],
)
def test_causes(changes: dict[str, object], cause: str) -> None:
    assert causes(Blame(Culprit.RAIL, (BAD,), Verdict.SLOW), facts(**changes)) == ((cause,) if cause else ())


def test_a_good_rail_among_others_that_differ() -> None:
    """The others differ among themselves, so none is usual."""
    hosts = [Participant(f"node{mtu}", (replace(RAIL, mtu=mtu),)) for mtu in (9000, 1500, 4200, 2000)]
    assert causes(Blame(Culprit.RAIL, (BAD,), Verdict.SLOW), Facts(hosts, {})) == ()


def test_memlock_errors_and_remarks() -> None:
    before = facts().before
    low = [replace(one, memlock=65536) if number == 1 else one for number, one in enumerate(before)]
    after = {1: replace(low[1], rails=(replace(RAIL, errors={"out_of_sequence": 12}),))}
    trial = Trial(Ends(0, 1), 0, Reached.DONE, remarks=("perftest used the MTU 1024",))
    blame = Blame(Culprit.RAIL, (BAD,), Verdict.SLOW, (Judged(trial, Verdict.SLOW),))
    assert causes(blame, Facts(low, after)) == (
        "the limit of locked memory is 65536 bytes; raise it (ulimit -l), or give CAP_IPC_LOCK",
        "errors of mlx5_0 meanwhile: out_of_sequence +7",
        "perftest used the MTU 1024",
    )


def result(name: str = "node0", *, blamed: bool = True) -> Result:
    hosts = [Participant(name, (RAIL,)), Participant("node1", (RAIL,)), Participant("node2", (RAIL,))]
    trials = [
        Judged(Trial(Ends(0, 1), 0, Reached.DONE, 390.0, 391.0, 1.9), Verdict.OK),
        Judged(Trial(Ends(0, 2), 0, Reached.DONE, 98.0, 391.0, 2.0), Verdict.SLOW, "forth 98 Gb/s"),
        Judged(Trial(Ends(1, 2), 0, Reached.NOT_RUN), Verdict.NOT_RUN, "no GID"),
    ]
    blames = [Blame(Culprit.RAIL, (Spot(0, 0),), Verdict.SLOW, (trials[1],))] if blamed else []
    found = Facts(hosts, {})
    return Result(found, Limits(), Settings(), trials, [], [], blames, 12.5, "2026-11-30T12:00:00+0000")


def test_the_document() -> None:
    body = json.loads(json.dumps(document(result())))
    assert set(body) == {
        "version", "time", "seconds", "status", "limits", "settings", "hosts", "counts", "findings", "trials",
        "repeated", "isolation",
    }  # fmt: skip
    assert (body["version"], body["status"], body["counts"]) == (1, 1, {"ok": 1, "slow": 1, "not run": 1})
    assert body["findings"] == [
        {"culprit": "rail", "verdict": "slow", "places": [{"host": "node0", "rail": 0}], "why": "forth 98 Gb/s",
         "causes": [], "trials": 1}
    ]  # fmt: skip
    assert body["trials"][2] == {
        "round": 0, "hosts": ["node1", "node2"], "rails": [0, 0], "verdict": "not run", "why": "no GID", "forth": None,
        "back": None, "latency": None, "remarks": [],
    }  # fmt: skip
    assert document(result(blamed=False))["status"] == 2


def test_the_text() -> None:
    lines = text(parts(result())).splitlines()
    assert lines[1].split() == ["0", "3", "1", "1", "0", "1", "98", "391", "391", "1.9", "2"]
    assert "slow: rail 0 of node0 (rail0, mlx5_0): the rail itself: bad with two partners" in lines
    assert "not run: no GID (1 trials)" in lines


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags = set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags |= {tag, *(name for name, _ in attrs)}


def test_a_host_with_a_hostile_name() -> None:
    """Names come from other hosts: the page runs and loads nothing, and the terminal obeys nothing."""
    found = result('<script src="http://x/">"\x1b[31m')
    seen = Tags()
    seen.feed(page(document(found)))
    assert seen.tags.isdisjoint({"script", "src", "href", "onload", "img", "link"})
    assert "\x1b" not in page(document(found)) + text(parts(found))


def test_a_map_for_each_rail() -> None:
    made = page(document(result()))
    assert made.count("<h2>Rail 0: ") == 1
    assert made.count("<td class=none>") == 3  # a host with itself
    assert 'class="slow"' in made
    assert 'class="not"' in made
