"""Facts about PCI functions, from a tree like /sys."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from base.kernel import sysfs
from base.kernel.sysfs import PciFunction
from ctl.devices import command, devinfo, gids
from ctl.top import command as top

Command = Callable[[list[str], Path], tuple[str, int]]

COME_AND_GO = """
import os, sys
while True:
    os.makedirs(sys.argv[1])
    os.removedirs(sys.argv[1])
"""
PF, VF0, VF10 = "0000:3b:00.0", "0000:3b:10.0", "0000:3b:11.2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A PF with eleven VFs; only the first and the last exist."""
    devices = tmp_path / "bus/pci/devices"
    for address in (PF, VF0, VF10):
        (devices / address).mkdir(parents=True)
        (devices / address / "vendor").write_text("0x8086\n")
    for number in range(11):
        # virtfn10 sorts before virtfn2 as text.
        target = {0: VF0, 10: VF10}.get(number, f"0000:3b:10.{number % 8}")
        (devices / PF / f"virtfn{number}").symlink_to(f"../{target}")
    for address in (VF0, VF10):
        (devices / address / "physfn").symlink_to(f"../{PF}")
    (devices / VF0 / "driver").symlink_to("../../../bus/pci/drivers/igbvf")
    (devices / VF0 / "net/ens1f0v0").mkdir(parents=True)
    (devices / VF0 / "infiniband/mlx5_4").mkdir(parents=True)
    (devices / VF0 / "infiniband/mlx5_12").mkdir()
    (tmp_path / "class/net/ens1f0").mkdir(parents=True)
    (tmp_path / "class/net/ens1f0/device").symlink_to(f"../../../bus/pci/devices/{PF}")
    (tmp_path / "class/net/lo").mkdir()
    return tmp_path


def test_vf(root: Path) -> None:
    assert sysfs.function(VF0, root) == PciFunction(VF0, "igbvf", PF, ("ens1f0v0",), ("mlx5_12", "mlx5_4"))


def test_an_ipoib_interface_is_complete_with_its_last_file(root: Path) -> None:
    """A child of it never has that file."""
    names = ("a-child", "ib0")
    for name in names:
        (root / "class/net" / name).mkdir()
        (root / "class/net" / name / "pkey").touch()
    assert sysfs.ipoib_netdev(names, root) == ""
    (root / "class/net/ib0/delete_child").touch()
    assert sysfs.ipoib_netdev(names, root) == "ib0"


@pytest.mark.parametrize(
    ("ports", "own"),
    [
        # The kernel's own names, and OFED's udev rule for representors.
        ({"ens1f0np0": "p0", "ens1f0npf0vf0": "pf0vf0", "ens1f0npf0vf1": "pf0vf1"}, ["ens1f0np0"]),
        ({"ens1f0_0": "pf0vf0", "ens1f0_1": "pf0vf1", "ens1f0np0": "p0"}, ["ens1f0np0"]),
        ({"rail0": "p0", "eth0": "pf0vf0", "eth1": "pf0sf88", "eth2": "c1pf0vf0", "eth3": "c1pf0"}, ["rail0"]),
        # The second of two bonded PFs; and a split port.
        ({"eth1": "pf1vf0", "ens1f1np1": "p1"}, ["ens1f1np1"]),
        ({"eth1": "pf1vf0", "ens1f1np1s0": "p1s0"}, ["ens1f1np1s0"]),
        # Older kernels do not report it for the uplink, or do not number the representors.
        ({"eth0": "pf0vf0", "rail0": ""}, ["rail0"]),
        ({"ens1f0": "", "ens1f0_0": "0", "rail0": "p0"}, ["rail0", "ens1f0", "ens1f0_0"]),
        # Two ports of one function; and one for which drivers in legacy mode report nothing.
        ({"ens2": "p0", "ens2d1": "p1"}, ["ens2", "ens2d1"]),
        ({"ens2": "", "ens2d1": ""}, ["ens2", "ens2d1"]),
        ({"ens2": ""}, ["ens2"]),
        # The uplink is in a pod.
        ({"eth0": "pf0vf0", "eth1": "pf0vf1"}, []),
        ({}, []),
    ],
    ids=str,
)
def test_own_interfaces(root: Path, ports: dict[str, str], own: list[str]) -> None:
    for name, port in ports.items():
        (root / "bus/pci/devices" / PF / "net" / name).mkdir(parents=True)
        (root / "class/net" / name).mkdir(exist_ok=True)
        (root / "class/net" / name / "phys_port_name").write_text(f"{port}\n")
    function = sysfs.function(PF, root)
    assert function
    assert (list(sysfs.own_netdevs(function.netdevs, root)), sysfs.uplink(function, root)) == (own, "".join(own[:1]))


