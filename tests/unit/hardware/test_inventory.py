"""The node's devices, in trees like /sys."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.elapsed import cost, is_proportional
from support.sysfs_tree import Tree, write

from base.state import durable
from hardware import inventory
from hardware.inventory import Inventory, Memory, Seen
from hardware.model import Device, Kind, RdmaDevice

PF, VF0, VF1, SF = "0000:3b:00.0", "0000:3b:00.2", "0000:3b:00.3", "mlx5_core.sf.4"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A PF with two VFs and a scalable function, each with an interface and an RDMA device."""
    tree = Tree(tmp_path / "sys")
    functions = [tree.pci(PF, numa_node=1, acpi_index=3), tree.pci(VF0, pf=PF, numa_node=1), tree.pci(VF1, pf=PF)]
    functions.append(tree.auxiliary(PF, SF, sfnum=88))
    for number, (path, name) in enumerate(zip(functions, ("ens1", "ens1v0", "ens1v1", "ens1s0"), strict=True)):
        tree.netdev(name, path)
        tree.rdma(f"mlx5_{number}", path, number)
    return tree


def found(tree: Tree) -> dict[str, Device]:
    return {device.id: device for device in inventory.devices(tree.root)}


def path(tree: Tree, address: str) -> Path:
    bus = "auxiliary" if address == SF else "pci"
    return (tree.root / "bus" / bus / "devices" / address).resolve()


def rdma(number: int) -> tuple[RdmaDevice]:
    base = "/dev/infiniband"
    return (
        RdmaDevice(f"mlx5_{number}", f"{base}/uverbs{number}", (f"{base}/umad{number}",), (f"{base}/issm{number}",)),
    )


def test_all_kinds(tree: Tree) -> None:
    tree.pci("0000:00:1f.0", **{"class": "0x060100"})  # no NIC
    tree.auxiliary(PF, "mlx5_core.eth.4")  # a part of a driver
    everything = found(tree)
    common = {"vendor": "15b3", "link_type": "ether", "pf": PF, "pf_netdev": "ens1"}
    assert list(everything.values()) == [
        Device(PF, Kind.PF, product="101d", driver="mlx5_core", netdevs=("ens1",), names=("ens1",), rdma=rdma(0), vfs=2,
               numa=1, acpi_index="3", **common),
        Device(VF0, Kind.VF, product="101e", driver="mlx5_core", netdevs=("ens1v0",), names=("ens1v0",), rdma=rdma(1),
               index=0, numa=1, **common),
        Device(VF1, Kind.VF, product="101e", driver="mlx5_core", netdevs=("ens1v1",), names=("ens1v1",), rdma=rdma(2),
               index=1, numa=0, **common),
        Device(SF, Kind.SF, product="101d", driver="mlx5_core.sf", netdevs=("ens1s0",), names=("ens1s0",), rdma=rdma(3),
               index=88, numa=1, **common),
    ]  # fmt: skip


@pytest.mark.parametrize("address", [PF, VF0, SF])
def test_in_a_pod(tree: Tree, address: str, tmp_path: Path) -> None:
    """No property that a selector compares is lost, even for a second inventory with the same memory."""
    kept = Inventory(tree.root, tmp_path / "state/devices.json")
    before = kept.devices()
    tree.into_a_pod(path(tree, address))
    for look in (kept, Inventory(tree.root, tmp_path / "state/devices.json")):
        after = look.devices()
        (one,) = {d for d in after if d.id == address}
        assert one.netdevs == ()
        assert [d for d in before if d.id == address] == [replace(one, netdevs=one.names)]
        assert [d for d in after if d.id != address] == [d for d in before if d.id != address]
    tree.home(path(tree, address))
    assert kept.devices() == before


def test_another_program_reads_the_memory(tree: Tree, tmp_path: Path) -> None:
    """hpn node --check shows the same as the daemon, and leaves the file alone."""
    file = tmp_path / "devices.json"
    assert inventory.devices(tree.root, file) == inventory.devices(tree.root)
    assert not file.exists()
    kept = Inventory(tree.root, file)
    kept.devices()
    tree.into_a_pod(path(tree, VF0))
    before = file.stat()
    assert inventory.devices(tree.root, file) == kept.devices()
    assert file.stat() == before


def test_two_scans_share_what_they_see() -> None:
    """A node has thousands of devices, so its memory holds each name once."""
    memory, names = Memory(None, writes=False), [["ens", f"{number}"] for number in (1, 1, 2)]
    seen = list[Seen]()
    for parts in names:
        seen.append(memory.complete(VF0, 7, "mlx5_core", Seen(("".join(parts),))))
        memory.keep()
    assert seen[1] is seen[0]
    assert seen[2] == Seen(("ens2",))


