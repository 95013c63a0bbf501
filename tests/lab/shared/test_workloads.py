"""Debian's Open MPI with UCX over soft-RoCE, with the environment that hpn hints prints."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from guest.machine import jobs, verbs
from guest.node import Node
from lab.shared.test_rxe import conf, device
from support.topology import Pod

from ctl import main as ctl

PAYLOAD = 2 * 10 * 262144  # of collectives.py: ten times the largest message, in octets, of each of two kinds
BY_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")


def hints(node: Node, pod: Pod, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert ctl.main(["hpn", "hints", pod.path, "--for", "mpi", "--state-dir", str(node.state)]) == 0
    return capsys.readouterr().out


def sent(end: verbs.End) -> int:
    """The packets that the RDMA device has sent, by the kernel's counters."""
    return int(Path(f"/sys/class/infiniband/{end.device}/ports/1/hw_counters/sent_pkts").read_text())


def test_mpi(node: Node, make_pod: Callable[[], Pod], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs run in the same pods at once, one by RDMA and one by TCP, followed by a training step by RDMA.  The
    results are right, and the data goes by RDMA, in packets of a kilobyte."""
    pods, ends = (make_pod(), make_pod()), []
    for number, pod in enumerate(pods):
        result = node.ok("ADD", pod, conf(node, kind="macvlan", master=f"rail{number}"))
        ends.append(verbs.End(pod.name, device(pod), result["ips"][0]["address"].partition("/")[0]))
    told = {pod.name: hints(node, pod, capsys) for pod in pods}
    assert all(f"UCX_NET_DEVICES={end.device}:1\n" in told[end.netns] for end in ends)
    by_rdma, by_tcp = tmp_path / "rdma", tmp_path / "tcp"
    for folder in (by_rdma, by_tcp):
        folder.mkdir()
        environments = {name: lines + jobs.OF_SOFT_ROCE for name, lines in told.items()}
        jobs.describe(folder, environments, {end.netns: end.address for end in ends})

    counted = []
    with ThreadPoolExecutor() as threads:
        running = [
            threads.submit(jobs.mpirun, by_rdma, list(told), "collectives.py"),
            threads.submit(jobs.mpirun, by_tcp, list(told), "collectives.py", *BY_TCP),
        ]
        while not all(job.done() for job in running):
            counted.append([(sent(end), jobs.tcp_segments(end.netns)) for end in ends])
            # time: the pace of looks
            time.sleep(0.5)
    for said in (job.result() for job in running):
        assert (said.count(" right"), "WRONG" in said) == (8, False), said
    for number, end in enumerate(ends):
        moments = [moment[number] for moment in counted]
        assert sent(end) - moments[0][0] >= PAYLOAD // 1024
        assert any(p - o > 100 and s - t > 100 for (o, t), (p, s) in pairwise(moments)), moments

    before = [sent(end) for end in ends]
    said = jobs.mpirun(by_rdma, list(told), "training.py")
    assert "all ranks have one model: True; it is that of one process: True" in said
    # A message in each of its thirty steps.
    assert all(sent(end) - then >= 30 for end, then in zip(ends, before, strict=True))
    for pod in pods:
        node.ok("DEL", pod, conf(node, kind="macvlan", master="rail0"))
