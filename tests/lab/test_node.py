"""hpn node with real VFs and RDMA devices: its reports to kubelet, and a pod's VF from Allocate to DEL."""

import time
from pathlib import Path
from typing import Any

import pytest
from guest.machine import bring_up, nics, plug, unplug
from guest.node import NAME, PF, RDMA, Node, pci, renamed
from guest.qmp import Monitor
from lab.test_devices import driven_by
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.topology import Pod, ip

RAIL0, HCA = "example.com/rail0", "rdma/hca"
VFS: dict[str, Any] = {"name": RAIL0, "kind": "vf", "selectors": {"pfNames": [PF]}}
SHARED: dict[str, Any] = {"name": HCA, "kind": "shared", "count": 2, "selectors": {"ifNames": [PF]}}
FATAL = Path("/sys/module/testhca/parameters/fatal")
SOON = 60.0  # seconds: everything in here is emulated


@pytest.fixture
def process(kubelet: Kubelet) -> NodeProcess:
    process = NodeProcess(kubelet.registry.parents[1], [VFS])
    process.write([VFS], health={"downAfter": 1, "upAfter": 1})
    process.mounts.clear()  # /sys and /run are the guest's own
    return process


def vfs(*unhealthy: str) -> dict[str, bool]:
    """All VFs of rail0, with these unhealthy."""
    addresses = [vf.address for vf in next(nics.pfs()).vfs]
    return {address: address not in unhealthy for address in addresses}


def pull(*, up: bool) -> None:
    """Pull or plug the cable of rail0."""
    with Monitor() as monitor:
        monitor.command("set_link", name="pf0", up=up)


def test_a_pods_vf(kubelet: Kubelet, process: NodeProcess, node: Node, pod: Pod) -> None:
    healthy = vfs()
    ill = dict.fromkeys(healthy, False)
    uverbs = next(Path(f"/sys/bus/pci/devices/{node.device}/infiniband_verbs").iterdir()).name
    with process:
        kubelet.until(RAIL0, healthy, 120)
        grant = kubelet.allocate(RAIL0, node.device)
        assert grant.envs["PCIDEVICE_EXAMPLE_COM_RAIL0"] == node.device
        assert f'"rdma_dev":"{RDMA}"' in grant.envs["PCIDEVICE_EXAMPLE_COM_RAIL0_INFO"]
        nodes = {(one.host_path, one.permissions) for one in grant.devices}
        assert nodes == {(f"/dev/infiniband/{name}", "rw") for name in (uverbs, "rdma_cm")}

        node.ok("ADD", pod)
        pod.ip("link", "set", "hpn0", "down")
        with pytest.raises(AssertionError):
            kubelet.until(RAIL0, ill, 3)
        assert kubelet.devices(RAIL0) == healthy
        pod.ip("link", "set", "hpn0", "up")

        began = time.monotonic()
        pull(up=False)
        kubelet.until(RAIL0, ill, 120)
        assert time.monotonic() - began > 1
        process.says(f"of example.com/rail0: {PF} has no carrier since 1 s")
        pull(up=True)
        kubelet.until(RAIL0, healthy, 120)
        node.ok("DEL", pod)
        assert kubelet.devices(RAIL0) == healthy
    assert len([line for line in process.said if "healthy" in line]) == 2


def test_an_address_of_a_dhcp_client(kubelet: Kubelet, process: NodeProcess, node: Node) -> None:
    """A VF is unhealthy while the host has an address on it.  Setting it up alone changes nothing."""
    with process:
        kubelet.until(RAIL0, vfs(), 120)
        ip("link", "set", NAME, "up")
        ip("address", "add", "192.168.123.174/24", "dev", NAME)
        try:
            kubelet.until(RAIL0, vfs(node.device), SOON)
            process.says(f"unhealthy: {node.device} of example.com/rail0: the host needs it: the host has 192.168.123.")
        finally:
            ip("address", "del", "192.168.123.174/24", "dev", NAME)
            ip("link", "set", NAME, "down")
        kubelet.until(RAIL0, vfs(), SOON)


