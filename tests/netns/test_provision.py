"""PFs are provisioned while other programs change them.  Changes since the first check are checked again, under the
lock of an ADD's choice.  The functions are the test's own tree, and their interfaces are real."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import pci
from support.sysfs_tree import Tree
from support.topology import Host, Pod, ip, open_files, until

from base.child_process import Child
from base.kernel import sysfs
from base.protocol.spec import Key
from base.state import journal, owned
from base.state.pod import Identity
from base.state.record import Record
from hardware import inventory, users
from hardware.model import Kind
from node.log import Topics
from node.model import PfRule, Selector, Settings
from node.provision import apply, provisioning

PF, VFS = "0000:3b:00.0", ("0000:3b:00.2", "0000:3b:00.3")
RAIL0 = f"rail0 ({PF})"
SOON = 60.0  # seconds


@pytest.fixture
def tree(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The PF of rail0 with two VFs; their interfaces have another MTU than the PF's."""
    tree = Tree(tmp_path / "sys")
    root = tree.root
    pci.is_sys(root, monkeypatch)
    monkeypatch.setattr(sysfs, "SYS", root)
    monkeypatch.setattr(users.user, "__defaults__", (root, tmp_path / "vfio"))
    monkeypatch.setattr(inventory.devices, "__defaults__", (root, None))
    monkeypatch.setattr(inventory, "MEMORY", tmp_path / "devices.json")
    tree.netdev("rail0", tree.pci(PF, driver="igb", sriov_totalvfs=7))
    ip("link", "add", "vf0", "mtu", "1400", "type", "veth", "peer", "name", "vf1", "mtu", "1400")
    for number, vf in enumerate(VFS):
        tree.netdev(f"vf{number}", tree.pci(vf, pf=PF, driver="igbvf"))
    return tree


def settings(**asked: Any) -> Settings:
    selector = Selector(kinds=frozenset({Kind.PF}), netdevs=frozenset({"rail0"}))
    return Settings((), "", pfs=(PfRule(selector, "pfs[0]", **asked),))


def mtus(*names: str) -> list[int]:
    return [link["mtu"] for name in names for link in ip("link", "show", "dev", name)]


def attached(state: Path, device: str, **link: Any) -> None:
    """Write the record of a pod that holds the device."""
    link |= {"device": device, "incarnation": sysfs.incarnation(device)}
    record = Record(
        "rails", Key("c1", "hpn0"), "/n", Identity(1, 1), kind="sriov", link=link, config={}, pod="default/a"
    )
    with journal.lock(state, record.network, record.key) as entry:
        entry.save(record)


def meanwhile(state: Path, asked: Settings, change: Callable[[], object]) -> apply.Report:
    """The report of a run with a change between its check and its first action."""
    reader, writer = os.pipe()
    before = children()
    child = Child(lambda: os.read(reader, 1) and apply.apply(asked))
    (pid,) = children() - before
    try:
        with owned.lock(PF):
            os.write(writer, b"x")
            until(lambda: waits(pid), SOON)
            change()
    except BaseException:
        child.end()
        raise
    finally:
        os.close(reader)
        os.close(writer)
    report = child.answer()
    assert isinstance(report, apply.Report)
    return report


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def waits(pid: str) -> bool:
    """Report whether the process has opened a device's lock."""
    return any("/locks/device-" in path for path in open_files(pid))


def test_what_it_was_looked_at_for_is_done(host: Host, tree: Tree) -> None:
    report = meanwhile(host.state, settings(mtu=1500), lambda: None)
    assert (report.done, report.refused) == ((f"{RAIL0}: mtu of VF 0-1 1400 -> 1500",), ())
    assert mtus("vf0", "vf1") == [1500, 1500]


def test_a_pf_in_switchdev_mode(host: Host, tree: Tree) -> None:
    """The representor of a VF is left alone, although it sorts before the PF's own interface."""
    (tree.root / "class/net/rail0/phys_port_name").write_text("p0\n")
    tree.netdev("eth0", tree.root / "devices/pci0000:00" / PF, phys_port_name="pf0vf0")
    ip("link", "add", "eth0", "mtu", "1300", "type", "veth", "peer", "name", "eth1")
    ip("link", "set", "rail0", "mtu", "1450")
    report = apply.apply(settings(mtu=1500))
    assert (report.refused, mtus("rail0", "eth0")) == ((), [1500, 1300])