def test_vf_whose_devices_are_elsewhere(root: Path) -> None:
    """The net/ and infiniband/ of a function are empty or missing while a pod has its devices."""
    assert sysfs.function(VF10, root) == PciFunction(VF10, "", PF, (), ())


def test_pf_is_no_vf(root: Path) -> None:
    function = sysfs.function(PF, root)
    assert function
    assert function.pf == ""


@pytest.mark.parametrize("address", ["0000:3b:00.7", "", "../../../etc", "mlx5_core.sf.4"])
def test_no_function(root: Path, address: str) -> None:
    found = sysfs.function(address, root)
    assert found is None


@pytest.mark.parametrize("ask", [sysfs.function, sysfs.device, sysfs.incarnation, sysfs.device_of])
def test_a_sys_that_is_not_mounted(tmp_path: Path, ask: Callable[[str, Path], object]) -> None:
    """It proves nothing about any device."""
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} shows no devices: .*mount -t sysfs"):
        ask(VF0, tmp_path)


@pytest.mark.parametrize("asked", [command.answer, gids.answer, devinfo.answer, top.answer])
def test_a_command_that_shows_devices_says_so(tmp_path: Path, asked: Command) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} shows no devices"):
        asked([], tmp_path)


def test_incarnation(root: Path) -> None:
    """A directory keeps its number; another one at the same path has another number."""
    first = sysfs.incarnation(VF0, root)
    assert first == sysfs.incarnation(VF0, root) > 0
    (root / "bus/pci/devices" / VF0).rename(root / "elsewhere")
    assert sysfs.incarnation(VF0, root) == 0
    (root / "bus/pci/devices" / VF0).mkdir()
    assert sysfs.incarnation(VF0, root) not in (0, first)


def test_vfs_in_the_order_of_their_numbers(root: Path) -> None:
    found = sysfs.vfs(PF, root)
    assert len(found) == 11
    assert (found[0], found[10]) == (VF0, VF10)
    assert sysfs.vfs(VF0, root) == ()


@pytest.fixture
def port(root: Path) -> Path:
    """The VF's InfiniBand port, in this namespace."""
    (root / "bus/pci/devices" / VF0 / "infiniband/mlx5_12").rmdir()
    device = root / "bus/pci/devices" / VF0 / "infiniband/mlx5_4"
    (device / "ports/1/gids").mkdir(parents=True)
    (device / "node_guid").write_text("0011:2233:4455:6677\n")
    (device / "ports/1/gids/0").write_text("fe80:0000:0000:0000:1122:3344:5566:7788\n")
    return device


def test_guids(root: Path, port: Path) -> None:
    assert sysfs.guids(VF0, root) == ("00:11:22:33:44:55:66:77", "11:22:33:44:55:66:77:88")
    assert sysfs.guids(VF10, root) is None


@pytest.mark.parametrize("file", ["node_guid", "ports/1/gids/0"])
def test_guids_of_a_device_that_goes(root: Path, port: Path, file: str) -> None:
    (port / file).unlink()
    assert sysfs.guids(VF0, root) is None


def test_rdma_names_in_whatever_namespace(root: Path) -> None:
    for number, name in enumerate(("mlx5_4", "mlx5_12")):
        (root / "bus/pci/devices" / VF10 / f"infiniband_verbs/uverbs{number}").mkdir(parents=True)
        (root / "bus/pci/devices" / VF10 / f"infiniband_verbs/uverbs{number}/ibdev").write_text(f"{name}\n")
    assert sysfs.rdma_names(VF10, root) == ("mlx5_12", "mlx5_4")
    assert sysfs.rdma_names(VF0, root) == ()


def test_an_rdma_device_that_comes_and_goes(root: Path) -> None:
    """As when its namespace ends."""
    verbs = root / "bus/pci/devices" / VF0 / "infiniband_verbs"
    (verbs.parent / "kept").mkdir()
    with subprocess.Popen([sys.executable, "-c", COME_AND_GO, verbs / "uverbs0"]) as other:
        try:
            for _ in range(5000):
                assert sysfs.rdma_names(VF0, root) == ()
        finally:
            other.kill()


def test_address_of(root: Path) -> None:
    assert sysfs.address_of("ens1f0", root) == PF
    assert sysfs.address_of("lo", root) == ""
    assert sysfs.address_of("absent", root) == ""


