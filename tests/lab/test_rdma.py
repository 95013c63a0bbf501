"""RDMA devices of attachments: their names, modes and owners."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest.machine import rdma
from guest.node import NAME, PF, RDMA, Node, macvlan, netdev, pci, rdma_devs
from support.topology import Pod, ip, until

NETLINK_KOBJECT_UEVENT = 15
MODPROBE = "options ib_core netns_mode=0"


def test_a_name_of_its_own(node: Node, pod: Pod) -> None:
    conf = node.conf(rdma={"name": "mlx5_0"})
    result = node.ok("ADD", pod, conf)
    assert rdma_devs(pod.name) == {"mlx5_0"}
    assert node.checked(pod, conf, result).exit_code == 0
    pod.run("rdma", "dev", "set", "mlx5_0", "name", "other").check_returncode()
    assert "other" in node.checked(pod, conf, result).stdout
    node.ok("DEL", pod, conf)
    assert RDMA in rdma_devs()


def test_it_comes_home_under_its_own_name(node: Node, pod: Pod) -> None:
    """udev's rules see the device's own name in the kernel's event."""
    node.ok("ADD", pod, node.conf(rdma={"name": "mlx5_0"}))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as events:
        events.bind((0, 1))
        events.settimeout(60)
        node.ok("DEL", pod)
        while not (event := events.recv(1 << 16)).startswith(b"add@") or b"SUBSYSTEM=infiniband\0" not in event:
            pass
    assert f"NAME={RDMA}".encode() in event.split(b"\0")


def test_its_name_comes_back_from_a_namespace_that_died(node: Node, pod: Pod) -> None:
    conf = node.conf(rdma={"name": "mlx5_0"})
    node.ok("ADD", pod, conf)
    pod.gone()
    node.ok("DEL", pod, conf)
    assert RDMA in rdma_devs()


def test_a_name_that_another_namespace_has(node: Node, make_pod: Callable[[], Pod]) -> None:
    one, two = make_pod(), make_pod()
    node.ok("ADD", one, node.conf(rdma={"name": "mlx5_0"}))
    error = node.refused("ADD", two, node.conf(deviceID=pci("rail0v1"), rdma={"name": "mlx5_0"}))
    assert (error["code"], "rdma.name 'mlx5_0'" in error["msg"], "choose" in error["msg"]) == (100, True, True)
    assert (two.links(), rdma_devs(two.name), node.leases()) == (set(), set(), {"10.56.0.2", "fd00:56::2"})
    node.ok("DEL", one)


def test_bound_again_while_it_was_in_a_pod(node: Node, pod: Pod) -> None:
    """Netdev and RDMA device are new ones then, at home: DEL waits for nothing."""
    driver, mac = Path("/sys/bus/pci/drivers/igbvf"), netdev()["address"]
    node.ok("ADD", pod)
    try:
        (driver / "unbind").write_text(node.device)
        (driver / "bind").write_text(node.device)
        until(lambda: any(Path(f"/sys/bus/pci/devices/{node.device}/net").glob("*")))
        (name,) = (p.name for p in Path(f"/sys/bus/pci/devices/{node.device}/net").iterdir())
        rdma("link", "add", "fresh", "type", "testhca", "netdev", name)
        node.ok("DEL", pod)
        assert node.state_files() == set()
        assert netdev()["address"] == mac
    finally:
        rdma("dev", "set", "fresh", "name", RDMA)


