"""The program behind `make bench-cluster`: the time until pods with eight rails are Ready, in the tests' cluster.

A pod has the cluster's own network, which is bridge with host-local, and beside it eight macvlans: hpn's, or those of
the Go plugins.  Pods without macvlans show the rest of a pod's start.  The sides run in turns, in random order.  The
time is from the pod's first event in a watch of the API server to its condition Ready in the same watch.
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

from cluster import manifests, two_nodes
from cluster.two_nodes import ADMIN, RAILS, Cluster
from fabric import run

from bench import write

PODS = 50
PATIENCE = 300
EVENT = '{.type} {.object.metadata.name} {.object.status.conditions[?(@.type=="Ready")].status}{"\\n"}'


@dataclass
class Side:
    """A pod's networks beside the cluster's, one of this prefix on each rail; and the times in milliseconds."""

    name: str
    prefix: str
    times: list[float] = field(default_factory=list)

    def networks(self) -> str:
        """The value of the pod's annotation."""
        return ",".join(f"{self.prefix}-{rail}@hpn{n}" for n, rail in enumerate(RAILS)) if self.prefix else ""


def sides() -> list[Side]:
    """Go first, the base of comparison."""
    return [Side("Go macvlan + host-local", "go"), Side("hpn, with its agent", "hpn"), Side("no rails", "")]


def definitions() -> Iterator[dict[str, Any]]:
    """A network for each rail, of either program; a node has its own addresses in it."""
    for plugin, ipam, prefix, net in (("macvlan", "host-local", "go", 60), ("hpn", "hpn-ipam", "hpn", 70)):
        for n, rail in enumerate(RAILS):
            ranges = {"type": ipam, "ranges": [[{"subnet": f"10.{net + n}.0.0/24"}]]}
            conf = {"type": plugin, "master": rail, "mode": "bridge", "ipam": ranges}
            yield manifests.network(f"{prefix}-{rail}", conf)


class Watch:
    """The pods' events in their order."""

    def __init__(self, events: IO[str]) -> None:
        self._events = events

    def until_ready(self, names: set[str]) -> float:
        """The seconds from the first event of these pods until all of them are Ready."""
        waiting, began = set(names), 0.0
        while waiting:
            _, name, ready = self._next(names)
            began = began or monotonic()
            if ready == "True":
                waiting.discard(name)
        return monotonic() - began

    def until_gone(self, names: set[str]) -> None:
        waiting = set(names)
        while waiting:
            kind, name, _ = self._next(names)
            if kind == "DELETED":
                waiting.discard(name)

    def _next(self, names: set[str]) -> tuple[str, str, str]:
        while line := self._events.readline():
            kind, name, ready = line.rstrip("\n").split(" ")
            if name in names:
                return kind, name, ready
        sys.exit(f"no event of {len(names)} pods for {PATIENCE} s")


@contextmanager
def watching(cluster: Cluster) -> Iterator[Watch]:
    """A watch, which ends after PATIENCE."""
    assert cluster.control.space
    kubectl = [str(two_nodes.built() / "kubectl"), f"--kubeconfig={ADMIN}", "--cache-dir=/run/home/cache"]
    words = [*kubectl, "get", "pods", "--watch", "--output-watch-events", f"--output=jsonpath={EVENT}"]
    with subprocess.Popen(cluster.control.space.command(*words), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        end = Timer(PATIENCE, process.kill)
        end.start()
        try:
            yield Watch(process.stdout)
        finally:
            end.cancel()
            process.kill()


def measure(cluster: Cluster, compared: Sequence[Side], rounds: int, count: int) -> None:
    """Fill in the sides' times: this many rounds with this many pods at once."""
    nodes = list(cluster.nodes)
    for number in range(rounds):
        for side in random.Random(number).sample(compared, len(compared)):
            names = {f"p{n}": nodes[n % len(nodes)] for n in range(count)}
            pods = [manifests.pod(name, node=node, networks=side.networks()) for name, node in names.items()]
            with watching(cluster) as watch:
                cluster.apply(*pods)
                took = watch.until_ready(set(names))
                cluster.kubectl("delete", "pods", "--all", "--wait=false")
                watch.until_gone(set(names))
            side.times.append(took * 1000)


def table(title: str, compared: Sequence[Side]) -> list[str]:
    """A row per side, with the median of the rounds' ratios."""
    rows = [f"### {title}", "", "| pods with | median ms | min | max | ratio |", "|---|--:|--:|--:|--:|"]
    for side in compared:
        ratio = statistics.median(x / y for x, y in zip(side.times, compared[0].times, strict=True))
        figures = f"{statistics.median(side.times):.0f} | {min(side.times):.0f} | {max(side.times):.0f}"
        rows.append(f"| {side.name} | {figures} | {ratio:.3f} |")
    return [*rows, ""]


def main() -> None:
    options = argparse.ArgumentParser(description="Pods with eight rails, ours and the Go plugins'.")
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    options.add_argument("--rounds", type=int, default=20, help="of one pod; a quarter as many of many pods")
    chosen = options.parse_args()
    if lacking := two_nodes.missing():
        sys.exit(f"the cluster needs {lacking}")
    binary = Path(os.environ["HPN_BINARY"])
    lines = list[str]()
    with Cluster(two_nodes.built(), binary) as cluster:
        cluster.apply(*definitions())
        measure(cluster, sides(), 1, 1)  # to warm up
        for count, rounds in ((1, chosen.rounds), (PODS, max(1, chosen.rounds // 4))):
            compared = sides()
            measure(cluster, compared, rounds, count)
            what = f"{count} pods at once on two nodes" if count > 1 else "A pod"
            lines += table(f"{what} with eight rails, until Ready ({rounds} rounds)", compared)
    linux = ".".join(platform.release().split(".")[:2])
    where = f"{os.cpu_count()} CPUs for the whole cluster, Linux {linux}, {run(str(binary), 'version').strip()}"
    page = [f"Kubernetes 1.36, containerd 2. {where}. A ratio is to the first row, of the same round.", "", *lines]
    print("\n".join(page))
    if chosen.write:
        write(page, "cluster")


if __name__ == "__main__":
    main()