def test_the_rdma_devices_of_new_vfs_are_waited_for(host: Host, tree: Tree) -> None:
    """Provisioning waits for the RDMA devices of new VFs, which a driver creates after the interfaces.  A VF offered
    earlier would reach a container without RDMA."""
    pf, others = tree.root / "devices/pci0000:00" / PF, ("0000:3b:00.4", "0000:3b:00.5")
    tree.rdma("mlx5_0", pf, 0)

    def drive() -> None:
        until(lambda: (pf / "sriov_numvfs").read_text() == "4\n", SOON)
        paths = [tree.pci(vf, pf=PF, driver="mlx5_core") for vf in others]
        for number, path in enumerate(paths, 2):
            tree.netdev(f"vf{number}", path)
        # time: a driver that takes its time
        time.sleep(0.5)
        for number, path in enumerate((*(pf.parent / vf for vf in VFS), *paths), 1):
            tree.rdma(f"mlx5_{number}", path, number)

    with ThreadPoolExecutor() as threads:
        driver = threads.submit(drive)
        apply.apply(settings(num_vfs=4))
        found = [sysfs.names(f"{pf.parent / vf}/infiniband") for vf in others]
        driver.result()
    assert found == [("mlx5_3",), ("mlx5_4",)]


def bonded(tree: Tree, *, rdma: int, driver: str = "igb") -> None:
    """Put rail0 and another PF into a bond, with RDMA devices for the first ``rdma`` of them.  mlx5 keeps one device
    for both of its PFs."""
    functions = tree.root / f"devices/pci0000:00/{PF}", tree.pci("0000:3c:00.0", driver=driver)
    tree.netdev("rail1", functions[1])
    tree.netdev("bond0", below=["rail0", "rail1"])
    (tree.root / "class/net/bond0/bonding").mkdir()
    for number in range(2):
        (tree.root / f"class/net/rail{number}/master").symlink_to("../bond0")
    for number in range(rdma):
        tree.rdma(f"mlx5_{number}", functions[number], number)


def test_the_pf_shares_its_rdma_device_by_a_bond(host: Host, tree: Tree) -> None:
    bonded(tree, rdma=1)
    report = apply.apply(settings(num_vfs=4))
    assert (report.done, ["members of bond0 (RoCE LAG)" in one for one in report.refused]) == ((), [True])
    assert (tree.root / f"bus/pci/devices/{PF}/sriov_numvfs").read_text() == "2\n"


def test_a_bond_that_comes_meanwhile(host: Host, tree: Tree) -> None:
    report = meanwhile(host.state, settings(num_vfs=4), lambda: bonded(tree, rdma=1))
    assert (report.done, ["members of bond0 (RoCE LAG)" in one for one in report.refused]) == ((), [True])
    assert (tree.root / f"bus/pci/devices/{PF}/sriov_numvfs").read_text() == "2\n"


def test_a_bond_of_pfs_that_have_an_rdma_device_each(host: Host, tree: Tree) -> None:
    bonded(tree, rdma=2)
    assert apply.apply(settings(num_vfs=4)).done == (f"{RAIL0}: numVfs 2 -> 4",)


def test_a_bond_with_a_nic_that_has_no_rdma(host: Host, tree: Tree) -> None:
    """In a bond with a NIC of another driver, the RDMA device is the PF's own, so its VFs can change."""
    bonded(tree, rdma=1, driver="ixgbe")
    assert apply.apply(settings(num_vfs=4)).done == (f"{RAIL0}: numVfs 2 -> 4",)


def test_the_host_needs_a_vf(host: Host, tree: Tree) -> None:
    ip("address", "add", "10.77.0.1/24", "dev", "vf0")
    report = apply.apply(settings(mtu=1300))
    (said,) = report.refused
    assert said.startswith(
        f"pfs[0].mtu 1300: {RAIL0} has 1500, and another MTU may interrupt its VFs, but the host needs"
    )
    assert (report.done, mtus("rail0", "vf0", "vf1")) == ((), [1500, 1400, 1400])


