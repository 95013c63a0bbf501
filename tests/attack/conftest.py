"""The attackers of docs/user/security.md, with a file or a folder each, and the netns tier's host and pods."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attack import by_agent
from attack.user import SLOW
from conftest import node_file as own_node_file
from conftest import require
from netns.conftest import host as own_host
from netns.conftest import ipvlan, kind, make_pod, pod, pods
from support.elapsed import Elapsed
from support.topology import Host

__all__ = ["ipvlan", "kind", "make_pod", "own_host", "own_node_file", "pod", "pods"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_process: the test changes the program in this process while it runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if by_agent.VARIABLE in os.environ:
        left_out = [item for item in items if not by_agent.can_be_asked(item)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """The host of the netns tier, or that of HPN_BY_AGENT."""
    if by_agent.VARIABLE not in os.environ:
        yield request.getfixturevalue("own_host")
        return
    with by_agent.served(tmp_path) as it:
        yield it


@pytest.fixture
def node_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if by_agent.VARIABLE not in os.environ:
        yield request.getfixturevalue("own_node_file")
        return
    with by_agent.policy_file(tmp_path) as it:
        yield it


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory of root that every user can reach; pytest's own directories admit only one user."""
    with TemporaryDirectory(prefix="hpn-test-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def hpn(public: Path) -> Path:
    """A copy of the binary that every user can run."""
    if os.geteuid() != 0:
        require("attack", "root, to be somebody else")
    if not Path(os.environ.get("HPN_BINARY", "")).is_file():
        require("attack", "HPN_BINARY, which `make test` sets after building it")
    copy = shutil.copy(os.environ["HPN_BINARY"], public / "hpn")
    Path(copy).chmod(0o755)
    return Path(copy)


@pytest.fixture
def in_time() -> Iterator[None]:
    """Assert that the test takes no longer than a few calls may."""
    elapsed = Elapsed()
    yield
    assert elapsed.seconds() < 2 * SLOW
