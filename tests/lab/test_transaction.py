"""Kill the plugin between steps of attaching and detaching a VF with all there is to it.

Every fifth boundary, for a step takes seconds where the machine is emulated; the netns tier takes every one.
"""

import itertools
from typing import Any

import pytest
from guest.node import MAC, Node, picture
from killing import killed_at
from topology import Pod

CHANGES = {"vlan": 7, "spoofchk": "off", "trust": "on", "max_tx_rate": 50, "mac": MAC, "mtu": 1400}
RDMA = {"name": "mlx5_0"}


def by_del(node: Node, pod: Pod, conf: dict[str, Any]) -> None:
    node.ok("DEL", pod, conf)


def by_del_after_the_namespace(node: Node, pod: Pod, conf: dict[str, Any]) -> None:
    pod.remade()
    node.ok("DEL", pod, conf, CNI_NETNS="")


def by_gc(node: Node, pod: Pod, conf: dict[str, Any]) -> None:
    node.ok("GC", None, conf | {"cni.dev/valid-attachments": []})


STRIDE = 5
RECOVERIES = [by_del, by_del_after_the_namespace, by_gc]


@pytest.mark.usefixtures("node_file")
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_between_steps(node: Node, pod: Pod, command: str) -> None:
    info = node.tmp_path / "info"
    conf = node.conf(**CHANGES, rdma=RDMA, runtimeConfig={"CNIDeviceInfoFile": str(info)})
    before = picture()
    for n in itertools.count():
        step = n * STRIDE
        if command == "DEL":
            node.ok("ADD", pod, conf)
        killed = killed_at(step, node.request(command, pod, conf))
        RECOVERIES[n % len(RECOVERIES)](node, pod, conf)
        assert pod.links() == set(), f"VF left in the pod after step {step}"
        assert node.state_files() == set(), f"files left after step {step}"
        assert list(node.tmp_path.glob("info*")) == [], f"device information left after step {step}"
        assert picture() == before, f"not as it was after step {step}"
        if not killed:
            break
    assert step > 20
