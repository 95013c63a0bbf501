"""hpn node with an InfiniBand HCA: health follows the port, not the carrier of an IPoIB interface.

No event reports a port.  Here an interface that is set up or down stands for any other change on a node.
"""

from pathlib import Path
from typing import Any

from guest.hca import PF, VFS, Node
from guest.node import pci
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.topology import Pod, ip

ONE_EACH, SHARED = "example.com/ib", "rdma/ib"
RESOURCES: list[dict[str, Any]] = [
    {"name": SHARED, "kind": "shared", "count": 1, "selectors": {"ifNames": [PF]}},
    {"name": ONE_EACH, "kind": "vf", "selectors": {"pfNames": [PF]}},
]
UNPLUGGED = Path("/sys/module/testib/parameters/unplugged")


def test_the_port_of_the_pf(kubelet: Kubelet, node: Node, pod: Pod) -> None:
    shared = {f"{pci(PF)}-0": True}
    vfs = {pci(f"ib{number}"): True for number in range(1, VFS + 1)}
    process = NodeProcess(kubelet.registry.parents[1], RESOURCES)
    process.write(RESOURCES, health={"downAfter": 1, "upAfter": 1})
    process.mounts.clear()  # /sys and /run are the guest's own
    with process:
        kubelet.until(ONE_EACH, vfs, 120)
        kubelet.until(SHARED, shared, 120)
        node.ok("ADD", pod)
        try:
            UNPLUGGED.write_text("Y")
            ip("link", "set", PF, "up")
            kubelet.until(ONE_EACH, dict.fromkeys(vfs, False), 120)
            kubelet.until(SHARED, dict.fromkeys(shared, False), 120)
            process.says("of example.com/ib: port 1 of testib0 is DOWN since 1 s")
        finally:
            UNPLUGGED.write_text("N")
            ip("link", "set", PF, "down")
        kubelet.until(ONE_EACH, vfs, 120)
        kubelet.until(SHARED, shared, 120)
        node.ok("DEL", pod)
