"""The last program behind `make bench-blocks`: a real etcd and API server with the blocks of ten thousand nodes.

It shows which requests of nodes and people are answered within a request's time.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from blocks import table
from places import Place, added, must, places, timed

from base.kernel import budget
from base.protocol.errors import Unreachable
from bench import write
from ctl.ipam import release
from ipam.cluster import BLOCK, Documents
from ipam.cluster import node_blocks as node_has
from ipam.cluster.backends import kv, objects
from ipam.cluster.reconcile.reconcile import rounds as rounds_of_networks
from ipam.cluster.rules.documents import Block

NODES, EACH = 10_000, 4
FEW = 3  # rounds of slow requests


def fill(place: Place, documents: Documents) -> int:
    """Ten thousand nodes hold four blocks each, which are all; return the bytes of one such document in etcd.

    One is made as nodes make it.  The others are copies, written into etcd directly.
    """
    made = documents.create(BLOCK, "many.0", "many", _block(0).to_json())
    assert made
    found = place.below.call(0, "/v3/kv/range", kv.all_below(PREFIXES[place.kind] + "many.0", 2))["kvs"][0]
    template = kv.Pair.of(found).value
    for first in range(1, NODES * EACH, 50):
        puts = [put for index in range(first, min(first + 50, NODES * EACH)) for put in _puts(place, template, index)]
        assert place.below.call(0, "/v3/kv/txn", {"success": puts}).get("succeeded")
    return len(template)


PREFIXES = {"etcd": "/hpn/block/", "kubernetes": "/registry/hpn-cni.io/hpnblocks/"}


def _block(index: int) -> Block:
    return Block("many", index, 16, f"node{index // EACH}", "", f"{index:032x}")


def _puts(place: Place, template: bytes, index: int) -> Iterator[dict[str, Any]]:
    body, name = json.loads(template), f"many.{index}"
    if place.kind == "etcd":
        body = _block(index).to_json()
        yield kv.put(f"/hpn/of/{body['node']}/block/{name}", b"{}")
    else:
        body["metadata"] |= {"name": name, "uid": f"{index:08x}-0000-4000-8000-000000000000"}
        body["metadata"]["labels"] |= objects.labels({"node": f"node{index // EACH}"})
        body["spec"] = _block(index).to_json()
    yield kv.put(PREFIXES[place.kind] + name, json.dumps(body, separators=(",", ":")).encode())


# 40,000 of FREE_SOME's 44,444 blocks are held, and all of FREE_NONE's.
FREE_SOME = {"subnet": "10.0.0.0/12", "rangeEnd": "10.10.217.191"}
FREE_NONE = {"subnet": "10.0.0.0/12", "rangeEnd": "10.9.195.255"}


def held(place: Place, rounds: int) -> dict[str, Sequence[float]]:
    """Milliseconds of the requests of nodes and people with that many held blocks; infinite for no answer in time."""
    documents = place.documents()
    times: dict[str, Sequence[float]] = {"bytes of a block": [fill(place, documents)]}
    some, none = ({**place.ipam("", 16), "ranges": [[one]]} for one in (FREE_SOME, FREE_NONE))

    def measure(name: str, act: Callable[[int], Any], rounds: int = rounds) -> None:
        times[name] = [_in_time(partial(act, i)) for i in range(rounds)]
        _told(f"{place.kind}: {name}: {statistics.median(times[name]):.1f} ms, {max(times[name]):.1f} at most")

    def own_blocks(_: int) -> None:
        assert len(documents.listed(BLOCK, "many", "node77")) == EACH

    measure("a node's look at its own blocks", own_blocks)
    measure("the first ADD of a node: a look, and a claim", lambda i: _added(place.as_node(f"new{i}"), "c", some))
    homes = [place.as_node(f"full{i}") for i in range(rounds)]
    times["an ADD that claims"] = list(_claims(place, homes, some))
    measure("a node's round", lambda i: _round(place.as_node(f"new{i}")))
    measure("STATUS without room", lambda i: _added(place.as_node(f"other{i}"), "c", some, "STATUS"))
    indexes = iter(range(0, NODES * EACH, 40))

    def take(_: int) -> None:
        found = documents.read(BLOCK, f"many.{next(indexes)}")
        assert found
        assert documents.replace(found, Block.of(found).given_to("bench", "", "taken").to_json())

    measure("a block read and taken over", take)
    measure("a list of numbers for names", lambda _: documents.listed(BLOCK, "many/sticky"), FEW)
    measure("a list of all blocks", lambda _: documents.listed(BLOCK), FEW)
    measure("an ADD where every block is taken", lambda i: _added(place.as_node(f"last{i}"), "c", none), FEW)
    measure("gc --cluster --dry-run", lambda _: release.collect(documents, "many", dry_run=True), 1)
    return times


def _in_time(act: Callable[[], Any]) -> float:
    budget.begin()
    try:
        return timed(act)
    except Unreachable as e:
        _told(e.msg)
        return math.inf


def _added(home: Path, cid: str, ipam: Mapping[str, Any], verb: str = "ADD") -> None:
    """Raises Unreachable for the errors 11 and 50, which report that the store did not answer in time."""
    answer = added(home, cid, ipam, "many", verb)
    if answer.get("code") in (11, 50):
        raise Unreachable(str(answer))
    if answer.get("code") != 103:  # all are taken
        must(answer)


def _claims(place: Place, homes: Iterable[Path], ipam: Mapping[str, Any]) -> Iterator[float]:
    """For each node, which has a block, the ADD that claims the second one."""
    for home in homes:
        place.as_node(home.name)
        blocks = 0
        for n in itertools.count():
            spent = _in_time(partial(_added, home, f"c{n}", ipam))
            mine = node_has.read(home / "data" / "many")
            if spent == math.inf or (mine and blocks and len(mine.blocks) > blocks):
                break
            blocks = len(mine.blocks) if mine else 0
        yield spent


def _round(home: Path) -> None:
    (report,) = rounds_of_networks([home / "data" / "many"], frozenset)
    if report.problem:
        raise Unreachable(report.problem)


def measured(rounds: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hpn-bench-") as temporary, places(Path(temporary)) as (one, two, _):
        cpus, version = len(os.sched_getaffinity(0)), one.below.call(0, "/v3/maintenance/status", {})["version"]
        yield f"{cpus} CPUs for all, a load of {os.getloadavg()[0]:.0f} at the start; etcd {version}; {rounds} rounds."
        all_held = [held(place, rounds) for place in (one, two)]
        header = [f"{NODES:,} nodes hold {NODES * EACH:,} blocks"]
        header += [cell for place in (one, two) for cell in (f"{place.kind}, median ms", "longest")]
        yield from table(header, [[name, *(c for of in all_held for c in _cells(of[name]))] for name in all_held[0]])


def _cells(times: Sequence[float]) -> tuple[str, str]:
    one, two = (f"{ms:,.0f}" if ms < math.inf else "none in time" for ms in (statistics.median(times), max(times)))
    return one, two if len(times) > 1 else ""


def _told(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    options = argparse.ArgumentParser(description="What is asked of a store that has 40,000 blocks.")
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    chosen = options.parse_args()
    lines = list(measured(chosen.rounds))
    print("\n".join(lines))
    if chosen.write:
        write(lines, "filled")


if __name__ == "__main__":
    main()
