"""The addresses of a cluster over days, with all that happens to its nodes and its backend.

HPN_LIFE_NODES and HPN_LIFE_DAYS set a larger cluster and a longer life; the soak runs 1,000 nodes.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import drawn
import pytest
from support.cluster_life import DAY, HOUR, MINUTE, NAMES, STEP, Life

NUMBER = int(os.environ.get("HPN_LIFE_NODES", "40"))
DAYS = float(os.environ.get("HPN_LIFE_DAYS", "1"))
# Requests per node and hour, as docs/develop/blocks.md states.
REQUESTS = 150.0


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


def live(life: Life, days: float) -> None:
    draw, end = life.draw, life.time + days * DAY
    daily = {"job": 0.05, "burst": 0.3, "partition": 0.5, "restore": 0.7, "disk": 0.15, "widen": 0.9}
    at = {what: life.began + part * DAY for what, part in daily.items()}
    while life.time < end and not life.wrong:
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
        for what, time in at.items():
            if time <= life.time:
                at[what] = time + DAY
                happen(life, what)


def happen(life: Life, what: str) -> None:
    match what:
        case "job":
            life.job()
        case "burst":  # a provider takes all its machines back within an hour
            for place, host in enumerate(list(life.hosts)):
                life.replace(host)
                if place % max(1, NUMBER // 12) == 0:
                    life.step()
        case "partition":
            life.partition(life.draw.choice([1.0, MINUTE, HOUR, 6 * HOUR]))
        case "restore":
            if life.kind == "kubernetes":
                life.restore(6 * STEP)
        case "disk":
            life.break_disk(life.draw.choice([host for host in life.hosts if host.pods]))
        case "widen":
            life.subnet = "10.0.0.0/21"


@pytest.mark.parametrize("has_gc", [True, False], ids=["gc", "no gc"])
@pytest.mark.parametrize("kind", ["kubernetes", "etcd"])
def test_a_clusters_life(kind: str, has_gc: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "etcd" and has_gc:
        pytest.skip("the CronJob is for Kubernetes")
    life = Life(folder, kind, drawn.seed(), NUMBER, monkeypatch)
    life.has_gc = has_gc
    live(life, DAYS)
    print(f"{kind}: {dict(life.counted)}, {life.requests:.0f} requests per node and hour")
    assert life.wrong[:3] == []
    assert life.requests < REQUESTS
