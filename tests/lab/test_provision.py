"""Real PFs configured by the device file: their VFs, MTU and trust; devices in use stay unchanged."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guest.drivers import bind
from guest.machine import Guest, bring_up, insert, nics, rdma, unplug
from guest.node import PF, Node, pci
from guest.qmp import Monitor
from support.kubelet import Kubelet
from support.node_process import PROGRAM, ROOT, NodeProcess
from support.topology import Pod, ip, until

RAIL0 = "example.com/rail0"
VFS: dict[str, Any] = {"name": RAIL0, "kind": "vf", "selectors": {"rootDevices": []}}
OPTION = Path("/etc/modprobe.d/hpn-node.conf")
SOON = 60.0  # seconds: everything in here is emulated


@pytest.fixture
def address(guest: Guest) -> Iterator[str]:
    """The PCI address of rail0's PF; afterwards rail0 is as at boot."""
    address = pci(PF)
    yield address
    count(address, 0)
    ip("link", "set", name_of(address), "mtu", "1500")
    bring_up(0, address)


@pytest.fixture
def process(kubelet: Kubelet, address: str) -> NodeProcess:
    VFS["selectors"]["rootDevices"] = [address]
    process = NodeProcess(kubelet.registry.parents[1], [VFS])
    process.mounts.clear()  # /sys and /run are the guest's own
    return process


@pytest.fixture
def write(process: NodeProcess, address: str) -> Callable[..., None]:
    """A function that writes a file with a rule for rail0."""

    def write(**asked: Any) -> None:
        process.write([VFS], pfs=[{"selectors": {"pciAddresses": [address]}} | asked])

    return write


def count(address: str, vfs: int | None = None) -> int:
    """The number of the PF's VFs; with ``vfs``, set that number first."""
    path = Path(f"/sys/bus/pci/devices/{address}/sriov_numvfs")
    if vfs is not None:
        path.write_text(f"{vfs}")
    return int(path.read_text())


def name_of(address: str) -> str:
    (path,) = until(lambda: list(Path(f"/sys/bus/pci/devices/{address}/net").glob("*")))
    return path.name


def vfs(address: str) -> dict[str, bool]:
    """The PF's VFs, as kubelet should list them."""
    return {path.resolve().name: True for path in Path(f"/sys/bus/pci/devices/{address}").glob("virtfn*")}


def inodes(address: str) -> set[int]:
    """Inode numbers, which differ between VFs and later ones at the same addresses."""
    return {Path(f"/sys/bus/pci/devices/{vf}/").stat().st_ino for vf in vfs(address)}


def trusted(name: str) -> list[bool]:
    (link,) = ip("-d", "link", "show", "dev", name)
    return [vf["trust"] for vf in link["vfinfo_list"]]


def mtus(address: str) -> set[int]:
    names = {PF} | {name_of(vf) for vf in vfs(address)}
    return {link["mtu"] for link in ip("link") if link["ifname"] in names}


