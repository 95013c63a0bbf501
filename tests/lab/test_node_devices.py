"""The node's devices with real VFs, scalable functions and RDMA devices: on the host, and in pods."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guest.drivers import driven_by
from guest.node import NAME, PF, RDMA, Node, netdev, pci
from support.topology import Pod, ip, until

from hardware import inventory
from hardware.inventory import Inventory
from hardware.model import Device, Kind
from node.model import PfName, Resource, Selector, Sharing, Verbs
from node.offer import answers, needs
from node.offer.offers import offers

SF, SF_RDMA = "testhca.sf.1", "hcasf1"
PARAMETER = Path("/sys/module/testhca/parameters/sf")


@pytest.fixture
def rdma_cm() -> None:
    subprocess.run(["modprobe", "rdma_ucm"], check=True)
    until(lambda: Path("/dev/infiniband/rdma_cm").exists())


@pytest.fixture
def sf(node: Node) -> Iterator[str]:
    """A scalable function of rail1's PF, with an RDMA device; the name of its interface."""
    PARAMETER.write_text(pci("rail1"))
    (path,) = until(lambda: list(Path("/sys/bus/auxiliary/devices", SF).glob("net/*")))
    subprocess.run(["rdma", "link", "add", SF_RDMA, "type", "testhca", "netdev", path.name], check=True)
    yield path.name
    PARAMETER.write_text("none")
    until(lambda: not path.exists())


def found() -> dict[str, Device]:
    return {device.id: device for device in inventory.devices()}


def ids(devices: tuple[Device, ...], selector: Selector) -> list[str]:
    (offer,), _ = offers([Resource("ex.com", "r", Sharing.EXCLUSIVE, (selector,))], devices)
    return [unit.id for unit in offer.units]


def nodes_of(rdma_dev: str) -> dict[str, str]:
    """An RDMA device's character devices, as udev finds them."""
    classes = ("infiniband_verbs", "infiniband_mad")
    paths = [path.parent for kind in classes for path in Path("/sys/class", kind).glob("*/ibdev")]
    return {p.name.rstrip("0123456789"): p.name for p in paths if (p / "ibdev").read_text().strip() == rdma_dev}


def root(tmp_path: Path) -> Path:
    """The guest's own devices, and the test's own directory for files."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("sys", "dev"):
        (root / name).symlink_to(f"/{name}")
    return root


def test_what_the_guest_has(node: Node) -> None:
    """The devices match the output of ip and rdma."""
    everything = found()
    links = {link["ifname"]: link for link in ip("-d", "link")}
    hardware = {link["parentdev"]: name for name, link in links.items() if link.get("parentbus") == "pci"}
    assert {d.id: d.netdevs for d in everything.values() if d.kind in (Kind.PF, Kind.VF)} == {
        address: (name,) for address, name in hardware.items()
    }
    for rail in range(2):
        pf = everything[pci(f"rail{rail}")]
        assert (pf.kind, pf.vfs, pf.driver, pf.pf_netdev, pf.index) == (Kind.PF, 4, "igb", f"rail{rail}", -1)
        for number in range(4):
            vf = everything[pci(f"rail{rail}v{number}")]
            assert (vf.kind, vf.pf, vf.pf_netdev, vf.index) == (Kind.VF, pf.id, f"rail{rail}", number)
            assert (vf.driver, vf.link_type, [r.name for r in vf.rdma]) == ("igbvf", "ether", [f"hca{rail}v{number}"])
    assert {d.id for d in everything.values() if d.kind is Kind.NETDEV} == set()
    ip("link", "add", "link", PF, "name", "rail0.7", "type", "vlan", "id", "7")
    try:
        assert found()["rail0.7"].kind is Kind.NETDEV
    finally:
        ip("link", "delete", "rail0.7")


SELECTORS = [
    Selector(netdevs=frozenset({NAME})),
    Selector(pf_names=(PfName("RAIL0", (range(1),)),)),
    Selector(kinds=frozenset({Kind.VF}), link_types=frozenset({"ether"}), drivers=frozenset({"igbvf"}), rdma=True),
]


def test_a_vf_that_a_pod_has(node: Node, pod: Pod, tmp_path: Path) -> None:
    """The VF stays in its resource, also for a daemon that starts meanwhile, and its RDMA device has the pod's name."""
    kept = Inventory(memory=tmp_path / "devices.json")
    before = kept.devices()
    wanted = node.conf(rdma={"name": "mlx5_0"})
    node.ok("ADD", pod, wanted)
    assert not list(Path(f"/sys/bus/pci/devices/{node.device}/net").glob("*"))
    for look in (kept, Inventory(memory=tmp_path / "devices.json")):
        after = look.devices()
        assert [ids(after, s) for s in SELECTORS] == [ids(before, s) for s in SELECTORS]
        assert node.device in ids(after, SELECTORS[0])
        (vf,) = (device for device in after if device.id == node.device)
        assert (vf.netdevs, vf.names, vf.link_type) == ((), (NAME,), "ether")
        assert [r.name for r in vf.rdma] == ["mlx5_0"]
    node.ok("DEL", pod, wanted)
    until(lambda: kept.devices() == before)


