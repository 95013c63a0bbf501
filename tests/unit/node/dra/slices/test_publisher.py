"""When hpn node publishes slices: at changes, after registrations, at intervals, and again after failures."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.node_loop import turn
from support.publishing import MOST, Publishing

from hardware.model import Device, Kind
from hardware.neighbors import Neighbor
from node.dra.slices import publisher
from node.dra.slices.publisher import Publisher
from node.dra.slices.view import Report, View
from node.kubelet.allocations import Allocations, Name
from node.log import Topics
from node.model import Offer, Resource, Sharing, Unit

VF = Resource("example.com", "vf", Sharing.EXCLUSIVE, (), kind="vf", by_dra=True)
DEVICES = tuple(Device(f"0000:3b:00.{n}", Kind.VF, driver="mlx5_core", pf="0000:3b:00.0") for n in (2, 3))
HELD = frozenset({(VF.full_name, DEVICES[0].id)})
KEYS = [(VF.full_name, one.id) for one in DEVICES]


def offer(*devices: Device) -> tuple[Offer, ...]:
    return (Offer(VF, tuple(Unit(one.id, (one,)) for one in devices)),)


class Node(Publishing):
    """hpn node's part.  Each round leaves a file with what it was to publish, and ends with ``report``; one that
    ``lasts`` first waits for the file "go"."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.topics, self.allocations = folder, Topics(), Allocations()
        self.report = Report(frozenset())
        self.freed, self.lasts = 0, False
        (folder / "plugins_registry").mkdir(exist_ok=True)
        self.publisher = self.made()

    def made(self) -> Publisher:
        view = View(self.folder, "/kubeconfig")
        made = Publisher(self.loop, self.topics, view, self.allocations, self._free)
        made._round = self._round  # type: ignore[method-assign]
        return made

    def offer(
        self,
        *devices: Device,
        unhealthy: Mapping[Name, str] | None = None,
        neighbors: Mapping[str, Neighbor] | None = None,
    ) -> None:
        self.publisher.offer(offer(*devices), unhealthy or {}, neighbors or {})

    def _free(self) -> None:
        self.freed += 1

    def _round(self, view: View) -> Report:
        ids = [unit.id for one in view.offers for unit in one.units]
        state = {
            "ids": ids,
            "look": view.is_look,
            "allocated": sorted(view.allocated),
            "sick": [*view.unhealthy.values()],
            "same": view.is_same and sorted(view.known),
            "known": sorted(view.known),
            "leaves": view.leaves,
        }
        while self.lasts and not (self.folder / "go").exists():
            time.sleep(0.01)  # time: the pace of a loop that the test ends
        file = self.folder / f"new-{os.getpid()}"
        file.write_text(json.dumps(state))
        file.rename(self.folder / f"round-{time.monotonic_ns()}")
        return self.report

    @property
    def rounds(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("round-*"))]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(publisher, "REST", 0.01)
    with Node(tmp_path).closing() as one:
        yield one


def test_at_changes_only(node: Node) -> None:
    node.offer(*DEVICES)
    node.after(1)
    assert node.rounds[0] == {
        "ids": [one.id for one in DEVICES],
        "look": False,
        "allocated": [],
        "sick": [],
        "same": False,
        "known": [],
        "leaves": False,
    }
    # A pod gets one: nothing of the slices changes.
    node.offer(replace(DEVICES[0], netdevs=(), used="x"), DEVICES[1])
    turn(node.loop, 0.1)
    assert len(node.rounds) == 1
    node.offer(*DEVICES, unhealthy={KEYS[0]: "gone"})
    node.after(2)
    node.offer(DEVICES[0])
    node.after(3)
    assert [one["sick"] for one in node.rounds] == [[], ["gone"], []]
    assert [one["leaves"] for one in node.rounds] == [False, False, True]
    assert node.rounds[2]["ids"] == [DEVICES[0].id]


