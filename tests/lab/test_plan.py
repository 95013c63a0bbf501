"""hpn plan for the guest's NICs: hpn node accepts its device file, and its networks attach pods."""

from pathlib import Path

import pytest
from guest.node import Node, rdma_devs
from support import pod_resources
from support.plans import planned
from support.topology import Pod


@pytest.mark.parametrize("words", [[], ["--each"]], ids=["all rails", "each rail"])
def test_a_plan_works(node: Node, pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    sys = Path("/sys")
    plan = planned(sys, "--subnet", "10.77.0.0/24", *words)
    offered = plan.offered(sys, tmp_path)
    assert sum(map(len, offered.values())) == 8
    given = {resource: devices[0] for resource, devices in offered.items()}
    folder = pod_resources.kubelet(tmp_path / "kubelet", monkeypatch)
    pod_resources.keep(folder, *(pod_resources.entry(pod_resources.UID, *one) for one in given.items()))
    conf = next(iter(plan.networks.values()))
    # As Multus makes it, without a cluster, which the guest is not.
    resource, ipam = conf.pop("resource"), {key: value for key, value in conf["ipam"].items() if key != "cluster"}
    conf |= {"ipam": ipam} | ({"deviceID": given[resource]} if resource else {})
    result = node.ok("ADD", pod, conf, CNI_ARGS=pod_resources.CNI_ARGS)
    wanted = {"hpn0": {"10.77.0.2/24"}} | ({} if words else {"hpn1": {"10.77.1.2/24"}})
    assert {name: pod.addresses(name) for name in pod.links()} == wanted
    assert node.RDMA in rdma_devs(pod.name)
    assert len(rdma_devs(pod.name)) == len(wanted)
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert (pod.links(), node.state_files()) == (set(), set())
