"""Open MPI with UCX between two pods with four rails each: every rail carries its part."""

from collections.abc import Callable
from pathlib import Path

import pytest
from guest.machine import jobs
from guest.node import Node
from lab.shared.test_multi_rail import NODES, RAILS, attached, conf
from lab.shared.test_workloads import PAYLOAD, hints
from support.topology import Pod

# docs/user/rdma.md gives the reason.
ON_FOUR_RAILS = """\
export UCX_MAX_RNDV_RAILS=4
export UCX_RNDV_THRESH=8192
export UCX_IB_ROCE_LOCAL_SUBNET=y
"""


def test_mpi(node: Node, make_pod: Callable[[], Pod], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = make_pod(), make_pod()
    both = [attached(node, "macvlan", name, pod) for name, pod in zip(NODES, pods, strict=True)]
    told = {pod.name: hints(node, pod, capsys) for pod in pods}
    for rails in both:
        devices = ",".join(f"{end.device}:1" for end in rails.ends)
        assert f"UCX_NET_DEVICES={devices}\n" in told[rails.pod.name]
    environments = {name: lines + jobs.OF_SOFT_ROCE + ON_FOUR_RAILS for name, lines in told.items()}
    jobs.describe(tmp_path, environments, {rails.pod.name: rails.ends[0].address for rails in both})
    before = [rails.packets() for rails in both]
    said = jobs.mpirun(tmp_path, [pod.name for pod in pods], "collectives.py")
    assert (said.count(" right"), "WRONG" in said) == (8, False), said
    for rails, then in zip(both, before, strict=True):
        carried = [now - was for was, now in zip(then, rails.packets(), strict=True)]
        # Each rail carries more than other traffic could: its part of both kinds of message, in packets of a kilobyte.
        assert min(carried) >= PAYLOAD // 1024 // len(RAILS) // 2, carried
    for name, pod in zip(NODES, pods, strict=True):
        for number in RAILS:
            node.ok("DEL", pod, conf(node, "macvlan", name, number), CNI_IFNAME=f"hpn{number}")
        assert pod.links() == set()
