"""hpn node and VFs that appear while its child process provisions their PF: kubelet learns of them afterwards."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.processes import states
from support.sysfs_tree import Tree
from support.topology import Host, ip, open_files, until

from base.state import owned

PF, VF, NEW = "0000:3b:00.0", "0000:3b:00.2", "0000:3b:00.3"
VFS, MARKS = "example.com/vfs", "example.com/marks"
RESOURCES: list[dict[str, Any]] = [
    {"name": VFS, "kind": "vf", "selectors": {"rootDevices": [PF]}},
    {"name": MARKS, "kind": "master", "count": 1, "selectors": {"ifNames": ["mark0", "mark1"], "kinds": ["netdev"]}},
]
SOON = 60.0  # seconds


@dataclass
class Node:
    """hpn node with a tree instead of /sys, and a kubelet."""

    process: NodeProcess
    kubelet: Kubelet
    tree: Tree

    def write(self, **asked: Any) -> None:
        self.process.write(RESOURCES, pfs=[{"selectors": {"pciAddresses": [PF]}} | asked])

    def offers(self, resource: str, *ids: str) -> None:
        until(lambda: set(self.kubelet.devices(resource)) == set(ids), SOON)

    def looks(self, *marks: str) -> None:
        """Make hpn node discover all devices, and wait until kubelet knows them."""
        self.tree.netdev(marks[-1])
        ip("link", "add", marks[-1], "type", "veth", "peer", "name", f"{marks[-1]}x")
        self.offers(MARKS, *(f"{mark}-0" for mark in marks))

    def child(self) -> int:
        """Stop the child process that provisions the PF once it waits for the PF's lock, and return its pid."""
        pid = int(until(self._waiting, SOON))
        os.kill(pid, signal.SIGSTOP)
        until(lambda: states(pid) == {"T"}, SOON)
        return pid

    def _waiting(self) -> str:
        with suppress(OSError):
            for pid in (
                Path(f"/proc/{self.process.process.pid}/task/{self.process.process.pid}/children").read_text().split()
            ):
                if any("/locks/device-" in path for path in open_files(pid)):
                    return pid
        return ""


@pytest.fixture
def node(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    # A socket's path is limited to 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process, tree = NodeProcess(Path(folder), RESOURCES), Tree(Path(folder, "sys"))
        Path(folder, "run").mkdir()
        monkeypatch.setenv("HPN_STATE_DIR", f"{folder}/run/hpn")
        process.mounts = [f"mount --bind {folder}/run /run", f"mount --bind {folder}/sys /sys"]
        with Kubelet(process.kubelet) as kubelet:
            yield Node(process, kubelet, tree)


def test_vfs_that_come_before_their_pf_is_ready(node: Node) -> None:
    node.write(numVfs=1)
    with node.process:
        node.process.says(f"serves {VFS}", SOON)
        with owned.lock(PF):
            node.tree.netdev("rail0", node.tree.pci(PF, sriov_totalvfs=7))
            node.looks("mark0")
            child = node.child()
            node.tree.pci(VF, pf=PF)
            node.looks("mark0", "mark1")
            assert node.kubelet.devices(VFS) == {}
        os.kill(child, signal.SIGCONT)
        # The file's number of VFs exists by now, so the child changed nothing.
        node.offers(VFS, VF)
        assert [line for line in node.process.said if "made ready" in line] == []


def test_vfs_that_were_there_are_offered_meanwhile(node: Node) -> None:
    node.tree.netdev("rail0", node.tree.pci(PF, sriov_totalvfs=7))
    node.tree.pci(VF, pf=PF)
    with node.process:
        node.offers(VFS, VF)
        node.write(numVfs=2)
        with owned.lock(PF):
            node.process.reload()
            child = node.child()
            node.tree.pci(NEW, pf=PF)
            node.looks("mark0")
            assert set(node.kubelet.devices(VFS)) == {VF}
        os.kill(child, signal.SIGCONT)
        node.offers(VFS, VF, NEW)


def test_it_is_ended_meanwhile(node: Node) -> None:
    """hpn node serves after the end of its child, so a service manager does not wait."""
    node.write(numVfs=1)
    node.tree.netdev("rail0", node.tree.pci(PF, sriov_totalvfs=7))
    with owned.lock(PF), node.process:
        child = node.child()
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGCONT)
        node.process.says(f"the process that makes the node ready ended with status -{signal.SIGTERM}", SOON)
        node.process.says(f"serves {VFS}", SOON)


def test_hpn_node_ends_meanwhile(node: Node) -> None:
    """The child process that provisions the PF ends with hpn node."""
    node.tree.netdev("rail0", node.tree.pci(PF, sriov_totalvfs=7))
    node.tree.pci(VF, pf=PF)
    process = node.process
    with process:
        process.says(f"serves {VFS}", SOON)
        node.write(numVfs=0)
        with owned.lock(PF):
            process.reload()
            child = until(node._waiting, SOON)
            process.process.terminate()
            assert process.process.wait(SOON) == 0
        until(lambda: not Path(f"/proc/{child}").exists(), SOON)
    assert (node.tree.root / f"bus/pci/devices/{PF}/sriov_numvfs").read_text() == "1\n"


def test_a_reload_before_the_node_is_ready(node: Node) -> None:
    """It follows the start."""
    node.tree.netdev("rail0", node.tree.pci(PF, sriov_totalvfs=7))
    node.write(numVfs=1)
    with node.process:
        with owned.lock(PF):
            until(node._waiting, SOON)
            node.process.reload()
        node.process.says("reloads its configuration", 2 * SOON)


def test_the_end_comes_before_the_node_is_ready(node: Node) -> None:
    """The start waits for a driver for up to a minute, and a service manager for none of it."""
    node.tree.netdev("rail0", node.tree.pci(PF, sriov_totalvfs=7))
    node.write(numVfs=1)
    process = node.process
    with owned.lock(PF), process:
        child = until(node._waiting, SOON)
        process.process.terminate()
        assert process.process.wait(2 * SOON) == 0
        until(lambda: not Path(f"/proc/{child}").exists(), SOON)
    assert not any("not ready after" in line for line in process.said)