def test_the_port_of_a_switch(node: Node) -> None:
    """Another port is a change; the same one again is none."""
    there = {DEVICES[0].pf: Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1")}
    node.offer(*DEVICES, neighbors=there)
    node.after(1)
    node.offer(*DEVICES, neighbors=dict(there))
    turn(node.loop, 0.1)
    assert len(node.rounds) == 1
    node.offer(*DEVICES)
    node.after(2)


def test_whether_the_offers_are_those_of_the_last_round(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a round compares only versions.  A round that failed, or left devices out, begins anew; and a look that
    published nothing does not count."""
    monkeypatch.setattr(publisher, "REGISTERED", 0)
    monkeypatch.setattr(publisher, "AGAIN", 0.01)
    node.report = replace(node.report, known={"a": ("7", b"")})
    node.offer(*DEVICES)
    node.after(1)
    node.publisher.registered()
    node.after(2)
    assert [one["same"] for one in node.rounds] == [False, ["a"]]
    node.offer(DEVICES[0])
    node.after(3)
    node.report = replace(node.report, notes=("left out",))
    node.publisher.registered()
    node.after(4)
    node.publisher.registered()
    node.after(5)
    node.report = Report(frozenset(), "away")
    node.publisher.registered()
    node.after(7)
    assert [one["same"] for one in node.rounds[2:7]] == [False, ["a"], False, False, False]


def test_a_look_between_a_change_and_its_round(node: Node) -> None:
    node.offer(*DEVICES)
    node.after(1)
    node.report = Report(frozenset(), is_look=True)
    node.publisher._view = replace(node.publisher._view, is_same=False)
    node.publisher._start(is_look=True)
    node.after(2)
    node.publisher.registered()
    node.after(3)
    assert [one["same"] for one in node.rounds[:3]] == [False, False, False]


def test_an_allocation_beside_a_round(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that has begun before does not know of it, and kubelet may not list it yet."""
    node.allocations.granted = node.publisher.granted
    node.lasts = True
    node.offer(*DEVICES)
    node.until(lambda: node.publisher._background.is_at_work)
    monkeypatch.setattr(publisher, "REST", MOST)
    node.allocations.note(VF.full_name, [DEVICES[0].id])
    (node.folder / "go").touch()
    node.after(1)
    assert [node.publisher.is_cleared(key) for key in KEYS] == [False, True]


def test_at_intervals(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "EVERY", 0.02)
    node.offer(*DEVICES)
    node.after(3)
    node.publisher.offer((), {}, {})
    node.until(lambda: bool(node.rounds) and node.rounds[-1]["ids"] == [])
    node.until(lambda: not node.publisher._background.is_at_work)
    number = len(node.rounds)
    turn(node.loop, 0.2)
    assert len(node.rounds) == number  # nothing is offered, so nothing can be lost


def test_after_a_registration(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet removes all slices when it starts, in the background, perhaps after the driver has registered."""
    monkeypatch.setattr(publisher, "OFTEN", 0.01)
    node.offer(*DEVICES)
    node.after(1)
    node.publisher.registered()
    node.after(5)
    assert not any(one["look"] for one in node.rounds)
    monkeypatch.setattr(publisher, "REGISTERED", 0)
    node.publisher.registered()
    number = len(node.rounds)
    turn(node.loop, 0.3)
    assert len(node.rounds) <= number + 2  # one that ran, and that of the registration


def test_after_a_cold_start_of_the_cluster(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet's last attempt comes long after the API server, and after the first round that succeeds."""
    for name in ("OFTEN", "AGAIN", "LONGEST"):
        monkeypatch.setattr(publisher, name, 0.01)
    node.report = Report(frozenset(), "the API server is away")
    node.offer(*DEVICES)
    node.publisher.registered()
    node.after(3)
    node.report = Report(frozenset())
    node.until(lambda: "dra" not in node.topics.problems)
    number = len(node.rounds)
    node.after(number + 3)


def test_the_pauses_of_failures(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """They double, also after a registration, and with looks between, which do not ask the API server.  Each kubelet
    that starts begins anew, because its removal of slices does."""
    pauses, away = list[float](), Report(HELD, "the API server is away")
    monkeypatch.setattr(node.publisher._background, "after", pauses.append)
    for _ in range(2):
        for _ in range(8):
            node.publisher._take(away)
            node.publisher._take(Report(HELD, is_look=True))
        node.publisher.registered()
    wanted = [*(min(publisher.AGAIN * 2**n, publisher.LONGEST) for n in range(8)), publisher.REST] * 2
    assert pauses != wanted  # they are random
    assert all(abs(got - one) <= one * publisher.JITTER for got, one in zip(pauses, wanted, strict=True))


def test_the_nodes_name(node: Node) -> None:
    """The first health that kubelet gets lists no device, because they have the node's name."""
    node.report = Report(frozenset(), node="node1")
    node.offer(*DEVICES)
    node.until(lambda: node.freed == 1 and node.publisher.node == "node1")


def test_failures(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "AGAIN", 0.01)
    node.report = Report(frozenset(), "the API server is away")
    node.offer(*DEVICES)
    node.after(3)
    assert "dra" in node.topics.problems
    assert node.publisher.published == {one.id for one in DEVICES}
    node.report = Report(frozenset(), notes=("a remark",))
    node.until(lambda: "dra" not in node.topics.problems)


def test_a_restored_api_server(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that it had before the restore is one that it cannot wait for, so a failed round's are not named
    again."""
    monkeypatch.setattr(publisher, "AGAIN", 0.01)
    node.report = replace(node.report, known={"a": ("900000", b"")})
    node.offer(*DEVICES)
    node.after(1)
    node.report = Report(frozenset(), "gives no answer: Too large resource version: 900000, current: 5000")
    node.offer(DEVICES[0])
    node.after(3)
    assert [one["known"] for one in node.rounds[:3]] == [[], ["a"], []]


def test_slices_of_another_program(node: Node) -> None:
    """They are a problem that disturbs nothing else."""
    node.report = Report(frozenset(), strangers=("a stranger",))
    node.offer(*DEVICES)
    node.until(lambda: "dra" in node.topics.problems)
    node.report = Report(frozenset())
    node.publisher.registered()
    node.until(lambda: "dra" not in node.topics.problems)


def test_a_killed_round(node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "AGAIN", 0.01)
    monkeypatch.setattr(node, "_round", lambda _: os._exit(9))
    node.publisher = node.made()
    node.offer(*DEVICES)
    node.until(lambda: "dra" in node.topics.problems)
    assert "cannot be brought up to date: the process of the round ended with status 9" in capsys.readouterr().err


def test_what_pods_have_from_the_plugin(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for often; nothing of it is given to a claim before it is free."""
    monkeypatch.setattr(publisher, "HELD", 0.01)
    node.allocations.note(*KEYS[0][:1], [KEYS[0][1]])
    node.report = Report(HELD)
    node.offer(*DEVICES)
    node.after(1)
    assert node.rounds[0]["allocated"] == [list(KEYS[0])]
    node.until(lambda: node.publisher.is_cleared(KEYS[1]))
    assert not node.publisher.is_cleared(KEYS[0])
    node.after(3)
    assert [one["look"] for one in node.rounds[:3]] == [False, True, True]
    node.report = Report(frozenset())
    node.until(lambda: node.publisher.is_cleared(KEYS[0]))
    number = len(node.rounds)
    turn(node.loop, 0.2)
    assert len(node.rounds) <= number + 1
    # kubelet lists a pod again: it had not named its pods yet, or another plugin has given the device.
    node.report = Report(HELD)
    node.publisher.registered()
    node.until(lambda: not node.publisher.is_cleared(KEYS[0]))


def test_another_plugins_resource(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that ask the API server, and change nothing, become rare: that may last for days, on all nodes."""
    monkeypatch.setattr(publisher, "HELD", 0.01)
    node.report = Report(HELD)

    def pause() -> float:
        return node.publisher._look.when() - node.loop.time() if node.publisher._look else 0

    node.offer(*DEVICES)
    node.until(lambda: pause() > 0.3)
    node.report = Report(frozenset(KEYS[1:]))
    node.until(lambda: 0 < pause() < 0.02)


def test_without_kubelets_answer_nothing_is_cleared(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "AGAIN", 0.01)
    node.report = Report(None, "kubelet does not answer")
    node.offer(*DEVICES)
    node.after(2)
    assert not node.publisher.is_cleared(KEYS[0])
    node.report = Report(frozenset())
    node.until(lambda: node.publisher.is_cleared(KEYS[0]))
    # A device that left the file may get back to the plugin meanwhile.
    node.offer(DEVICES[1])
    assert not node.publisher.is_cleared(KEYS[0])


def test_devices_in_slices_outlive_a_restart(node: Node) -> None:
    """The plugin must not offer them while their slices may be there, also if the file has changed meanwhile."""
    node.offer(*DEVICES)
    node.after(1)
    node.until(lambda: node.publisher.published == {one.id for one in DEVICES})
    freed = node.freed
    node.publisher.close()
    node.publisher = node.made()
    assert node.publisher.published == {one.id for one in DEVICES}
    node.publisher.offer((), {}, {})
    node.until(lambda: not node.publisher.published)
    assert node.freed > freed
    assert not (node.folder / "plugins_registry" / publisher.FILE).exists()
    node.publisher.close()
    (node.folder / "plugins_registry" / publisher.FILE).write_text("{")
    assert node.made().published == set()


def test_nothing_is_published_that_cannot_be_noted(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.folder / "plugins_registry").rmdir()
    node.offer(*DEVICES)
    node.until(lambda: "dra" in node.topics.problems)
    assert "ResourceSlices stay as they are: " in capsys.readouterr().err
    assert node.rounds == []


@pytest.fixture
def barred(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """After a restart without a resource by DRA and without a credential, and with devices in slices."""
    monkeypatch.setattr(publisher, "AGAIN", 0.01)
    monkeypatch.setattr(publisher, "WIPED", 0.1)
    node.offer(*DEVICES)
    node.after(1)
    node.publisher.close()
    node.publisher, node.freed = node.made(), 0
    node.report = Report(frozenset(), "no credential", is_barred=True)
    return node


def test_kubelet_removes_slices_that_no_credential_may_remove(
    barred: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the pods with claims end, for which kubelet needs the driver."""
    node, needed = barred, [["claim default/a"], ["claim default/a"], []]
    asked = list[int]()

    def leave() -> list[str]:
        asked.append(1)
        return needed.pop(0)

    monkeypatch.setattr(publisher, "OFTEN", 0.05)
    node.publisher.hosted(leave)
    node.publisher.registered()
    node.publisher.offer((), {}, {})
    node.until(lambda: not needed)
    assert node.publisher.published == {one.id for one in DEVICES}
    assert "dra" in node.topics.problems
    node.until(lambda: not node.publisher.published)
    assert (node.freed, "dra" in node.topics.problems) == (1, False)
    assert not (node.folder / "plugins_registry" / publisher.FILE).exists()
    said = capsys.readouterr().err.splitlines()
    assert "hpn node: no credential; kubelet removes them after these have ended: claim default/a" in said
    assert [line for line in said if line.startswith("hpn node: no credential; the driver leaves kubelet, which ")]
    rounds = len(node.rounds)
    turn(node.loop, 0.2)
    assert (len(node.rounds), len(asked)) == (rounds, 3)


def test_a_driver_that_returns_before_kubelet_has_removed_its_slices(barred: Node) -> None:
    node, left = barred, list[int]()
    node.publisher.hosted(lambda: left.append(1) or [])  # type: ignore[func-returns-value]
    node.publisher.offer((), {}, {})
    node.until(lambda: bool(left))
    node.report = Report(frozenset())
    node.publisher.hosted(lambda: left.append(1) or [])  # type: ignore[func-returns-value]
    node.offer(*DEVICES)
    turn(node.loop, 0.3)
    assert (node.publisher.published, node.freed, left) == ({one.id for one in DEVICES}, 0, [1])


def test_an_api_server_that_is_away_removes_the_slices_later(barred: Node) -> None:
    node = barred
    node.report = Report(frozenset(), "away")
    node.publisher.hosted(lambda: pytest.fail("kubelet could not remove them either"))
    before = len(node.rounds)
    node.publisher.offer((), {}, {})
    node.after(before + 3)
    assert node.publisher.published
    node.report = Report(frozenset())
    node.until(lambda: not node.publisher.published)
