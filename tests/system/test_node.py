"""The shipped hpn node: with very many devices, and idle."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.sysfs_tree import Tree
from support.topology import until
from system.machine import Tools

PFS, VFS = 24, 125
NAME = "example.com/vf"
MOST = 45_000  # KiB
RESOURCE = {"name": NAME, "kind": "vf"}


@pytest.fixture
def process(tools: Tools) -> Iterator[NodeProcess]:
    # A socket's path has at most 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process = NodeProcess(Path(folder), [RESOURCE], "--metrics", f"unix:{folder}/metrics/m.sock")
        process.program, process.namespaces = [str(tools.hpn)], ["--mount", "--net"]
        process.show(Path(folder, "sys"))
        yield process


def scrape(folder: Path) -> str:
    """The page of the fifth request by Python's own HTTP client."""
    page = ""
    for _ in range(5):
        client = HTTPConnection("hpn", timeout=60)
        client.sock = socket.socket(socket.AF_UNIX)
        client.sock.connect(f"{folder}/metrics/m.sock")
        client.request("GET", "/metrics")
        page = client.getresponse().read().decode()
        client.close()
    return page


def test_three_thousand_devices(process: NodeProcess) -> None:
    tree = Tree(process.folder / "sys")
    vfs = dict[str, bool]()
    for number in range(PFS):
        pf = f"0000:{number:02x}:00.0"
        tree.netdev(f"eth{number}", tree.pci(pf))
        for one in range(1, VFS + 1):
            address = f"0000:{number:02x}:{one // 8:02x}.{one % 8}"
            vfs[address] = True
            tree.rdma(f"mlx5_{len(vfs)}", tree.pci(address, pf=pf), len(vfs))
    kubelet = Kubelet(process.kubelet)
    with process:
        process.says("offers example.com/vf: 3000 units", 60)
        with kubelet:
            kubelet.until(NAME, vfs)
            for times in range(1, 6):
                process.reload()
                until(
                    lambda times=times: sum("reloads its configuration" in line for line in process.said) == times, 120
                )
            assert f'hpn_devices{{resource="{NAME}",state="healthy"}} 3000.0' in scrape(process.folder)
            until(lambda: process.sleeps(3), 120)
            assert process.status_of("VmRSS") <= MOST, process.status_of("VmRSS")
