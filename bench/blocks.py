"""The program behind `make bench-blocks`: one pool for a cluster, on a real etcd and API server on this machine.

- ADD with room in the node's blocks, beside ADD in a network of the node's own.
- ADD that must claim a block, beside whereabouts' requests to the same API server for one address: a Lease to lock, the
  pool to read and to write, and the Lease again.
- A thousand nodes that claim, fifty of them at once, each in its own process.

Every ADD runs in a process that has done one before, as in the agent.
"""

import argparse
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from places import Place, added, must, places, timed
from support.shared_stores import Api

from base.kubernetes.http import Http
from base.kubernetes.tls import Tls
from bench import write
from ipam.cluster.backends import backend, etcd, kubernetes  # noqa: F401  # before forks
from ipam.cluster.reconcile import claim_block  # noqa: F401  # before forks

CROWD, AT_ONCE = 1000, 50
BLOCKS = 4096  # of 16 addresses in a /16
PODS_OF_POOL = 500
PATIENCE = 60.0


def with_room(place: Place, rounds: int) -> dict[str, list[float]]:
    """ADD in turns: with room in the node's blocks, and in a network of the node's own."""
    home = place.as_node("roomy")
    sides = {"a network of the node's own": {"ranges": [[{"subnet": "10.1.0.0/16"}]]},
             f"blocks, from {place.kind}": place.ipam("10.2.0.0/16", 4096)}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(-5, rounds):
        for name in list(sides) if i % 2 else list(sides)[::-1]:
            network = f"room-{list(sides).index(name)}"
            spent = timed(lambda name=name, network=network, i=i: must(added(home, f"c{i}", sides[name], network)))
            must(added(home, f"c{i}", sides[name], network, "DEL"))
            if i >= 0:
                times[name].append(spent)
    return times


def claims(place: Place, rounds: int) -> list[float]:
    """ADD that finds no room: each block has one address."""
    home, times = place.as_node("claims"), list[float]()
    ipam = place.ipam("10.3.0.0/16", 1)
    for i in range(-5, rounds):
        spent = timed(lambda i=i: must(added(home, f"c{i}", ipam, "claims")))
        times += [spent] if i >= 0 else []
    return times


def locked(api: Api, rounds: int) -> list[float]:
    """whereabouts' model: lock, read and write the pool, unlock (its pkg/storage/kubernetes/ipam.go)."""
    http = Http([api.url], lambda: Tls(ca=api.authority), lambda: {"Authorization": "Bearer root"}, is_patient=True)
    leases, maps = "/apis/coordination.k8s.io/v1/namespaces/default/leases", "/api/v1/namespaces/default/configmaps"
    allocations = {str(n): f"{n:064x} default/pod-{n} net1" for n in range(PODS_OF_POOL)}
    http.ask("POST", leases, {"metadata": {"name": "lock"}, "spec": {"holderIdentity": ""}}, is_safe=True)
    http.ask("POST", maps, {"metadata": {"name": "pool"}, "data": allocations}, is_safe=True)

    def change(path: str, key: str, value: Mapping[str, Any]) -> None:
        http.begin()
        found = http.ask("GET", path, is_safe=True).json()
        found[key] = {**found.get(key, {}), **value}
        assert http.ask("PUT", path, found, is_safe=True).status == 200

    def one(i: int) -> None:
        change(f"{leases}/lock", "spec", {"holderIdentity": f"node1-{i}"})
        change(f"{maps}/pool", "data", {f"new{i}": "x" * 90})
        change(f"{leases}/lock", "spec", {"holderIdentity": ""})

    times = [timed(lambda i=i: one(i)) for i in range(-5, rounds)][5:]
    http.close()
    return times


@dataclass
class Crowd:
    """The answers to a thousand nodes that asked at once."""

    seconds: float
    waits: list[float]
    conflicts: int
    again: int
    addresses: set[str]


def crowd(place: Place, nodes: int) -> Crowd:
    """Each node is a process that asks until it has an address, as kubelet does; when one has, the next begins."""
    ipam, network = place.ipam("10.0.0.0/16", 16), "crowd"
    must(added(place.as_node("first"), "c", ipam, network))
    said, saying = os.pipe()
    fcntl.fcntl(saying, fcntl.F_SETPIPE_SZ, 1 << 20)  # room for all their output, which is read at the end
    began, children = time.monotonic(), set[int]()
    for number in range(nodes):
        if len(children) == AT_ONCE:
            children.remove(os.wait()[0])
        if not (child := os.fork()):
            _one_of_the_crowd(place, number, ipam, network, saying)
        children.add(child)
    for child in children:
        os.waitpid(child, 0)
    seconds = time.monotonic() - began
    os.close(saying)
    with os.fdopen(said) as lines:
        answers = [json.loads(line) for line in lines]
    waits = [answer["ms"] for answer in answers]
    conflicts, again = (sum(answer[key] for answer in answers) for key in ("conflicts", "again"))
    return Crowd(seconds, waits, conflicts, again, {answer["address"] for answer in answers})