def test_in_a_pod_without_a_memory(tree: Tree) -> None:
    """Its own names and partition keys are unknown.  Its PF or PCI class implies InfiniBand."""
    for file in (tree.root / "class/net").glob("ens1*"):
        write(file.resolve(), type=32)
    before = found(tree)
    for address in (VF0, SF):
        tree.into_a_pod(path(tree, address))
    after = found(tree)
    hidden = {"netdevs": (), "names": (), "pkeys": frozenset()}
    assert [after[a] for a in (VF0, SF)] == [replace(before[a], **hidden) for a in (VF0, SF)]
    tree.into_a_pod(path(tree, PF))
    assert found(tree)[PF].link_type == "ether"
    write(path(tree, PF), **{"class": "0x020700"})
    assert {d.link_type for d in found(tree).values() if d.id != VF1} == {"infiniband"}


def test_another_device_at_the_address(tree: Tree, tmp_path: Path) -> None:
    """Memory of a VF does not apply to the next one at its address."""
    kept = Inventory(tree.root, tmp_path / "devices.json")
    kept.devices()
    link = tree.root / "bus/pci/devices" / VF0
    device = path(tree, VF0)
    tree.into_a_pod(device)
    (tree.root / "next").symlink_to(device)
    (tree.root / "next").replace(link)
    write(device, device="0x1021")
    one = next(d for d in kept.devices() if d.id == VF0)
    assert (one.names, one.product) == ((), "1021")


def test_another_driver(tree: Tree, tmp_path: Path) -> None:
    """A VF under vfio-pci has no interface, and is not selected by its former one."""
    kept = Inventory(tree.root, tmp_path / "devices.json")
    kept.devices()
    tree.into_a_pod(path(tree, VF0))
    tree.bind(path(tree, VF0), "vfio-pci")
    one = next(d for d in kept.devices() if d.id == VF0)
    assert (one.driver, one.names) == ("vfio-pci", ())


def test_a_memory_of_another_boot(tree: Tree, tmp_path: Path) -> None:
    """After a reboot, the numbers of incarnations start again."""
    file = tmp_path / "devices.json"
    Inventory(tree.root, file).devices()
    body = durable.read(file)
    assert body
    durable.write(file, body | {"boot": "another"})
    tree.into_a_pod(path(tree, VF0))
    assert next(d for d in Inventory(tree.root, file).devices() if d.id == VF0).names == ()


@pytest.mark.parametrize("text", ["", "{", '{"schema":1,"sha256":"","body":{}}', '{"boot":"","devices":{}}'])
def test_a_damaged_memory(tree: Tree, tmp_path: Path, text: str) -> None:
    file = tmp_path / "devices.json"
    file.write_text(text)
    assert Inventory(tree.root, file).devices() == inventory.devices(tree.root)


def test_no_place_for_the_memory(tree: Tree) -> None:
    assert Inventory(tree.root, Path("/proc/devices.json")).devices() == inventory.devices(tree.root)


def test_a_vf_that_is_not_complete_yet(tree: Tree) -> None:
    """The kernel makes the links between a VF and its PF after it has announced the VF."""
    kept, device = Inventory(tree.root), path(tree, VF0)
    (device / "physfn").rename(tree.root / "later")
    assert next(d for d in kept.devices() if d.id == VF0).kind is Kind.PF
    (tree.root / "later").rename(device / "physfn")
    assert next(d for d in kept.devices() if d.id == VF0) == found(tree)[VF0]


def test_an_rdma_device_of_a_driver_that_comes_later(tree: Tree) -> None:
    kept, device = Inventory(tree.root), tree.auxiliary(PF, "vendor.roce.1")
    assert "vendor.roce.1" not in {d.id for d in kept.devices()}
    tree.rdma("roce1", device, 9)
    assert next(d for d in kept.devices() if d.id == "vendor.roce.1").rdma[0].name == "roce1"


def test_without_ib_uverbs(tree: Tree) -> None:
    """The RDMA devices on the host are listed, without nodes."""
    for node in (tree.root / "class/infiniband_verbs").iterdir():
        node.unlink()
    assert [replace(r, umad=(), issm=()) for r in found(tree)[VF0].rdma] == [RdmaDevice("mlx5_1")]
    tree.into_a_pod(path(tree, VF0))
    assert found(tree)[VF0].rdma == ()


def test_two_pods_with_one_name(tree: Tree) -> None:
    """Both renamed their RDMA device to mlx5_0; the kernel allows the name in each namespace."""
    for address, number in ((VF0, 1), (VF1, 2)):
        for kind in ("infiniband_verbs", "infiniband_mad"):
            for node in (path(tree, address) / kind).iterdir():
                write(node, ibdev="mlx5_0")
        tree.into_a_pod(path(tree, address))
        assert found(tree)[address].rdma == (replace(rdma(number)[0], name="mlx5_0"),)


