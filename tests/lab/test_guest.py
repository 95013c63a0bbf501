"""The lab meets the other tests' expectations: the kernel, the VFs, the RDMA devices, the wire."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from guest.kernel_log import KernelLog
from guest.machine import Guest, nics, plug, rdma, unplug
from guest.qmp import Monitor
from support.topology import Pod, ip, until


def rdma_devices(netns: str = "") -> set[str]:
    return {line.split()[1].removesuffix(":") for line in rdma("dev", netns=netns)}


def test_a_kernel_that_looks_for_a_name_among_the_hosts_links(guest: Guest, pod: Pod) -> None:
    """Kernels before 6.15 do this; no other test covers the reaction of cni/kinds/child.py."""
    done = subprocess.run(
        ["ip", "link", "add", "link", "rail0", "name", "rail1", "netns", pod.name, "type", "macvlan"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "File exists" in done.stderr, f"Linux {os.uname().release}: {done}"


def test_two_pfs_with_vfs(guest: Guest) -> None:
    pfs = list(nics.pfs())
    assert [pf.netdev for pf in pfs] == ["rail0", "rail1"]
    for pf in pfs:
        assert int((pf.path / "sriov_totalvfs").read_text()) == 7
        assert pf.driver == "igb"
        assert [vf.netdev for vf in pf.vfs] == [f"{pf.netdev}v{n}" for n in range(4)]
        for vf in pf.vfs:
            assert (vf.path / "physfn").resolve() == pf.path
            assert vf.driver == "igbvf"
        # The PF's own list of its VFs, which sets their MAC and VLAN.
        (link,) = ip("link", "show", pf.netdev)
        assert [vf["vf"] for vf in link["vfinfo_list"]] == [0, 1, 2, 3]


def test_an_rdma_device_per_vf(guest: Guest) -> None:
    assert rdma("system", "show")[0].startswith("netns exclusive")
    devices = {vf.rdma for pf in nics.pfs() for vf in pf.vfs}
    assert devices == rdma_devices() == {f"hca{rail}v{n}" for rail in range(2) for n in range(4)}


def test_an_rdma_device_is_in_one_namespace(guest: Guest, make_pod: Callable[[], Pod]) -> None:
    """The device moves, no other namespace shows it, and it returns to the host when the namespace ends."""
    one, two = make_pod(), make_pod()
    vf = next(nics.pfs()).vfs[0]
    name, all_of_them = vf.rdma, rdma_devices()
    rdma("dev", "set", name, "netns", one.name)
    assert (rdma_devices(), rdma_devices(one.name), rdma_devices(two.name)) == (all_of_them - {name}, {name}, set())
    assert vf.rdma == ""
    assert one.run("ls", "/sys/class/infiniband").stdout.split() == [name]
    ip("netns", "delete", one.name)
    until(lambda: rdma_devices() == all_of_them)
    assert vf.rdma == name


@pytest.mark.parametrize("first", ["netdev", "RDMA device"])
def test_an_rdma_device_outlives_its_netdevs_move(guest: Guest, pod: Pod, first: str) -> None:
    """Netdev and device can move in either order; together they are one port again with its GIDs, as with mlx5."""
    vf = next(nics.pfs()).vfs[1]
    name, netdev = vf.rdma, vf.netdev
    moves: list[Callable[[], object]] = [
        lambda: ip("link", "set", netdev, "netns", pod.name),
        lambda: rdma("dev", "set", name, "netns", pod.name),
    ]
    for move in moves if first == "netdev" else reversed(moves):
        move()
    pod.ip("addr", "add", "10.9.0.1/24", "dev", netdev)
    pod.ip("link", "set", netdev, "up")
    until(lambda: f"state ACTIVE physical_state LINK_UP netdev {netdev}" in rdma("link", netns=pod.name)[0])
    gids = Path("/sys/class/infiniband") / name / "ports" / "1" / "gids"
    until(lambda: "0000:0000:0000:0000:0000:ffff:0a09:0001" in pod.run("sh", "-c", f"cat {gids}/?").stdout.split())


@pytest.mark.parametrize(("one", "other"), [("rail0v0", "rail0v1"), ("rail0v2", "rail1v2")])
def test_vfs_reach_each_other(guest: Guest, make_pod: Callable[[], Pod], one: str, other: str) -> None:
    """Traffic passes through their PF, and over the wire."""
    pods = [make_pod(), make_pod()]
    for number, (pod, netdev) in enumerate(zip(pods, (one, other), strict=True), 1):
        ip("link", "set", netdev, "netns", pod.name)
        pod.ip("addr", "add", f"10.9.0.{number}/24", "dev", netdev)
        pod.ip("link", "set", netdev, "up")
    assert until(lambda: pods[0].ping("10.9.0.2", "-W", "1"))


def test_a_nic_can_be_pulled_and_put_back(guest: Guest) -> None:
    """All VFs and RDMA devices return, as the guest fixture checks."""
    with Monitor() as monitor:
        address = unplug(monitor, 1)
        assert [pf.netdev for pf in nics.pfs()] == ["rail0"]
        assert {name for name in rdma_devices() if name.startswith("hca1")} == set()
        plug(monitor, 1, address)
    assert list(nics.pfs())[1].address == address


def test_a_cable_can_be_pulled(guest: Guest) -> None:
    carrier = Path("/sys/class/net/rail1/carrier")
    # One after the other, as at the end of one test and the start of the next.
    for up in (False, True):
        with Monitor() as monitor:
            monitor.command("set_link", name="pf1", up=up)
        until(lambda up=up: carrier.read_text() == f"{up:d}\n")


@pytest.mark.parametrize(
    ("where", "complaints"),
    [("intel/igbvf/netdev.c:1 igbvf_close+0x1/0x2", 0), ("intel/igbvf/netdev.c:1 igbvf_open+0x1/0x2", 1)],
)
def test_what_fails_of_the_kernels_log(kernel_log: KernelLog, where: str, complaints: int) -> None:
    """Every WARN fails a test except one; its lines arrive one by one."""
    first, last = "------------[ cut here ]------------", "---[ end trace 0000000000000000 ]---"
    with Path("/dev/kmsg").open("w") as kmsg:
        for line in (first, f"WARNING: CPU: 0 PID: 1 at drivers/net/ethernet/{where}", "RIP: 0010", last):
            kmsg.write(f"<4>{line}\n")
            kmsg.flush()
    assert len(kernel_log.complaints()) == complaints
    assert kernel_log.complaints() == []
