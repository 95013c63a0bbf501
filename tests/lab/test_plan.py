"""hpn plan for the guest's NICs: hpn node accepts its device file, and its networks attach pods."""

from pathlib import Path

import pytest
from guest.node import Node, rdma_devs
from support.plans import planned
from support.topology import Pod


@pytest.mark.parametrize("words", [[], ["--one"]], ids=["each rail", "one for all"])
def test_a_plan_works(node: Node, pod: Pod, tmp_path: Path, words: list[str]) -> None:
    sys = Path("/sys")
    plan = planned(sys, "--subnet", "10.77.0.0/24", *words)
    offered = plan.offered(sys, tmp_path)
    assert sum(map(len, offered.values())) == 8
    conf = next(iter(plan.networks.values()))
    assert node.device in offered[conf.pop("resource")]
    # As Multus makes it, without a cluster, which the guest is not.
    ipam = {key: value for key, value in conf["ipam"].items() if key != "cluster"}
    conf |= {"deviceID": node.device, "ipam": ipam}
    result = node.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.77.0.2/24"}
    assert rdma_devs(pod.name) == {node.RDMA}
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert (pod.links(), node.state_files()) == (set(), set())
