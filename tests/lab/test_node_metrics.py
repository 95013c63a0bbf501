"""Metrics of real RDMA devices: on the host, and in a pod's namespace in exclusive mode.

The devices of this kernel's guest have no counters, so the tests check their ports.
"""

from guest.node import RDMA, Node, rdma_devs
from support.metrics_page import Samples, made
from support.topology import Pod

from base.state import journal
from node.metrics import page


def ports(node: Node, remarks: list[str]) -> Samples:
    return made(page.ports(list(journal.records(node.state)), remarks.append))


def test_a_pods_device_is_read_in_its_namespace(node: Node, pod: Pod) -> None:
    remarks, port = list[str](), ("hpn_rdma_port_active", "1", RDMA)
    assert port not in ports(node, remarks)  # a VF that no pod has
    node.ok("ADD", pod)
    assert RDMA not in rdma_devs()
    state = pod.run("cat", f"/sys/class/infiniband/{RDMA}/ports/1/state").stdout  # ip netns exec shows it its own /sys
    assert ports(node, remarks)[port] == ("ACTIVE" in state)
    node.ok("DEL", pod)
    assert port not in ports(node, remarks)
    assert remarks == []