def test_a_pods_vf_that_comes_home_with_another_mtu(host: Host, tree: Tree) -> None:
    tree.into_a_pod(tree.root / "devices/pci0000:00" / VFS[0])
    attached(host.state, VFS[0], home={"mtu": 1400})
    report = apply.apply(settings(mtu=1500))
    (said,) = report.refused
    assert f"VFs in use stay as they are: VF 0 ({VFS[0]}) belongs to hpn0 of default/a, " in said
    assert report.done == (f"{RAIL0}: mtu of VF 1 1400 -> 1500",)


def test_the_host_needs_a_vf_meanwhile(host: Host, tree: Tree) -> None:
    """A VF that the host starts to need is left to the next round; the other VF is changed."""
    report = meanwhile(host.state, settings(mtu=1500), lambda: ip("address", "add", "10.77.0.1/24", "dev", "vf0"))
    (said,) = report.refused
    assert "VFs in use stay as they are: the host needs VFs: 'vf0' has 10.77.0.1/24 on the host" in said
    assert (report.done, mtus("vf0", "vf1")) == ((f"{RAIL0}: mtu of VF 1 1400 -> 1500",), [1400, 1500])


def test_a_pod_gets_a_vf_meanwhile(host: Host, tree: Tree) -> None:
    report = meanwhile(host.state, settings(num_vfs=0), lambda: attached(host.state, VFS[1]))
    (said,) = report.refused
    assert f"VF 1 ({VFS[1]}) belongs to hpn0 of default/a" in said
    assert report.done == ()


def test_a_pod_gets_the_pf_meanwhile(host: Host, tree: Tree) -> None:
    report = meanwhile(host.state, settings(mtu=1300), lambda: attached(host.state, PF))
    (said,) = report.refused
    assert "mtu 1500 -> 1300" in said
    assert "refused while hpn0 of default/a, container c1, network rails has the PF; delete that" in said
    assert (report.done, mtus("rail0")) == ((), [1500])


def test_the_host_gets_its_default_route_meanwhile(host: Host, tree: Tree) -> None:
    """The PF is left alone because the host's default route appears on it meanwhile."""

    def route() -> None:
        ip("address", "add", "10.77.0.1/24", "dev", "rail0")
        ip("route", "add", "default", "via", "10.77.0.2")

    report = meanwhile(host.state, settings(mtu=1300), route)
    (said,) = report.refused
    assert "mtu 1500 -> 1300; " in said
    assert "refused, the host's default route leaves by rail0; choose another PF" in said
    assert (report.done, mtus("rail0")) == ((), [1500])


def test_somebody_makes_vfs_meanwhile(host: Host, tree: Tree) -> None:
    """VFs that another program creates stay, because their number matches the file."""
    report = meanwhile(host.state, settings(num_vfs=3), lambda: tree.pci("0000:3b:00.4", pf=PF, driver=""))
    assert (report.done, report.refused) == ((), ())


def test_a_pods_macvlan_over_the_pf(host: Host, tree: Tree, pod: Pod) -> None:
    """A PF with a pod's macvlan keeps its MTU, because the kernel would lower the macvlan's, too."""
    ip("link", "add", "link", "rail0", "name", "net1", "netns", pod.name, "type", "macvlan")
    report = apply.apply(settings(mtu=1300))
    (said,) = report.refused
    assert f"{RAIL0} has 1500, and is the master of a macvlan in the namespace {pod.path}: a smaller MTU" in said
    link = pod.link("net1")
    assert (report.done, mtus("rail0"), link and link["mtu"]) == ((), [1500], 1500)
    pod.ip("link", "delete", "net1")
    assert apply.apply(settings(mtu=1300)).refused == ()
    assert mtus("rail0") == [1300]


def test_a_pods_macvlan_over_a_vf(host: Host, tree: Tree, pod: Pod) -> None:
    ip("link", "add", "link", "vf0", "name", "net1", "netns", pod.name, "type", "macvlan")
    said, *_ = apply.apply(settings(num_vfs=0)).refused
    assert f"the host needs VFs: 'vf0' is the master of a macvlan in the namespace {pod.path}, then run" in said
    assert apply.apply(settings(mtu=1500)).done == (f"{RAIL0}: mtu of VF 1 1400 -> 1500",)
    assert mtus("vf0", "vf1") == [1400, 1500]


