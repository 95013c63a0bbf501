"""The attackers of docs/user/security.md, with a file or a folder each, and the netns tier's host and pods."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attack.user import SLOW
from conftest import require
from netns.conftest import host, ipvlan, kind, make_pod, pod, pods
from support.elapsed import Elapsed

__all__ = ["host", "ipvlan", "kind", "make_pod", "pod", "pods"]


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
