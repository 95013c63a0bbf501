"""Start a run of the checker: a world with its processes, its clock and its seed."""

import json
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from checker.clock import going
from checker.faults import SPEED, Faults
from checker.processes import LINK, Worker, started
from checker.record import recording
from checker.servers import Servers
from checker.world import World

HERE = Path(__file__).parent


@contextmanager
def world(
    folder: Path,
    servers: Servers,
    seed: int,
    nodes: tuple[int, int],
    ipam: Mapping[str, Any],
    secured: Mapping[str, str],
) -> Iterator[World]:
    """A world of a few nodes with two processes each, and many nodes that share one process.  ``nodes`` gives both
    numbers.  ``secured`` is a certificate for the proxy."""
    few, many = nodes
    file = folder / "clock"
    with ExitStack() as stack:
        clock = stack.enter_context(going(file, SPEED))
        sandbox = stack.enter_context(started(["unshare", "--net", "sh", "-ec", LINK]))
        assert sandbox.stdout
        sandbox.stdout.readline()
        record = folder / "record"
        told = {"servers": servers.urls, "clock": str(file), "record": str(record), "seed": seed, **secured}
        proxy = stack.enter_context(started([sys.executable, str(HERE / "proxy.py"), json.dumps(told)]))
        assert proxy.stdout
        proxies = json.loads(proxy.stdout.readline())
        conf = {"cniVersion": "1.1.0", "name": "net", "type": "hpn", "ipam": ipam}
        about = {"clock": str(file), "folder": str(folder), "conf": conf, "netns": f"/proc/{sandbox.pid}/ns/net"}
        words = [sys.executable, str(HERE / "node.py"), json.dumps(about)]
        names = [f"node{n}" for n in range(few)]
        fakes = [f"fake{n}" for n in range(many)]
        workers = [Worker(stack.enter_context(started(words)), [name], False) for name in names for _ in range(2)]
        workers.append(Worker(stack.enter_context(started(words)), fakes, True))
        stores = servers.settings(proxies, folder)
        draw, noted = random.Random(seed), stack.enter_context(recording(record, clock))
        it = World(folder, servers, draw, Faults(draw, servers, proxy, noted), workers, clock, stores)
        for worker in workers:
            assert worker.process.stdout
            worker.process.stdout.readline()  # the process has finished its imports
        it.live([*names, *fakes])
        yield it