def test_an_interface_of_the_host_over_it(kubelet: Kubelet, process: NodeProcess, node: Node) -> None:
    """A VF is unhealthy while the host has an interface over it, such as a VLAN: ADD would refuse it."""
    with process:
        kubelet.until(RAIL0, vfs(), 120)
        ip("link", "add", "link", NAME, "name", "over0", "type", "macvlan")
        try:
            kubelet.until(RAIL0, vfs(node.device), SOON)
            process.says(f"unhealthy: {node.device} of example.com/rail0: the host needs it: over0 of the host is over")
        finally:
            ip("link", "delete", "over0")
        kubelet.until(RAIL0, vfs(), SOON)


def test_vfs_removed_and_made_anew(kubelet: Kubelet, process: NodeProcess) -> None:
    healthy, address = vfs(), pci(PF)
    with process:
        kubelet.until(RAIL0, healthy, 120)
        Path(f"/sys/bus/pci/devices/{address}/sriov_numvfs").write_text("0")
        try:
            kubelet.until(RAIL0, dict.fromkeys(healthy, False), SOON)
            process.says("of example.com/rail0: it is gone")
        finally:
            bring_up(0, address)
        kubelet.until(RAIL0, healthy, SOON)


def test_a_pf_renamed(kubelet: Kubelet, process: NodeProcess, node: Node, pod: Pod) -> None:
    """The selectors follow the PF's name, also for a VF that a pod has."""
    new: dict[str, Any] = {"name": "example.com/new", "kind": "vf", "selectors": {"pfNames": ["ens1f0np0"]}}
    process.write([VFS, new])
    healthy = vfs()
    with process:
        kubelet.until(RAIL0, healthy, 120)
        node.ok("ADD", pod)
        with renamed(PF, "ens1f0np0"):
            kubelet.until("example.com/new", healthy, SOON)
            node.ok("DEL", pod)
        kubelet.until(RAIL0, healthy, SOON)


def test_a_nic_pulled(kubelet: Kubelet, process: NodeProcess) -> None:
    healthy = vfs()
    with process:
        kubelet.until(RAIL0, healthy, 120)
        with Monitor() as monitor:
            address = unplug(monitor, 0)
            try:
                kubelet.until(RAIL0, dict.fromkeys(healthy, False), SOON)
            finally:
                plug(monitor, 0, address)
        kubelet.until(RAIL0, healthy, SOON)


@pytest.mark.parametrize("driver", ["", "vfio-pci"], ids=["none", "vfio-pci"])
def test_a_driver_unbound(kubelet: Kubelet, process: NodeProcess, node: Node, driver: str) -> None:
    """A VF without a driver is unhealthy.  With another driver it stays healthy, unless the resource wants the first
    driver."""
    (link,) = ip("link", "show", "dev", NAME)
    with process:
        kubelet.until(RAIL0, vfs(), 120)
        with driven_by(driver, node.device, link["address"]):
            if not driver:
                kubelet.until(RAIL0, vfs(node.device), SOON)
                process.says(f"unhealthy: {node.device} of example.com/rail0: it has no driver")
        kubelet.until(RAIL0, vfs(), SOON)


def test_the_port_of_a_shared_hca(kubelet: Kubelet, process: NodeProcess, hca: str) -> None:
    process.write([SHARED], health={"downAfter": 1, "upAfter": 1})
    healthy = {f"{pci(PF)}-{number}": True for number in range(2)}
    with process:
        kubelet.until(HCA, healthy, 120)
        pull(up=False)
        try:
            kubelet.until(HCA, dict.fromkeys(healthy, False), 120)
            process.says(f"port 1 of {hca} is DOWN since 1 s")
        finally:
            pull(up=True)
        kubelet.until(HCA, healthy, 120)


def test_failed_firmware(kubelet: Kubelet, process: NodeProcess) -> None:
    healthy = vfs()
    with process:
        kubelet.until(RAIL0, healthy, 120)
        FATAL.write_text(pci(PF))
        try:
            kubelet.until(RAIL0, dict.fromkeys(healthy, False), SOON)
            process.says(f"the firmware of {pci(PF)} has failed")
        finally:
            FATAL.write_text("none")
        kubelet.until(RAIL0, healthy, SOON)
