"""A real workload runs with a pod's interfaces: Debian's Open MPI over hpn0, with the environment of hpn hints.  The
lab covers RDMA."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import require
from support.topology import Host, Pod

from ctl import main as ctl

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

import jobs


def hints(host: Host, pod: Pod, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    ctl.main(["hpn", "hints", pod.path, "--for", "mpi", "--state-dir", str(host.state)])
    return capsys.readouterr().out


def carried(pod: Pod) -> int:
    (link,) = pod.ip("-s", "link", "show", "dev", "hpn0")
    return int(link["stats64"]["tx"]["bytes"])


def test_mpi(host: Host, make_pod: Callable[[], Pod], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks in two pods exchange correct data over hpn0."""
    if not shutil.which("mpirun"):
        require("netns", "mpirun; run: netns-fixtures/setup mpi")
    pods = make_pod(), make_pod()
    results = [host.ok("ADD", pod, host.conf(multiRail=True)) for pod in pods]
    addresses = {
        pod.name: result["ips"][0]["address"].partition("/")[0] for pod, result in zip(pods, results, strict=True)
    }
    jobs.describe(tmp_path, {pod.name: hints(host, pod, capsys) for pod in pods}, addresses)
    before = carried(pods[0])
    said = jobs.mpirun(tmp_path, list(addresses), "collectives.py")
    assert (said.count(" right"), "WRONG" in said) == (8, False), said
    # Ten times the largest message of each kind.
    assert carried(pods[0]) - before > 2 * 10 * 262144
    said = jobs.mpirun(tmp_path, list(addresses), "training.py")
    assert "all ranks have one model: True; it is that of one process: True" in said
    for pod in pods:
        host.ok("DEL", pod, host.conf(multiRail=True))
