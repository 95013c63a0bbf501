"""The checker guarantees a node that the clock waits for it (tests/checker/world.py)."""

import math
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from checker.clock import Clock
from checker.faults import HOUR, Faults
from checker.processes import Worker
from checker.record import recording
from checker.world import World


class Always(random.Random):
    """Draws that recreate a node's object and keep the node silent as long as possible."""

    def random(self) -> float:
        return 0.49


class Servers:
    """Servers of a store with a delayed answer: ``meanwhile`` runs after the node's object is deleted."""

    urls: Sequence[str] = ()
    jumps: Sequence[int] = ()
    meanwhile: Callable[[], None]

    def __init__(self, *, has_objects: bool = True) -> None:
        self.has_objects = has_objects

    def settings(self, _proxies: Sequence[str], _folder: Path) -> Mapping[str, Any]:
        return {}

    def born(self, node: str) -> None:
        pass

    def dead(self, node: str) -> None:
        pass

    def replaced(self, _node: str) -> bool:
        self.meanwhile()
        return self.has_objects

    def harm(self, _draw: random.Random) -> bool:
        return False

    def heal(self) -> None:
        pass

    def blocks(self) -> dict[int, str]:
        return {}

    def moves(self) -> dict[str, int]:
        return {}


class Still(Clock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self._time, self.until = memoryview(bytearray(8)).cast("d"), math.inf


@pytest.fixture
def clock() -> Clock:
    return Still()


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def world(tmp_path: Path, clock: Clock, servers: Servers) -> Iterator[World]:
    with recording(tmp_path / "record", clock) as record:
        draw, nobody = Always(), cast("subprocess.Popen[str]", None)
        workers = [Worker(nobody, ["node1"], together=False)]
        it = World(tmp_path, servers, draw, Faults(draw, servers, nobody, record), workers, clock, {})
        it.live(["node1"])
        yield it


def test_the_clock_waits_as_soon_as_the_object_is_gone(world: World, clock: Clock, servers: Servers) -> None:
    """The clock waits before the servers answer the deletion; another node may suspect the node already."""
    seen = list[float]()
    servers.meanwhile = lambda: seen.append(clock.until - clock.now())
    world._fate("node1")
    assert 0 < seen[0] < HOUR


def test_an_hour_is_not_promised_anew(world: World, clock: Clock, servers: Servers) -> None:
    """A second recreation of the object, before the node's next heartbeat, does not extend the wait."""
    servers.meanwhile = lambda: None
    world._fate("node1")
    until = clock.until
    clock._time[0] += HOUR / 2
    world._fate("node1")
    assert clock.until == world.awaited["node1"] == until
    assert world.asleep["node1"] < until, "the clock would stand still for ever"
    world._wait_no_more("node1")
    world._fate("node1")
    assert clock.until == world.awaited["node1"] > until


def test_where_nodes_have_no_objects(world: World, clock: Clock, servers: Servers) -> None:
    servers.has_objects, servers.meanwhile = False, lambda: None
    world._fate("node1")
    assert (clock.until, world.awaited, world.asleep) == (math.inf, {}, {})
