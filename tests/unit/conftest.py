"""The unit tier: pure functions and processes; no root, no kernel features."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import settings
from support.cluster_nodes import Cluster
from support.etcd_server import Member, Opened, opening, serving
from support.hinted import Hints, asking
from support.installed import tree
from support.ipam_calls import Net
from support.tls_server import Server, api_server

from base.kernel import budget, local
from base.kubernetes import http
from ipam.cluster import copies

# No deadline: a loaded machine is no bug.  No database: a run leaves nothing behind and repeats itself anywhere.
settings.register_profile("unit", deadline=None, database=None, derandomize=True)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def default_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a test that sets another, as a simulated node does, no later test sees it."""
    monkeypatch.delenv("HPN_STATE_DIR", raising=False)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limits: on a loaded machine a slow server is not silent, and a slow request is not overdue."""
    monkeypatch.setattr(http, "_TIMEOUT", 60.0)
    monkeypatch.setattr(budget, "REQUEST", 120.0)
    budget.begin()


@pytest.fixture(autouse=True)
def copied(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep copies of blocks in a directory of the test."""
    monkeypatch.setattr(copies, "FOLDER", f"{tmp_path_factory.mktemp('copies', numbered=True)}/blocks")


@pytest.fixture(autouse=True)
def no_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may have an address of the tests' ranges; tests/netns/test_own_addresses.py gives it some."""
    monkeypatch.setattr(local, "interface_with", lambda _address: "")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day in seconds, which the test sets."""
    now = [1_800_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


class Network(Protocol):
    def __call__(self, **ipam: Any) -> Net: ...


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Return a function that makes a network with these keys in its ``ipam`` section."""

    def made(**ipam: Any) -> Net:
        return Net(tmp_path, ipam)

    return made


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The root for an installation; after the test no temporary name may remain there."""
    (tmp_path / "root").mkdir()
    yield tmp_path / "root"
    assert [path for path in tree(tmp_path / "root") if ".new" in path or ".lock" in path] == []


@pytest.fixture
def hints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Hints:
    """Return a function that runs hpn hints."""
    return asking(tmp_path, capsys)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Nodes that share a store."""
    return Cluster(tmp_path, monkeypatch)


@pytest.fixture
def member() -> Iterator[Member]:
    """The only member of an etcd."""
    with serving(Member()) as it:
        yield it


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return a function that opens the etcd of members; the time limit of a request begins now."""
    budget.begin()
    with opening() as open_it:
        yield open_it


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server in place of an API server, and a kubeconfig for it."""
    with api_server(tmp_path) as server_and_kubeconfig:
        yield server_and_kubeconfig


@pytest.fixture
def server(asked: tuple[Server, Path]) -> Server:
    """The server alone."""
    return asked[0]
