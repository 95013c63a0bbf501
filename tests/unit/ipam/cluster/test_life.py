"""The addresses of a cluster over days, with all that happens to its nodes and its backend.

A run has ten nodes and waves of 32 spot machines; the soak has 1,000 nodes.  HPN_LIFE_DAYS sets a longer life.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import drawn
import pytest
from support.cluster_life import DAY, HOUR, MINUTE, NAMES, STEP, Life

DAYS = float(os.environ.get("HPN_LIFE_DAYS", "1"))
# Nodes, spot machines at once, and blocks in their network.  A node has two blocks, most spot machines find one, and
# the next ones need those.
SOME, MANY = (10, 32, 48), (1000, 400, 2300)
PAGE = Path(__file__).parents[4] / "docs/develop/blocks.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory in memory, because each node would have its own disk."""
    with tempfile.TemporaryDirectory(prefix="hpn-life-", dir="/dev/shm") as name:
        yield Path(name)


def moved(life: Life, name: str) -> None:
    """Move the StatefulSet's pod to another node; if it waits on one, it goes on to wait there."""
    if any(name in host.needs for host in life.hosts):
        return
    for host in [host for host in life.hosts if name in host.pods and not host.is_broken]:
        life.end(host, name)
    able = [host for host in life.hosts if host.network == "net" and not host.is_broken and name not in host.pods]
    if able and not any(name in host.pods for host in life.hosts):
        life.start(life.draw.choice(able), name)


def burst(life: Life) -> None:
    """Let the provider take all its machines back within an hour."""
    for place, host in enumerate(list(life.hosts)):
        if host in life.hosts:
            life.replace(host)
        if place % max(1, len(life.hosts) // 12) == 0:
            life.step()


def wrong_clock(life: Life) -> None:
    """Put one node's clock an hour forward or back, until the machine ends."""
    life.counted["wrong clocks"] += 1
    life.draw.choice(life.hosts).clock = life.draw.choice([-HOUR, HOUR])


# What happens each day, and when.
HAPPENS: list[tuple[float, Callable[[Life], None]]] = [
    (0.04, Life.job),
    (0.08, Life.spot),
    (0.26, lambda life: life.break_disk(life.draw.choice([host for host in life.hosts if host.pods]))),
    (0.29, wrong_clock),
    (0.32, lambda life: life.partition(life.draw.choice([1.0, MINUTE]))),
    (0.38, lambda life: life.partition(life.draw.choice([HOUR, 6 * HOUR]))),
    (0.68, lambda life: life.turn_gc(on=True)),
    (0.7, burst),
    (0.78, lambda life: life.restore(6 * STEP)),
    (0.82, Life.retire),
    (0.86, Life.edit),
    (0.9, Life.job),
]


def live(life: Life, days: float) -> None:
    draw = life.draw
    todo = sorted(((day + part) * DAY, n) for day in range(int(days + 1)) for n, (part, _) in enumerate(HAPPENS))
    while life.time < life.began + days * DAY and not life.wrong:
        life.step()
        # An autoscaler replaces each node once a day.
        for host in [host for host in life.hosts if draw.random() < STEP / DAY]:
            life.replace(host)
        moved(life, draw.choice(NAMES))
        host = draw.choice(life.hosts)
        if draw.random() < 0.05:
            life.restart(host)
        if draw.random() < 0.02:
            host.quiet = life.time + draw.random() * 2 * DAY
        while todo and todo[0][0] <= life.time - life.began:
            HAPPENS[todo.pop(0)[1]][1](life)


@pytest.mark.parametrize("kind", ["kubernetes", "etcd"])
def test_a_clusters_life(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = MANY if drawn.draw().everything else SOME
    drawn.noted("nodes", numbers[0])
    life = Life(folder, kind, drawn.seed(), numbers, monkeypatch)
    live(life, DAYS)
    print(f"{kind}: {dict(life.counted)}, {life.requests:.0f} requests per node and hour")
    assert life.wrong[:3] == []
    assert life.counted["rounds of jobs"]
    stated = re.search(r"A node sends fewer than (\d+) requests per hour", PAGE.read_text())
    assert stated
    assert life.requests < int(stated[1])