def _one_of_the_crowd(place: Place, number: int, ipam: Mapping[str, Any], network: str, saying: int) -> None:
    counted = Counter[str]()
    for store in (etcd.Etcd, kubernetes.Kubernetes):
        store.create = _counting(store.create, counted)  # type: ignore[method-assign]
    home = place.as_node(f"crowd{number}")
    began, again, answer = time.monotonic(), -1, dict[str, Any]()
    while "ips" not in answer and time.monotonic() - began < PATIENCE:
        answer, again = added(home, "c", ipam, network), again + 1
        time.sleep(0 if "ips" in answer else 1)
    ms = (time.monotonic() - began) * 1000
    address = answer["ips"][0]["address"] if "ips" in answer else str(answer)[:200]
    told = {"ms": ms, "again": again, "conflicts": counted["conflicts"], "address": address}
    os.write(saying, (json.dumps(told) + "\n").encode())
    os._exit(0)


def _counting(create: Callable[..., Any], counted: "Counter[str]") -> Callable[..., Any]:
    def call(*words: Any) -> Any:
        made = create(*words)
        counted["conflicts"] += made is None
        return made

    return call


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruled = "|".join(["---", *["--:"] * (len(header) - 1)])
    return ["", f"| {' | '.join(header)} |", f"|{ruled}|", *(f"| {' | '.join(cells)} |" for cells in rows)]


def ms(times: Sequence[float]) -> list[str]:
    return [f"{statistics.median(times):.2f}", f"{min(times):.2f}", f"{statistics.quantiles(times, n=100)[98]:.2f}"]


def measured(rounds: int, nodes: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hpn-bench-") as temporary, places(Path(temporary)) as (one, two, api):
        cpus, etcd_is = len(os.sched_getaffinity(0)), one.below.call(0, "/v3/maintenance/status", {})["version"]
        yield f"{cpus} CPUs for servers and nodes together; etcd {etcd_is}; {rounds} rounds."
        rooms = [row for place in (one, two) for row in with_room(place, rounds).items()]
        yield from table(["ADD, room in", "median ms", "min", "p99"], [[name, *ms(times)] for name, times in rooms])
        told(f"room: {rooms[0][1][:3]}")
        asked = {f"a block claimed from {place.kind}": claims(place, rounds) for place in (one, two)}
        asked["the API server asked as whereabouts does"] = locked(api, rounds)
        rows = [[name, *ms(times)] for name, times in asked.items()]
        yield from table(["an address with", "median ms", "min", "p99"], rows)
        told("claims: done")
        rows = []
        for place in (one, two):
            # In memory: each node would have its own disk.
            with tempfile.TemporaryDirectory(prefix="hpn-bench-", dir="/dev/shm") as memory:
                it = crowd(replace(place, folder=Path(memory)), nodes)
            if len(it.addresses) != nodes or not all("/" in address for address in it.addresses):
                sys.exit(f"{nodes} nodes have {len(it.addresses)} addresses: {sorted(it.addresses)[-3:]}")
            seconds = (it.seconds, statistics.median(it.waits) / 1000, max(it.waits) / 1000)
            rows.append([f"{place.kind}, {BLOCKS:,} blocks", f"{it.conflicts / nodes:.3f}",
                         *(f"{spent:.1f}" for spent in seconds), f"{it.again / nodes:.2f}"])  # fmt: skip
            told(f"{rows[-1]}")
        header = [
            f"{nodes:,} nodes at once",
            "conflicts per claim",
            "all served s",
            "median s",
            "last s",
            "asked again",
        ]
        yield from table(header, rows)


def told(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    options = argparse.ArgumentParser(description="One pool for a cluster: ADD, claims, and a thousand nodes at once.")
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--crowd", type=int, default=CROWD, help="how many nodes claim")
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    chosen = options.parse_args()
    lines = list[str]()
    for line in measured(chosen.rounds, chosen.crowd):
        print(line, flush=True)
        lines.append(line)
    if chosen.write:
        write(lines, "blocks")


if __name__ == "__main__":
    main()
