"""Kind host-device with hardware: a scalable function with its RDMA device (testhca's), a VF by name, a whole PF."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guest.gid_tables import PATIENT
from guest.node import NAME, RDMA, Node, netdev, pci, rdma_devs
from guest.recovery import recovered
from support.topology import Pod, ip, until

SF, SF_NAME, SF_RDMA = "testhca.sf.1", "sf1", "hcasf1"
PARAMETER = Path("/sys/module/testhca/parameters/sf")
DEVICE = Path("/sys/bus/auxiliary/devices") / SF


def netdevs(device: Path) -> list[str]:
    return sorted(p.name for p in (device / "net").glob("*"))


@pytest.fixture
def sf(node: Node) -> Iterator[dict[str, Any]]:
    """A scalable function of rail1's PF, up, with its RDMA device; its interface as ip shows it."""
    PARAMETER.write_text(pci("rail1"))
    (name,) = until(lambda: netdevs(DEVICE))
    ip("link", "set", name, "name", SF_NAME)
    ip("link", "set", SF_NAME, "mtu", "1400", "alias", "a part of rail1", "address", "02:00:00:00:0f:01", "up")
    ip("link", "property", "add", "dev", SF_NAME, "altname", "scalable1")
    subprocess.run(["rdma", "link", "add", SF_RDMA, "type", "testhca", "netdev", SF_NAME], check=True)
    yield netdev(SF_NAME)
    PARAMETER.write_text("none")
    until(lambda: SF_RDMA not in rdma_devs() and not DEVICE.exists())


def conf(node: Node, **keys: Any) -> dict[str, Any]:
    """A configuration without a kind: the form of the deviceID decides."""
    return node.conf(**{"deviceID": SF} | keys)


def test_a_scalable_function(node: Node, pod: Pod, sf: dict[str, Any], node_file: Path) -> None:
    info = node.tmp_path / "info"
    wanted = conf(
        node, rdma=PATIENT | {"required": True, "name": "mlx5_0"}, runtimeConfig={"CNIDeviceInfoFile": str(info)}
    )
    result = node.ok("ADD", pod, wanted)
    link = pod.link()
    assert link
    assert (link["parentdev"], link["mtu"], link["address"]) == (SF, 1400, sf["address"])
    assert (rdma_devs(pod.name), SF_RDMA in rdma_devs()) == ({"mlx5_0"}, False)
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert result["interfaces"][0]["pciID"] == pci("rail1")
    assert json.loads(info.read_text())["pci"] == {"pci-address": pci("rail1"), "rdma-device": "mlx5_0"}
    assert node.checked(pod, wanted, result).exit_code == 0
    node.ok("DEL", pod, wanted)
    assert netdev(SF_NAME) == sf
    assert (SF_RDMA in rdma_devs(), info.exists(), node.state_files()) == (True, False, set())


def test_another_attachment_has_it(node: Node, make_pod: Callable[[], Pod], sf: dict[str, Any]) -> None:
    """ADD refuses the device, whichever key names it."""
    one, two = make_pod(), make_pod()
    node.ok("ADD", one, conf(node))
    path = str(DEVICE.resolve())
    for keys in ({}, {"device": SF_NAME}, {"hwaddr": sf["address"]}, {"kernelpath": path}):
        other = conf(node, kind="host-device", **{"deviceID": ...} | keys) if keys else conf(node)
        error = node.refused("ADD", two, other)
        assert (error["code"], "belongs to" in error["msg"]) == (109, True), error
    one.gone()
    node.ok("ADD", two, conf(node, kind="host-device", deviceID=..., kernelpath=path))
    assert rdma_devs(two.name) == {SF_RDMA}
    node.ok("DEL", two, conf(node))
    assert netdev(SF_NAME) == sf


def test_hidden_by_the_pod(node: Node, make_pod: Callable[[], Pod], sf: dict[str, Any]) -> None:
    """DEL finds the device in the pod's own namespace, under another name and with another MAC."""
    pod, inner = make_pod(), make_pod()
    node.ok("ADD", pod, conf(node))
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "address", "02:00:00:00:0f:99")
    pod.ip("link", "set", "hpn0", "name", "mine0", "netns", inner.name)
    node.ok("DEL", pod, conf(node))
    assert netdev(SF_NAME) == sf
    assert SF_RDMA in rdma_devs()


def test_it_is_removed_while_it_is_in_a_pod(node: Node, pod: Pod, sf: dict[str, Any]) -> None:
    node.ok("ADD", pod, conf(node))
    PARAMETER.write_text("none")
    until(lambda: pod.links() == set())
    node.ok("DEL", pod, conf(node))
    assert node.state_files() == set()


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_between_steps(node: Node, pod: Pod, sf: dict[str, Any], command: str) -> None:
    wanted = conf(node, rdma={"name": "mlx5_0"}, mtu=1300)
    for where in recovered(node, pod, command, wanted):
        assert netdev(SF_NAME) == sf, f"it is not as it was {where}"
        assert SF_RDMA in rdma_devs(), f"its RDMA device is not at home {where}"


def test_a_vf_by_its_name(node: Node, pod: Pod) -> None:
    """The pod gets the VF with its RDMA device, and the PF is not changed; kind sriov knows that the VF is taken."""
    wanted = node.conf(kind="host-device", deviceID=..., device=NAME)
    node.ok("ADD", pod, wanted)
    assert ((pod.link() or {})["parentdev"], rdma_devs(pod.name)) == (node.device, {RDMA})
    error = node.refused("ADD", pod, node.conf(), CNI_IFNAME="hpn1")
    assert (error["code"], "belongs to" in error["msg"]) == (109, True)
    node.ok("DEL", pod, wanted)


def test_a_whole_pf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The PF's VFs stay on the host; ADD refuses the PF while a pod has one of them."""
    one, two = make_pod(), make_pod()
    before, device = netdev("rail0"), pci("rail0")
    wanted = node.conf(kind="host-device", deviceID=device)
    node.ok("ADD", one)
    assert node.refused("ADD", two, wanted)["code"] == 109
    node.ok("DEL", one)
    node.ok("ADD", two, wanted)
    assert (two.link() or {})["parentdev"] == device
    two.gone()
    until(lambda: netdevs(Path("/sys/bus/pci/devices") / device))
    node.ok("DEL", two, wanted, CNI_NETNS="")
    until(lambda: netdev("rail0") == before)  # its carrier returns a moment later


def test_a_device_that_is_not_there(node: Node, pod: Pod) -> None:
    for device in ("testhca.sf.9", "0000:3b:1f.7"):
        error = node.refused("ADD", pod, node.conf(kind="host-device", deviceID=device))
        assert (error["code"], "is not on this host" in error["msg"]) == (101, True)