@pytest.fixture
def stubborn(tree: Tree) -> Path:
    """The PF's number of VFs, as 2 now, in a file of the kernel that takes 0 to 2 and refuses 8 with EINVAL."""
    sysctl, file = Path("/proc/sys/net/ipv4/tcp_ecn"), tree.root / "devices/pci0000:00" / PF / "sriov_numvfs"
    sysctl.write_text("2")
    file.unlink()
    file.symlink_to(sysctl)
    (file.parent / "sriov_totalvfs").write_text("8\n")
    return file


def test_a_refused_number_leaves_the_former_one(host: Host, stubborn: Path) -> None:
    report = apply.apply(settings(num_vfs=8))
    words = f"{RAIL0}: numVfs 2 -> 8: Invalid argument; it has 2 again, and hpn node tries again later; see: dmesg"
    assert (stubborn.read_text(), report.done, report.refused) == ("2\n", (), (words,))
    assert report.again == {PF}


def test_a_number_that_may_not_be_written_is_not_tried_again(host: Host, tree: Tree) -> None:
    """Here a sysctl that not even root can write, as /sys with AppArmor."""
    pf = tree.root / "devices/pci0000:00" / PF
    for link in pf.glob("virtfn*"):
        link.unlink()
    (pf / "sriov_numvfs").unlink()
    (pf / "sriov_numvfs").symlink_to("/proc/sys/fs/aio-nr")
    report = apply.apply(settings(num_vfs=2))
    assert (report.done, report.again) == ((), frozenset())
    assert f"{RAIL0}: numVfs 0 -> 2: /sys is closed to it by AppArmor or SELinux" in report.refused[0]


def test_a_killed_process_is_tried_again(
    host: Host, tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel kills the child for memory, as any process.  Nobody has to reload the file."""
    monkeypatch.setattr(provisioning, "AGAIN", 0.05)
    loop, topics = asyncio.new_event_loop(), Topics()
    node = provisioning.Provisioning(loop, topics, lambda: None)
    with owned.lock(PF):
        node.configure(settings(mtu=1600))
        node.update(inventory.devices(tree.root))
        assert node._run
        os.kill(node._run.child._pid, signal.SIGKILL)

        async def until_noted() -> None:
            while "provisioning" not in topics.problems:
                # time: the pace of a loop with a deadline
                await asyncio.sleep(0.01)

        loop.run_until_complete(asyncio.wait_for(until_noted(), SOON))

    async def until_made() -> None:
        while "provisioning" in topics.problems or mtus("rail0") != [1600]:
            # time: the pace of a loop with a deadline
            await asyncio.sleep(0.01)

    loop.run_until_complete(asyncio.wait_for(until_made(), SOON))
    node.close()
    loop.close()
    assert "the process that makes the node ready ended with status -9; it is tried again" in capsys.readouterr().err


def test_a_refused_number_is_tried_again(
    host: Host, tree: Tree, stubborn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver takes it later, and nothing else happens meanwhile.  The log has the refusal once."""
    monkeypatch.setattr(provisioning, "AGAIN", 0.05)
    loop, topics = asyncio.new_event_loop(), Topics()
    node = provisioning.Provisioning(loop, topics, lambda: None)
    node.configure(settings(num_vfs=8))
    node.update(inventory.devices(tree.root))

    async def until_taken() -> None:
        while "provisioning" not in topics.problems:
            # time: the pace of a loop with a deadline
            await asyncio.sleep(0.01)
        stubborn.unlink()
        stubborn.write_text("2\n")
        while "provisioning" in topics.problems or stubborn.read_text() != "8\n":
            # time: the pace of a loop with a deadline
            await asyncio.sleep(0.01)

    loop.run_until_complete(asyncio.wait_for(until_taken(), SOON))
    node.close()
    loop.close()
    assert capsys.readouterr().err.count("numVfs 2 -> 8: Invalid argument") == 1