@pytest.mark.parametrize(
    ("dev_port", "keys"), [("0\n", (0x7FFF, 0x8001)), ("1\n", (0x0002,)), ("", (0x7FFF, 0x8001)), ("2\n", ())]
)
def test_pkeys(root: Path, dev_port: str, keys: tuple[int, ...]) -> None:
    """Only the interface's own port counts; empty places of the table hold no key, or no partition's."""
    netdev, tables = root / "class/net/ens1f0", {1: ["0x7fff", "0x8001", "0x0000", "0x8000", ""], 2: ["0x0002"]}
    (netdev / "dev_port").write_text(dev_port)
    for port, table in tables.items():
        pkeys = netdev / f"device/infiniband/mlx5_0/ports/{port}/pkeys"
        pkeys.mkdir(parents=True)
        for place, key in enumerate(table):
            (pkeys / str(place)).write_text(f"{key}\n" if key else "")
    assert sysfs.pkeys("ens1f0", root) == keys


def test_pkeys_of_what_is_no_ipoib_interface(root: Path) -> None:
    assert (sysfs.pkeys("lo", root), sysfs.pkeys("absent", root)) == ((), ())


def test_functions_under(root: Path) -> None:
    """A VLAN over a bond of two, one of which has no PCI function."""
    net = root / "class/net"
    for upper, lower in (("bond0.5", "bond0"), ("bond0", "ens1f0"), ("bond0", "lo")):
        (net / upper).mkdir(exist_ok=True)
        (net / upper / f"lower_{lower}").symlink_to(f"../{lower}")
    assert [f.address for f in sysfs.functions_under("ens1f0", root)] == [PF]
    assert [f.address for f in sysfs.functions_under("bond0.5", root)] == [PF]
    assert sysfs.functions_under("lo", root) == []
    assert sysfs.functions_under("nosuch0", root) == []


SF = "mlx5_core.sf.4"


@pytest.fixture
def with_sf(root: Path) -> Path:
    """The tree, with a scalable function of the PF, and a virtio NIC."""
    for bus, parent, name, netdev in (
        ("auxiliary", PF, SF, "sf4"),
        ("virtio", "0000:00:03.0", "virtio0", "eth0"),
    ):
        folder = root / "bus/pci/devices" / parent / name
        (folder / "net" / netdev).mkdir(parents=True)
        (folder.parent / "vendor").write_text("0x1af4\n")
        (root / "bus" / bus / "devices").mkdir(parents=True)
        (root / "bus" / bus / "devices" / name).symlink_to(folder)
        (root / "class/net" / netdev).mkdir(parents=True)
        (root / "class/net" / netdev / "device").symlink_to(folder)
    sf = root / "bus/pci/devices" / PF / SF
    (sf / "driver").symlink_to("../../../../bus/auxiliary/drivers/mlx5_core.sf")
    (sf / "infiniband/mlx5_7").mkdir(parents=True)
    (sf / "infiniband_verbs/uverbs7").mkdir(parents=True)
    (sf / "infiniband_verbs/uverbs7/ibdev").write_text("mlx5_7\n")
    return root


def test_device_of_any_bus(with_sf: Path) -> None:
    assert sysfs.device(SF, with_sf) == PciFunction(SF, "mlx5_core.sf", "", ("sf4",), ("mlx5_7",))
    assert sysfs.device(VF0, with_sf) == sysfs.function(VF0, with_sf)
    assert sysfs.function(SF, with_sf) is None
    for unknown in ("", "mlx5_core.sf.5", "../../etc"):
        assert sysfs.device(unknown, with_sf) is None
    assert sysfs.rdma_names(SF, with_sf) == ("mlx5_7",)
    assert sysfs.incarnation(SF, with_sf) > 0 == sysfs.incarnation("mlx5_core.sf.5", with_sf)


def test_pci_function_of_a_device(with_sf: Path) -> None:
    devices = {address: sysfs.pci_of(address, with_sf) for address in (VF0, SF, "virtio0", "virtio1")}
    assert devices == {VF0: VF0, SF: PF, "virtio0": "0000:00:03.0", "virtio1": ""}


def test_which_device_has_the_netdev(with_sf: Path) -> None:
    """Below a virtio NIC's PCI function, the virtio device has it; a PF has its own, with any devices below."""
    assert sysfs.with_netdev("0000:00:03.0", with_sf) == sysfs.with_netdev("virtio0", with_sf) == "virtio0"
    assert (sysfs.with_netdev(PF, with_sf), sysfs.with_netdev(SF, with_sf)) == (PF, SF)
    assert [sysfs.device_of(name, with_sf) for name in ("sf4", "eth0", "ens1f0", "lo")] == [SF, "virtio0", PF, ""]