def dry_run(process: NodeProcess) -> tuple[list[str], int]:
    words = [*PROGRAM, "node", "--dry-run", "--config", f"{process.file}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines(), done.returncode


def test_from_no_vf(kubelet: Kubelet, process: NodeProcess, write: Callable[..., None], address: str) -> None:
    """A boot makes the VFs, and a second start changes nothing."""
    count(address, 0)
    write(numVfs=5, mtu=2000, trust=True)
    title = f"{PF} ({address})"
    assert dry_run(process) == (
        [
            f"would change: {title}: mtu 1500 -> 2000",
            f"would change: {title}: numVfs 0 -> 5, each with MTU 2000, trust",
        ],
        1,
    )
    assert count(address) == 0
    with process:
        until(lambda: len(kubelet.devices(RAIL0)) == 5, SOON)
        kubelet.until(RAIL0, vfs(address))
        assert count(address) == 5
        assert trusted(PF) == [True] * 5
        assert mtus(address) == {2000}
        process.says(f"made ready: {title}: trust of VF 0-4 -> true")
        # Provisioning is over: no later step may act.
        until(lambda: process.sleeps(1), SOON)
    assert dry_run(process) == (["nothing to change: the node is as the file asks"], 0)
    before = inodes(address)
    process.said.clear()
    with process:
        kubelet.until(RAIL0, vfs(address), SOON)
    assert inodes(address) == before
    assert [line for line in process.said if "made ready" in line or "->" in line] == []


def test_changed_while_a_pod_has_a_vf(
    kubelet: Kubelet, process: NodeProcess, write: Callable[..., None], guest: Guest, pod: Pod, address: str
) -> None:
    node = Node(guest.tmp_path)
    node.state = Path("/run/hpn")  # where hpn node looks
    write(numVfs=4)
    before = inodes(address)
    with process:
        kubelet.until(RAIL0, vfs(address), SOON)
        node.ok("ADD", pod)
        write(numVfs=2, trust=True)
        process.reload()
        said = f"pfs[0].numVfs 2: {PF} ({address}) has 4, and all of them would be removed first, but VF 0"
        assert "run: kubectl drain NODE " in process.says(f"{said} ({node.device}) belongs to hpn0 of ", SOON)
        process.says("trust of VF 1-3 -> true", SOON)
        assert trusted(PF) == [False, True, True, True]
        assert inodes(address) == before
        assert dry_run(process)[1] == 3
        assert kubelet.devices(RAIL0) == vfs(address)
        node.ok("DEL", pod)
        for number in range(1, 4):
            ip("link", "set", PF, "vf", f"{number}", "trust", "off")
        write(numVfs=2)
        process.reload()
        until(lambda: len(kubelet.devices(RAIL0)) == 2, SOON)
        assert count(address) == 2


def test_vfs_that_others_have(process: NodeProcess, write: Callable[..., None], pod: Pod, address: str) -> None:
    """The dry run refuses: a VF is in another namespace, a process drives one, and the host needs one."""
    first, second, third, fourth = sorted(vfs(address))
    before = inodes(address)
    ip("link", "set", name_of(first), "netns", pod.name)
    bind(second, "vfio-pci")
    group = Path(f"/dev/vfio/{Path(f'/sys/bus/pci/devices/{second}/iommu_group').resolve().name}")
    ip("address", "add", "10.77.0.1/24", "dev", name_of(third))
    write(numVfs=0)
    opened = os.open(group, os.O_RDWR)
    try:
        (line,), status = dry_run(process)
        assert (f"VF 0 ({first}) belongs to a namespace that holds its interface" in line, status) == (True, 3)
        assert f"VF 1 ({second}) belongs to a process that has {group} open" in line
        assert fourth not in line
    finally:
        os.close(opened)
        pod.ip("link", "set", next(iter(pod.links())), "netns", "1")
    (line,), status = dry_run(process)
    assert ("the host needs VFs: " in line and "has 10.77.0.1/24 on the host" in line, status) == (True, 3)
    with process:
        process.says("the host needs VFs: ", SOON)
    assert inodes(address) == before
    ip("address", "flush", "dev", name_of(third))
    (line,), status = dry_run(process)
    assert (line, status) == (f"would change: {PF} ({address}): numVfs 4 -> 0", 1)


def test_settings_of_a_vf_that_the_host_needs(process: NodeProcess, write: Callable[..., None], address: str) -> None:
    """The VF keeps its settings, and the others get the file's."""
    name = name_of(min(vfs(address)))
    ip("link", "set", PF, "mtu", "2000")
    ip("address", "add", "10.77.0.1/24", "dev", name)
    write(mtu=2000, trust=True)
    try:
        with process:
            process.says("made ready: ", SOON)
            for asked in ("mtu 2000", "trust true"):
                said = f"pfs[0].{asked}: {PF} ({address}): VFs in use stay as they are: the host needs VFs: "
                process.says(f"{said}'{name}' has 10.77.0.1/24", SOON)
        assert trusted(PF) == [False, True, True, True]
        (link,) = ip("link", "show", "dev", name)
        assert (link["mtu"], mtus(address)) == (1500, {1500, 2000})
    finally:
        ip("address", "flush", "dev", name)


def test_a_pf_pulled_and_plugged(
    kubelet: Kubelet, process: NodeProcess, write: Callable[..., None], address: str
) -> None:
    write(numVfs=3)
    with process:
        until(lambda: len(kubelet.devices(RAIL0)) == 3, SOON)
        with Monitor() as monitor:
            unplug(monitor, 0)
            until(lambda: not any(kubelet.devices(RAIL0).values()), SOON)
            insert(monitor, 0)
        until(lambda: sum(kubelet.devices(RAIL0).values()) == 3, SOON)
        assert count(address) == 3
        # hpn node leaves a change by somebody else alone.
        count(address, 0)
        until(lambda: not any(kubelet.devices(RAIL0).values()), SOON)
        # time: nothing is to happen
        time.sleep(3)
        assert count(address) == 0


def test_the_default_route(process: NodeProcess, write: Callable[..., None], address: str) -> None:
    write(numVfs=2, mtu=2000)
    before = inodes(address)
    ip("address", "add", "10.77.0.1/24", "dev", PF)
    ip("route", "add", "default", "via", "10.77.0.2")
    try:
        with process:
            process.says("mtu 1500 -> 2000; ", SOON)
            process.says("refused, the host's default route leaves by rail0; choose another PF")
            process.says("serves example.com/rail0")
        assert (inodes(address), mtus(address)) == (before, {1500})
    finally:
        ip("address", "flush", "dev", PF)


def test_what_is_refused_does_not_stop_the_rest(
    kubelet: Kubelet, process: NodeProcess, write: Callable[..., None], address: str
) -> None:
    count(address, 0)
    other = [pf.address for pf in nics.pfs()][1]
    rules: list[dict[str, Any]] = [
        {"selectors": {"ifNames": ["rail1"]}, "numVfs": 8},
        {"selectors": {"pciAddresses": [address]}, "numVfs": 1, "mtu": 9999},
        {"selectors": {"ifNames": ["nowhere0"]}, "numVfs": 2},
    ]
    process.write([VFS], pfs=rules)
    with process:
        until(lambda: len(kubelet.devices(RAIL0)) == 1, SOON)
        process.says(f"pfs[0].numVfs 8: rail1 ({other}) can have 7 VFs (sriov_totalvfs); write 7 or less")
        process.says(f"pfs[1].mtu 9999: {PF} ({address}) takes 9216 at most; write that or less")
    lines, status = dry_run(process)
    assert (lines[-1], status) == ("pfs[2]: this node has no PF that matches its selectors", 3)
    rules[2]["selectors"] = {"ifNames": [PF]}
    process.write([VFS], pfs=rules)
    both = f"refused: pfs[1] and pfs[2] both select {PF} ({address}), which stays as it is"
    assert [line for line in dry_run(process)[0] if line.startswith(both)]


@pytest.mark.usefixtures("exclusive")
def test_rdma_namespaces(process: NodeProcess) -> None:
    """hpn node sets the mode at once if no other namespace exists, and in any case for the next boot."""
    process.write([VFS], rdmaNamespaces="shared")
    change = "rdmaNamespaces exclusive -> shared"
    try:
        assert dry_run(process)[0] == [
            f"would change: {OPTION}: options ib_core netns_mode=Y",
            f"would change: {change}",
        ]
        with process:
            process.says(f"made ready: {change}", SOON)
            assert rdma("system", "show")[0].startswith("netns shared")
            assert OPTION.read_text().splitlines()[-1] == "options ib_core netns_mode=Y"
            process.write([VFS], rdmaNamespaces="exclusive")
            with Pod.made():
                process.reload()
                process.says("there is no network namespace but the host's; the next boot sets it", SOON)
        assert OPTION.read_text().splitlines()[-1] == "options ib_core netns_mode=N"
    finally:
        OPTION.unlink(missing_ok=True)
