"""Kind ipoib: children of an IPoIB interface in pods."""

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest.hca import NAME, PF, Node, ipoib
from guest.machine import rdma
from guest.node import pci
from support.node_process import PROGRAM
from support.shipped import CONF, alone, requests
from support.topology import Pod, ip, until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("masters_up")


@pytest.mark.parametrize(
    ("keys", "pkey", "mtu"),
    [
        ({}, "0xffff", 4092),
        ({"pkey": "0x8001"}, "0x8001", 4092),
        ({"pkey": "0x0002", "mtu": 2000}, "0x8002", 2000),
        ({"pkey": 0x8003, "umcast": True, "mtu": 4092}, "0x8003", 4092),
        ({"master": NAME, "pkey": 1}, "0x8001", 4092),
    ],
    ids=repr,
)
def test_attaches_and_detaches(node: Node, pod: Pod, keys: dict[str, Any], pkey: str, mtu: int) -> None:
    conf = ipoib(node, **keys)
    node.ok("STATUS", None, conf)
    result = node.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    info = link["linkinfo"]
    assert (info["info_kind"], info["info_data"]) == (
        "ipoib",
        {"key": pkey, "mode": "datagram", "umcast": f"{int('umcast' in keys):04}"},
    )
    (master,) = ip("link", "show", "dev", keys.get("master", PF))
    # A number in place of a name: the kernel does not report the namespace of the master.
    assert (link.get("link", f"if{link.get('link_index')}"), link["mtu"]) == (f"if{master['ifindex']}", mtu)
    assert "UP" in link["flags"]
    assert result["interfaces"] == [{"name": "hpn0", "mac": link["address"], "mtu": mtu, "sandbox": pod.path}]
    assert len(link["address"]) == 59
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert (pod.links(), node.state_files()) == (set(), set())
    node.ok("DEL", pod, conf)


def test_many_in_one_partition(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Several pods, one of them with two children, use one partition."""
    conf, pods = ipoib(node, pkey="0x8001"), [make_pod(), make_pod()]
    for pod, ifname in itertools.product(pods, ("hpn0", "hpn1")):
        result = node.ok("ADD", pod, conf, CNI_IFNAME=ifname)
        assert node.checked(pod, conf, result, CNI_IFNAME=ifname).exit_code == 0
    assert len({(pod.link(name) or {})["address"] for pod in pods for name in ("hpn0", "hpn1")}) == 4
    node.ok("DEL", pods[0], conf)
    assert (pods[0].links(), pods[1].links()) == ({"hpn1"}, {"hpn0", "hpn1"})
    node.ok("GC", None, conf | {"cni.dev/valid-attachments": []})
    assert (pods[0].links(), pods[1].links(), node.state_files()) == (set(), set(), set())


def test_a_name_that_the_host_has(node: Node, pod: Pod) -> None:
    conf = ipoib(node)
    result = node.ok("ADD", pod, conf, CNI_IFNAME="ib2")
    assert pod.links() == {"ib2"}
    assert node.checked(pod, conf, result, CNI_IFNAME="ib2").exit_code == 0
    node.ok("DEL", pod, conf, CNI_IFNAME="ib2")


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ({"pkey": "0x8004"}, 101, ("pkey 0x8004", "0x8001, 0x8002, 0x8003, 0xffff", "subnet manager")),
        ({"master": "ib2"}, 101, ("'ib2' is down", "ip link set ib2 up")),
        ({"master": "ib9"}, 101, ("'ib9' is not an interface",)),
        ({"master": "rail0"}, 101, ("'rail0' is not InfiniBand", "type ipoib")),
        ({"master": "lo"}, 101, ("'lo' is not InfiniBand",)),
        ({"mtu": 4093}, 7, ("mtu 4093 is above 4092", "'ib0'")),
        ({"rdma": {"required": True}}, 101, ("rdma.required", "testib0")),
    ],
    ids=repr,
)
def test_what_cannot_be(node: Node, pod: Pod, keys: dict[str, Any], code: int, says: tuple[str, ...]) -> None:
    error = node.refused("ADD", pod, ipoib(node, **keys))
    assert (error["code"], [word for word in says if word not in error["msg"]]) == (code, []), error
    assert node.refused("STATUS", None, ipoib(node, **keys))["code"] == 50
    assert (pod.links(), node.state_files()) == (set(), set())


def test_a_master_that_is_a_child(node: Node, pod: Pod) -> None:
    ip("link", "add", "link", PF, "name", "child0", "type", "ipoib", "pkey", "0x8001")
    ip("link", "set", "child0", "up")
    try:
        error = node.refused("ADD", pod, ipoib(node, master="child0"))
        assert (error["code"], "itself a child" in error["msg"]) == (101, True)
    finally:
        ip("link", "delete", "child0")


def test_a_master_with_a_larger_mtu(node: Node, pod: Pod) -> None:
    """The master is in connected mode, its children are not."""
    mode = Path(f"/sys/class/net/{PF}/mode")
    mode.write_text("connected\n")
    try:
        error = node.refused("ADD", pod, ipoib(node, mtu=9000))
        assert (error["code"], "mtu 9000 is above 4092" in error["msg"]) == (7, True), error
        assert (pod.links(), node.state_files()) == (set(), set())
    finally:
        mode.write_text("datagram\n")
        ip("link", "set", PF, "mtu", "4092")


def test_inspect(node: Node, pod: Pod) -> None:
    conf = ipoib(node, pkey="0x8002")
    node.ok("ADD", pod, conf)
    command = [*PROGRAM, "inspect", "--state-dir", str(node.state)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "over ib0, pkey 0x8002" in shown
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
    (found,) = json.loads(done.stdout)["attachments"]
    assert [found[key] for key in ("kind", "master", "pkey", "alive")] == ["ipoib", PF, "0x8002", True]
    node.ok("DEL", pod, conf)


def test_rdma_is_the_masters(node: Node, make_pod: Callable[[], Pod]) -> None:
    """In shared mode, the pod uses the master's RDMA device."""
    rdma("system", "set", "netns", "shared")
    try:
        pod, conf = make_pod(), ipoib(node, rdma={"required": True})
        info = node.tmp_path / "info"
        result = node.ok("ADD", pod, conf)
        assert node.checked(pod, conf, result).exit_code == 0
        assert json.loads(node.record(pod).read_text())["body"]["link"]["rdma_devs"] == ["testib0"]
        assert json.loads(node.record(pod).read_text())["body"]["link"]["pci"] == pci(PF)
        assert not info.exists()
        node.ok("DEL", pod, conf)
        pod.gone()
    finally:
        until(lambda: subprocess.run(["rdma", "system", "set", "netns", "exclusive"], check=False).returncode == 0)


@pytest.mark.parametrize("path", sorted(CONF.glob("*ipoib*")), ids=lambda path: path.name)
def test_the_example(node: Node, pod: Pod, path: Path) -> None:
    (conf,) = requests(path)
    alone(conf)
    result = node.ok("ADD", pod, conf)
    assert {ip["address"] for ip in result["ips"]} == pod.addresses()
    node.ok("DEL", pod, conf)