def test_a_scalable_function(node: Node, pod: Pod, sf: str) -> None:
    device = found()[SF]
    assert (device.kind, device.netdevs, device.pf, device.pf_netdev) == (Kind.SF, (sf,), pci("rail1"), "rail1")
    assert [r.name for r in device.rdma] == [SF_RDMA]
    wanted = node.conf(deviceID=SF)
    node.ok("ADD", pod, wanted)
    selector = Selector(pf_names=(PfName("rail1"),), kinds=frozenset({Kind.SF}), rdma=True)
    assert ids(inventory.devices(), selector) == [SF]
    node.ok("DEL", pod, wanted)


def test_a_vf_that_the_pod_drives(node: Node, tmp_path: Path) -> None:
    """Selectors do not find the VF by its former name; a container gets its VFIO group."""
    kept = Inventory(memory=tmp_path / "devices.json")
    kept.devices()
    selector = Selector(drivers=frozenset({"vfio-pci"}))
    with driven_by("vfio-pci", node.device, netdev()["address"]):
        devices = kept.devices()
        assert (ids(devices, SELECTORS[0]), ids(devices, selector)) == ([], [node.device])
        (offer,), _ = offers([Resource("ex.com", "r", Sharing.EXCLUSIVE, (selector,))], devices)
        granted = answers.grant(offer, [node.device], root(tmp_path))
        (group,) = (path for path in granted.nodes if path != "/dev/vfio/vfio")
        assert stat.S_ISCHR(Path(group).stat().st_mode)
        assert (Path("/sys/kernel/iommu_groups") / Path(group).name / "devices" / node.device).exists()
    assert ids(kept.devices(), SELECTORS[0]) == [node.device]


def test_what_the_machine_lacks(node: Node, rdma_cm: None) -> None:
    """The guest is in exclusive mode, in which nothing can be shared."""
    made, _ = offers([Resource("ex.com", "r", Sharing.SHARED, (SELECTORS[2],))], inventory.devices())
    (exclusive,) = needs.obstacles(made)
    assert exclusive.startswith("ex.com/r: RDMA is in exclusive mode")


def test_a_grant(node: Node, rdma_cm: None, tmp_path: Path) -> None:
    """The nodes belong to this VF's RDMA device, and a container could open each."""
    resource = Resource("ex.com", "rail-0", Sharing.EXCLUSIVE, (SELECTORS[0],), verbs=Verbs.MANAGEMENT)
    (offer,), _ = offers([resource], inventory.devices())
    granted = answers.grant(offer, [node.device], root(tmp_path))
    there = nodes_of(RDMA)
    assert set(granted.nodes) == {f"/dev/infiniband/{name}" for name in (*there.values(), "rdma_cm")}
    for path in granted.nodes:
        assert stat.S_ISCHR(Path(path).stat().st_mode)
        if "rdma_cm" not in path and "issm" not in path:
            os.close(os.open(path, os.O_RDWR))
    told: Any = json.loads(granted.env["PCIDEVICE_EX_COM_RAIL_0_INFO"])[node.device]["rdma"]
    assert told == {kind: f"/dev/infiniband/{name}" for kind, name in there.items()} | {
        "rdma_cm": "/dev/infiniband/rdma_cm",
        "rdma_dev": RDMA,
    }
