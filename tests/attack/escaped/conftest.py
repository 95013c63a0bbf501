"""Fixtures for tests of escaped links: the runtime's cache of results, and the wire to the old address."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attack import by_agent
from attack.escaped.links import OLD
from support.topology import Host, Pod, ip

from base.state import libcni_cache


@pytest.fixture(autouse=True)
def results(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The runtime's cache, which holds ADD's result until DEL succeeds, as libcni's does."""
    is_served, call = by_agent.VARIABLE in os.environ, Host.call
    folder = Path(libcni_cache.RESULTS[0]) if is_served else host.tmp_path / "results"
    folder.mkdir(parents=True, exist_ok=True)
    made = set[Path]()

    def called(self: Host, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> Any:
        reply = call(self, command, pod, conf, **environ)
        if pod and reply.exit_code == 0 and command in ("ADD", "DEL"):
            name = json.loads(conf)["name"] if isinstance(conf, bytes) else (conf or self.conf())["name"]
            path = folder / f"{name}-{pod.name}-{environ.get('CNI_IFNAME', 'hpn0')}"
            made.add(path)
            path.touch() if command == "ADD" else path.unlink(missing_ok=True)
        return reply

    monkeypatch.setattr(Host, "call", called)
    monkeypatch.setattr(libcni_cache, "RESULTS", (str(folder),))
    yield folder
    for path in made:  # of an agent's node, they would stay
        path.unlink(missing_ok=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def wire(host: Host) -> Callable[[], bool]:
    """Reports whether the pod's old address answers on the fabric, which is in its own namespace."""
    ip("addr", "add", "10.56.0.99/24", "dev", "fabric")

    def answers() -> bool:
        ip("neigh", "flush", "dev", "fabric")
        # time: nothing is to come, or the test repeats it
        return host.ping(OLD, "-W", "1")

    return answers