def test_one_that_is_no_more(node: Node, pod: Pod) -> None:
    """DEL succeeds, for example after the driver was unloaded: a failed DEL would not restore the device."""
    node.ok("ADD", pod)
    pod.run("rdma", "link", "delete", RDMA).check_returncode()
    try:
        node.ok("DEL", pod)
        assert node.state_files() == set()
        assert netdev()
    finally:
        rdma("link", "add", RDMA, "type", "testhca", "netdev", NAME)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"mode": "shared"}, ("rdma.mode shared", "exclusive mode", "rdma system set netns shared", "reboot")),
        ({"required": True, "mode": "shared"}, ("rdma.mode shared", "reboot")),
    ],
    ids=repr,
)
def test_a_vf_where_the_kernel_is_in_exclusive_mode(
    node: Node, pod: Pod, keys: dict[str, Any], says: tuple[str, ...]
) -> None:
    conf = node.conf(rdma=keys)
    error = node.refused("ADD", pod, conf)
    assert (error["code"], [s for s in says if s not in error["msg"]]) == (101, [])
    assert (pod.links(), node.state_files()) == (set(), set())
    error = node.refused("STATUS", None, conf)
    assert (error["code"], [s for s in says if s not in error["msg"]]) == (50, [])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"mode": "exclusive"}, ("rdma.mode exclusive", MODPROBE, "reboot")),
        ({"mode": "exclusive", "required": True}, ("rdma.mode exclusive", MODPROBE, "reboot")),
        ({"name": "mlx5_0"}, ("rdma.name 'mlx5_0'", MODPROBE, "reboot")),
    ],
    ids=repr,
)
def test_a_vf_where_the_kernel_is_in_shared_mode(
    node: Node, shared: None, pod: Pod, keys: dict[str, Any], says: tuple[str, ...]
) -> None:
    conf = node.conf(rdma=keys)
    for command, code in (("ADD", 101), ("STATUS", 50)):
        error = node.refused(command, pod, conf)
        assert (error["code"], [s for s in says if s not in error["msg"]]) == (code, [])
    assert (pod.links(), node.state_files()) == (set(), set())


def test_a_vf_in_shared_mode(node: Node, shared: None, pod: Pod) -> None:
    conf = node.conf(rdma={"mode": "shared", "required": True})
    assert node.call("STATUS", None, conf).exit_code == 0
    result = node.ok("ADD", pod, conf)
    assert RDMA in rdma_devs() & rdma_devs(pod.name)
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)


def test_status_looks_for_the_rdma_device_that_is_required(node: Node, hca: str) -> None:
    conf = node.conf(deviceID=..., pf=PF, rdma={"required": True})
    assert node.call("STATUS", None, conf).exit_code == 0
    rdma("link", "delete", RDMA)
    try:
        error = node.refused("STATUS", None, conf)
        assert (error["code"], "rdma.required" in error["msg"], node.device in error["msg"]) == (50, True, True)
    finally:
        rdma("link", "add", RDMA, "type", "testhca", "netdev", NAME)


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_a_master_whose_rdma_device_is_the_hosts_alone(node: Node, hca: str, pod: Pod, kind: str) -> None:
    """In exclusive mode the pod gets no RDMA device, and ADD and STATUS refuse a configuration that requires one."""
    node.ok("ADD", pod, macvlan(node, kind=kind))
    assert rdma_devs(pod.name) == set()
    node.ok("DEL", pod, macvlan(node, kind=kind))
    for command, code in (("ADD", 101), ("STATUS", 50)):
        error = node.refused(command, pod, macvlan(node, kind=kind, rdma={"required": True}))
        assert error["code"] == code
        assert [s for s in (hca, "rdma system set netns shared", "reboot", "VF") if s not in error["msg"]] == []
    assert (pod.links(), node.state_files()) == (set(), set())


def test_a_master_without_rdma(node: Node, pod: Pod) -> None:
    error = node.refused("ADD", pod, macvlan(node, rdma={"required": True}))
    assert (error["code"], PF in error["msg"]) == (101, True)
    node.ok("ADD", pod, macvlan(node))
    node.ok("DEL", pod)
    ip("link", "add", "dummy0", "type", "dummy")
    ip("link", "set", "dummy0", "up")
    try:
        error = node.refused("STATUS", None, macvlan(node, master="dummy0", rdma={"required": True}))
        assert (error["code"], "dummy0" in error["msg"]) == (50, True)
    finally:
        ip("link", "delete", "dummy0")