def test_switchdev(tree: Tree) -> None:
    """The PF's interfaces are the uplink's, and no VF's representor."""
    write(tree.root / "class/net/ens1", phys_port_name="p0")
    for name, port in (("eth0", "pf0vf0"), ("eth1", "c1pf0vf1"), ("eth2", "pf0sf88")):
        tree.netdev(name, path(tree, PF), phys_port_name=port)
    everything = found(tree)
    assert everything.keys() == {PF, VF0, VF1, SF}
    assert everything[PF].netdevs == ("ens1",)
    assert everything[VF0].pf_netdev == "ens1"
    tree.netdev("ens0", path(tree, PF))  # of another port, which is no uplink
    assert found(tree)[PF].netdevs == ("ens1", "ens0")


def test_partition_keys(tree: Tree, tmp_path: Path) -> None:
    device = tree.pci("0000:5e:00.0", **{"class": "0x020700"})
    tree.netdev("ib0", device, type=32)
    tree.rdma("mlx5_9", device, 9, pkey="0x8001")
    kept = Inventory(tree.root)
    assert next(d for d in kept.devices() if d.id == device.name).pkeys == {1}
    tree.into_a_pod(device)
    assert next(d for d in kept.devices() if d.id == device.name).pkeys == {1}
    assert found(tree)[PF].pkeys == frozenset()


def test_interfaces_of_software(tree: Tree) -> None:
    """Without the loopback interface and a bridge's ports.  A bond has its members' RDMA devices."""
    tree.netdev("lo", type=772)
    tree.netdev("tun0", type=65534)
    tree.netdev("bond0", below=["ens1"])
    tree.netdev("bond0.100", below=["bond0"])
    tree.netdev("veth0")
    tree.netdev("port0")
    (tree.root / "class/net/port0/brport").mkdir()
    tree.rdma("rxe0", None, 7, over="veth0")
    tree.rdma("rxe1", None, 8, over="ens1v1")
    assert [r.name for r in found(tree)[VF1].rdma] == ["mlx5_2", "rxe1"]
    software = {d.id: d for d in found(tree).values() if d.kind is Kind.NETDEV}
    assert software.keys() == {"bond0", "bond0.100", "veth0"}
    assert software["bond0"] == Device(
        "bond0", Kind.NETDEV, netdevs=("bond0",), names=("bond0",), link_type="ether", rdma=rdma(0), numa=1,
        used="bond0.100 of the host is over it",
    )  # fmt: skip
    assert software["bond0.100"].rdma == rdma(0)
    assert [r.name for r in software["veth0"].rdma] == ["rxe0"]


def test_virtio(tree: Tree) -> None:
    device = tree.pci("0000:00:03.0", driver="virtio-pci", vendor="0x1af4")
    (device / "virtio0").mkdir()
    tree.netdev("eth0", device / "virtio0")
    (one,) = [d for d in found(tree).values() if d.id == device.name]
    assert (one.kind, one.netdevs) == (Kind.PF, ("eth0",))


def test_vdpa(tree: Tree) -> None:
    vdpa = path(tree, VF0) / "vdpa0"
    vdpa.mkdir()
    tree.bind(vdpa, "vhost_vdpa")
    (tree.root / "bus/vdpa/devices").mkdir(parents=True)
    (tree.root / "bus/vdpa/devices/vdpa0").symlink_to(vdpa)
    assert {d.id: d.vdpa for d in found(tree).values()} == {PF: "", VF0: "vhost", VF1: "", SF: ""}


def test_nothing(tmp_path: Path) -> None:
    assert inventory.devices(tmp_path) == ()


def test_many(tmp_path: Path) -> None:
    def seconds_of(cards: int) -> float:
        kept = Inventory(cards_of(tmp_path / f"{cards}", cards).root)
        assert len(kept.devices()) == 25 * cards
        return cost(kept.devices)

    assert is_proportional(seconds_of, 1, 16)


def cards_of(folder: Path, many: int) -> Tree:
    """PFs with 24 VFs each."""
    tree = Tree(folder)
    for card in range(many):
        pf = f"0000:{card:02x}:00.0"
        tree.netdev(f"ens{card}", tree.pci(pf))
        for vf in range(24):
            device = tree.pci(f"0000:{card:02x}:{1 + vf // 8:02x}.{vf % 8}", pf=pf)
            tree.netdev(f"ens{card}v{vf}", device)
            tree.rdma(f"mlx5_{card}_{vf}", device, card * 24 + vf)
    return tree
