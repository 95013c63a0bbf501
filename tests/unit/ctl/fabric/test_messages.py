"""The messages of hpn fabric: what is written is read again, and nothing else is."""

import json
import random
from dataclasses import asdict
from typing import Any

import pytest

from base.protocol.errors import DecodeFailure
from ctl.fabric import messages
from ctl.fabric.messages import Ran, Served, Target
from ctl.fabric.model import FabricRail, Participant, Reached
from ctl.fabric.perftest import Settings, Stage, Used

RAIL = FabricRail("mlx5_0", 1, "rail0", "10.0.0.1", 3, "Ethernet", "ACTIVE", 9000, 4096, 400.0, errors={"send_err": 1})
WHO = Participant("node1", (RAIL, FabricRail("mlx5_1", 1, "rail1")), 65536)


def sent(body: Any) -> Any:
    return json.loads(json.dumps(body))


def test_there_and_back() -> None:
    assert messages.participant(sent(messages.hello(WHO))) == WHO
    chosen = Settings(3, 2, 10, 18, 106, 0)
    request = sent(messages.serve(Stage.LATENCY, [1, 0], chosen))
    assert (messages.rails(request, 2), messages.settings(request)) == ([1, 0], chosen)
    targets = [Target(0, "10.0.0.2", 4000, 4001), Target(1, "10.0.1.2", 4002)]
    assert messages.targets(sent(messages.measure(Stage.BANDWIDTH, targets, chosen)), 2) == targets
    served = {0: Served(4000, 4001), 1: Served(trouble="no port")}
    assert messages.served(sent(messages.by_rail(served))) == served
    ran = {0: Ran(Reached.DONE, 95.5, used=Used("mlx5_0", 4096, 3)), 1: Ran(Reached.BROKEN, detail="it broke")}
    assert messages.ran(sent(messages.by_rail(ran))) == ran


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rail", 2),
        ("rail", -1),
        ("rail", True),
        ("rail", 0.0),
        ("rail", "0"),
        ("port", 0),
        ("port", 65536),
        ("address", "--help"),
        ("address", "node2"),
        ("address", "10.0.0.2;reboot"),
        ("address", "10.0.0.2%eth0"),
        ("address", "010.0.0.2"),
        ("address", "fd00::1"),
        ("address", None),
    ],
)
def test_a_target_that_is_refused(name: str, value: object) -> None:
    """Nothing but numbers within bounds and an address reaches a command line."""
    body = sent(messages.measure(Stage.MESSAGE, [Target(0, "10.0.0.2", 4000)], Settings()))
    body["targets"][0][name] = value
    with pytest.raises(DecodeFailure, match=name):
        messages.targets(body, 2)


@pytest.mark.parametrize("name", list(asdict(Settings())))
@pytest.mark.parametrize("value", [-2, 1 << 40, "1", 1.5, True, None, "-1; reboot"])
def test_a_setting_that_is_refused(name: str, value: object) -> None:
    body = messages.serve(Stage.MESSAGE, [0], Settings()) | {name: value}
    with pytest.raises(DecodeFailure, match=name):
        messages.settings(body)


def test_one_rail_twice() -> None:
    with pytest.raises(DecodeFailure, match="twice"):
        messages.rails({"rails": [0, 0]}, 2)
    twice = [asdict(Target(0, "10.0.0.2", 1))] * 2
    with pytest.raises(DecodeFailure, match="twice"):
        messages.targets({"targets": twice}, 2)
    with pytest.raises(DecodeFailure, match="too long"):
        messages.rails({"rails": list(range(65))}, 100)


def test_a_text_is_one_line() -> None:
    """Else a host's name could write lines of its own into the report, and a terminal obey it."""
    name = "node2\nslow: rail 0 of node1\x1b[2J\r\udcff"
    assert messages.participant(sent(messages.hello(Participant(name, ())))).name == (
        r"node2\nslow: rail 0 of node1\x1b[2J\r\udcff"
    )


def test_another_version() -> None:
    with pytest.raises(DecodeFailure, match="install one hpn on both"):
        messages.participant(messages.hello(WHO) | {"version": 2})


@pytest.mark.parametrize("seed", range(300))
def test_mutilated_answers(seed: int) -> None:
    """Whatever another host answers is read, or refused with DecodeFailure."""
    chance = random.Random(seed)
    ran = {0: Ran(Reached.DONE, 95.5, used=Used("mlx5_0", 4096, 3)), 1: Ran(Reached.BROKEN, detail="it broke")}
    body = sent(chance.choice([messages.hello(WHO), messages.by_rail(ran), messages.by_rail({0: Served(1, 2)})]))
    for _ in range(chance.randint(1, 3)):
        at: Any = body
        while isinstance(at, dict | list) and at:
            key = chance.choice([*at]) if isinstance(at, dict) else chance.randrange(len(at))
            if chance.random() < 0.5 or not isinstance(at[key], dict | list):
                at[key] = chance.choice([None, True, -1, 1e300, float("nan"), "x" * 2000, "", [], {}, [[]], {"a": {}}])
                break
            at = at[key]
    for read in (messages.participant, messages.ran, messages.served):
        try:
            read(body)
        except DecodeFailure:
            continue
