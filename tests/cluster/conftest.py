"""What the cluster tier needs: one cluster for all its tests, and of a test that failed, what the daemons said."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import require

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster import two_nodes
from cluster.space import Failed
from cluster.two_nodes import Cluster


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, for the time of all tests."""
    if lacking := two_nodes.missing():
        require("cluster", lacking)
    binary = Path(os.environ.get("HPN_BINARY", "unset"))
    if not binary.exists():
        require("cluster", "HPN_BINARY, which `make test` sets after building it")
    try:
        programs = two_nodes.built()
    except Failed as e:
        require("cluster", str(e))
    with Cluster(programs, binary) as it:
        yield it
        logs = tmp_path_factory.getbasetemp() / "logs"
        for name, host in it.hosts().items():
            shutil.copytree(host.path("/var/log"), logs / name, ignore=shutil.ignore_patterns("pods", "containers"))


@pytest.fixture
def cluster(whole: Cluster, nothing_left: None) -> Iterator[Cluster]:
    """The cluster, with both nodes Ready; after the test no attachment, lease or namespace is left of its pods."""

    def picture() -> dict[str, Any]:
        return {name: (n.attachments(), n.leases(), n.namespaces()) for name, n in whole.nodes.items()}

    whole.restore()
    before = picture()
    yield whole
    whole.restore()
    whole.delete("pods", "--all", "--namespace=default")
    whole.delete("network-attachment-definitions", "--all", "--namespace=default")
    assert picture() == before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Any:
    """Show with a failure what the cluster looked like, and the ends of its logs."""
    report = yield
    it: Cluster | None = getattr(item, "funcargs", {}).get("whole")
    if report.failed and it:
        for words in (("get", "pods,nodes", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            report.sections.append((f"kubectl {' '.join(words)}", it.kubectl(*words, check=False)))
        report.sections += it.said().items()
    return report
