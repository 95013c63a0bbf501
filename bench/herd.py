"""The second program behind `make bench-slices`: the ResourceSlices of 1,000 nodes, on a real API server and etcd.

Each node has the publisher of `hpn node`, 8 PFs and 8 to 64 VFs.  All are in one process, where threads do their rounds
in place of child processes.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from slices import STEP, Seen, pss, said

from bench import write
from hardware.model import Device, Kind
from node import background
from node.dra.slices import ledger
from node.dra.slices import round as a_round
from node.dra.slices.publisher import Publisher
from node.dra.slices.view import Report, View
from node.kubelet.allocations import Allocations
from node.log import Topics
from node.model import Offer, Resource, Sharing, Unit

NODES, RAILS = 1000, 8
AT_ONCE = 200  # threads
CHANGES = 60  # seconds with changes, each of a hundredth of the nodes
VF = Resource("example.com", "vf", Sharing.EXCLUSIVE, (), kind="vf", by_dra=True)
_REFUSED = re.compile(
    r'^apiserver_request_total\{code="(?:409|429|5..)".*resource="resourceslices".*\} (\d+)', re.MULTILINE
)


class InThread:
    """Does a publisher's round, in place of base.child_process.Child."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[], object]) -> None:
        self.fd = os.eventfd(0)
        self._future = pool.submit(work)
        self._future.add_done_callback(lambda _: os.eventfd_write(self.fd, 1))

    def answer(self) -> Any:
        os.close(self.fd)
        return self._future.result()


@dataclass
class Herd:
    """The publishers of all nodes.  ``waiting`` are the nodes whose slices are not as wanted yet."""

    folder: Path
    loop: asyncio.AbstractEventLoop
    topics: Topics = field(default_factory=Topics)
    publishers: list[Publisher] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    failed: int = 0

    def start(self, nodes: int) -> None:
        """Start all nodes at once, as after a restart of `hpn node`."""
        self.publishers.clear()
        self.waiting = {*range(nodes)}
        for number in range(nodes):
            view = View(self.folder / f"{number}", f"{self.folder}/{number}/kubeconfig")
            made = Publisher(self.loop, self.topics, view, Allocations(), lambda: None)
            made._round = partial(self._publish, number)  # type: ignore[method-assign]  # noqa: SLF001
            self.publishers.append(made)
            made.offer(offers(number), {})

    def change(self, nodes: int) -> None:
        """Each second, one VF of each hundredth node becomes unhealthy, and what was unhealthy there is well again."""
        part = nodes // 100
        for second in range(CHANGES):
            for number in ((second * part + n) % nodes for n in range(part)):
                (offer,) = offers(number)
                self.waiting.add(number)
                unit = offer.units[second % len(offer.units)]
                self.publishers[number].offer((offer,), {(VF.full_name, unit.id): "no-link"})
            self.loop.run_until_complete(asyncio.sleep(1))

    def until_published(self) -> None:
        while self.waiting or any(one._background.is_at_work for one in self.publishers):  # noqa: SLF001
            self.loop.run_until_complete(asyncio.sleep(STEP))

    def close(self) -> None:
        for one in self.publishers:
            one.close()

    def _publish(self, number: int, view: View) -> Report:
        report = a_round.publish(view)
        if report.problem:
            self.failed += 1
        else:
            self.waiting.discard(number)
        return report


def offers(number: int) -> tuple[Offer, ...]:
    """The VFs of a node: one to eight of each PF."""
    found = [
        Device(f"{pf}.{1 + n}", Kind.VF, "15b3", "101e", "mlx5_core", pf=f"{pf}.0", pf_netdev=f"rail{rail}", index=n)
        for rail in range(RAILS)
        for pf in [f"0000:{rail + 1:02x}:00"]
        for n in range(1 + number % 8)
    ]
    return (Offer(VF, tuple(Unit(one.id, (one,)) for one in found)),)


def measured(nodes: int) -> Iterator[str]:
    users = {f"system:node:n{number}": "system:nodes" for number in range(nodes)}
    with said(users) as (line, api, folder), ThreadPoolExecutor(AT_ONCE) as pool:
        yield from (line, "")
        made = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}} for number in range(nodes)]
        api.run("create", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
        for number in range(nodes):
            (folder / f"{number}/plugins_registry").mkdir(parents=True)
            (folder / f"{number}/kubeconfig").write_text(json.dumps(api.kubeconfig(f"system:node:n{number}")))
            (folder / f"{number}/kubeconfig").chmod(0o600)
        background.Child = partial(InThread, pool)  # type: ignore[assignment,misc]
        assert api.server.process
        server = api.server.process.pid
        seen, herd = Seen(api, os.getpid()), Herd(folder, asyncio.new_event_loop())

        def refused() -> int:
            return sum(int(count) for count in _REFUSED.findall(api.run("get", "--raw=/metrics")))

        yield f"| {nodes:,} nodes | s | processor s of the API server | its MB | requests | MB | of 409, 429, 5xx |"
        yield "|---|--:|--:|--:|--:|--:|--:|"
        for name, act in (
            ("all publish at once", herd.start),
            (f"1 % change each second, for {CHANGES} s", herd.change),
            ("all restart at once", herd.start),
        ):
            if act == herd.start:
                herd.close()
            before, began, then = seen.spent(), time.monotonic(), refused()
            act(nodes)
            herd.until_published()
            seconds, spent = time.monotonic() - began, seen.spent().since(before)
            figures = f"{seconds:.1f} | {spent.server:.1f} | {pss(server):.0f} | {spent.requests:,}"
            yield f"| {name} | {figures} | {spent.size / 1e6:.1f} | {refused() - then} |"
        herd.close()
        yield ""
        yield f"All nodes share the machine with the API server. {herd.failed} rounds failed and were repeated."


def main() -> None:
    options = argparse.ArgumentParser(description="ResourceSlices of 1,000 nodes.")
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    chosen = options.parse_args()
    # A signal ends no thread, and these nodes have no kubelet.
    a_round.signal.alarm = lambda _: 0  # type: ignore[assignment]
    ledger.holds = lambda _: ledger.Holds(frozenset(), frozenset())  # type: ignore[assignment]
    lines = list[str]()
    for line in measured(chosen.nodes):
        print(line, flush=True)
        lines.append(line)
    if chosen.write:
        write(lines, "herd")


if __name__ == "__main__":
    main()
