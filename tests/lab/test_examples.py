"""The examples with a VF work unchanged; the system tier tests the others."""

from pathlib import Path

import pytest
from guest.node import RDMA, Node, rdma_devs
from support.shipped import CONF, alone, requests
from support.topology import Pod


@pytest.mark.parametrize(
    "path", sorted([*CONF.glob("*sriov*"), *CONF.glob("nad-host-device*")]), ids=lambda path: path.name
)
def test_attaches_and_detaches(node: Node, pod: Pod, path: Path) -> None:
    (conf,) = requests(path, node.device)
    alone(conf)
    result = node.ok("ADD", pod, conf)
    assert {ip["address"] for ip in result["ips"]} == pod.addresses()
    assert rdma_devs(pod.name) == {RDMA}
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
