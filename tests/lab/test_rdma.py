"""RDMA devices of attachments: their names, their modes, and whose they are."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_interface
from pathlib import Path
from typing import Any

import pytest
from guest.machine import rdma
from guest.node import NAME, PF, RDMA, Node, netdev, pci, rdma_devs
from topology import Pod, ip, until

from cni.state import durable

V1, V2 = "IB/RoCE v1", "RoCE v2"
LENGTH = 64  # of testhca's tables
MODPROBE = "options ib_core netns_mode=0"
HCA = "hcapf"
PATIENT = {"gidTimeout": 30}  # where all is emulated, and others do so beside us
ROOT = Path(__file__).parents[2]


@pytest.fixture
def shared(node: Node) -> Iterator[None]:
    """The kernel in shared mode, which it changes to and from while there is no namespace but the first."""
    until(lambda: _set_mode("shared"))
    yield
    until(lambda: _set_mode("exclusive"))


@pytest.fixture
def hca(node: Node) -> Iterator[str]:
    """An RDMA device of the PF, and its name."""
    rdma("link", "add", HCA, "type", "testhca", "netdev", PF)
    yield HCA
    rdma("link", "delete", HCA)


def _set_mode(mode: str) -> bool:
    return subprocess.run(["rdma", "system", "set", "netns", mode], capture_output=True, check=False).returncode == 0


def macvlan(node: Node, **keys: Any) -> dict[str, Any]:
    return node.conf(**{"deviceID": ..., "master": PF} | keys)


def table(device: str, netns: str = "") -> dict[int, tuple[str, str, str]]:
    """A GID table as a namespace's own /sys shows it: index -> GID, type and netdev."""
    script = (
        f"cd /sys/class/infiniband/{device}/ports/1; for i in $(ls gids); do read -r gid <gids/$i; "
        "case $gid in *[1-9a-f]*) echo $i $gid $(cat gid_attrs/ndevs/$i) $(cat gid_attrs/types/$i) ;; esac; done"
    )
    where = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*where, "sh", "-c", script], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    return {int(index): (gid, kind, netdev) for index, gid, netdev, kind in rows}


def gid(address: str) -> str:
    ip = ip_interface(address).ip
    return (ip if ip.version == 6 else IPv6Address(f"::ffff:{ip}")).exploded


def recorded(node: Node, pod: Pod) -> dict[tuple[str, str, int, str], int]:
    """What ADD found: address, device, port and type -> index."""
    body = durable.read(node.record(pod))
    assert body
    return {(g["address"], g["device"], g["port"], g["type"]): g["index"] for g in body["gids"]}


def with_info(conf: dict[str, Any], file: Path) -> dict[str, Any]:
    return conf | {"runtimeConfig": {"CNIDeviceInfoFile": str(file)}}


def assert_found(node: Node, pod: Pod, device: str) -> None:
    """Every address of the pod, v1 and v2, where the table has it."""
    found, there = recorded(node, pod), table(device, pod.name)
    assert found.keys() == {(a.partition("/")[0], device, 1, kind) for a in pod.addresses() for kind in (V1, V2)}
    for (address, _, _, kind), index in found.items():
        assert there[index] == (gid(address), kind, "hpn0")


@contextmanager
def filled(master: str, free: int) -> Iterator[None]:
    """The master's table with as many entries left as this."""
    addresses = [f"10.99.0.{n}/32" for n in range(1, (LENGTH - len(table(HCA)) - free) // 2 + 1)]
    try:
        for address in addresses:
            ip("address", "add", address, "dev", master)
        until(lambda: len(table(HCA)) == LENGTH - free)
        yield
    finally:
        for address in addresses:
            ip("address", "del", address, "dev", master)


def test_a_name_of_its_own(node: Node, pod: Pod) -> None:
    conf = node.conf(rdma={"name": "mlx5_0"})
    result = node.ok("ADD", pod, conf)
    assert rdma_devs(pod.name) == {"mlx5_0"}
    assert node.checked(pod, conf, result).exit_code == 0
    pod.run("rdma", "dev", "set", "mlx5_0", "name", "other").check_returncode()
    assert "other" in node.checked(pod, conf, result).stdout
    node.ok("DEL", pod, conf)
    assert RDMA in rdma_devs()


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
    """Netdev and RDMA device are others then, at home: nothing to wait for."""
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
    """Its driver was unloaded, say: a pod that could not be deleted would not bring it back."""
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
    """In exclusive mode: nothing to give, and a word to those who need it."""
    node.ok("ADD", pod, macvlan(node, kind=kind))
    assert rdma_devs(pod.name) == set()
    node.ok("DEL", pod, macvlan(node, kind=kind))
    for command, code in (("ADD", 101), ("STATUS", 50)):
        error = node.refused(command, pod, macvlan(node, kind=kind, rdma={"required": True}))
        assert error["code"] == code
        assert [s for s in (HCA, "rdma system set netns shared", "reboot", "VF") if s not in error["msg"]] == []
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


@pytest.mark.parametrize("keys", [{}, {"name": "mlx5_0"}, {"required": True}], ids=repr)
def test_gids_of_a_vf(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    conf = node.conf(rdma=PATIENT | keys)
    result = node.ok("ADD", pod, conf)
    assert_found(node, pod, keys.get("name", RDMA))
    assert node.checked(pod, conf, result).exit_code == 0
    # At other places than ADD said, though there.
    pod.ip("address", "del", "10.56.0.2/24", "dev", "hpn0")
    pod.ip("address", "add", "10.99.0.1/24", "dev", "hpn0")
    pod.ip("address", "add", "10.56.0.2/24", "dev", "hpn0")
    reply = node.checked(pod, conf, result)
    assert "10.56.0.2" in reply.stdout
    assert "GID index" in reply.stdout
    node.ok("DEL", pod, conf)


def test_gids_of_a_vf_without_carrier(node: Node, pod: Pod) -> None:
    """Nothing to wait for: the kernel has them as soon as it has the address."""
    ip("link", "set", PF, "down")
    try:
        started = time.monotonic()
        node.ok("ADD", pod, node.conf(rdma={"required": True, "gidTimeout": 30}))
        assert time.monotonic() - started < 20
        assert "LOWER_UP" not in (pod.link() or {})["flags"]
        assert_found(node, pod, RDMA)
        node.ok("DEL", pod)
    finally:
        ip("link", "set", PF, "up")


def test_nothing_is_looked_for(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod, node.conf(rdma={"mode": "off"}))
    assert recorded(node, pod) == {}
    assert rdma_devs(pod.name) == set()
    node.ok("DEL", pod)


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_gids_on_a_shared_master(node: Node, shared: None, hca: str, pod: Pod, kind: str) -> None:
    conf = macvlan(node, kind=kind, rdma={"required": True})
    assert node.call("STATUS", None, conf).exit_code == 0
    result = node.ok("ADD", pod, conf)
    assert_found(node, pod, hca)
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)


def test_two_networks_with_the_same_addresses(node: Node, shared: None, hca: str, make_pod: Callable[[], Pod]) -> None:
    """The kernel's table tells them apart by nothing but when they came."""
    one, two = make_pod(), make_pod()
    node.ok("ADD", one, macvlan(node, rdma=PATIENT))
    node.ok("ADD", two, macvlan(node, name="other", rdma=PATIENT))
    assert one.addresses() == two.addresses()
    assert_found(node, one, hca)
    body = durable.read(node.state / "attachments/other" / f"{two.name}:hpn0.json")
    assert body
    found = {g["index"] for g in body["gids"]}
    assert len(found) == 4
    assert found & set(recorded(node, one).values()) == set()
    there = table(hca)
    assert {there[index][:2] for index in found} == {(gid(a), kind) for a in two.addresses() for kind in (V1, V2)}
    node.ok("DEL", one, macvlan(node))
    node.ok("DEL", two, macvlan(node, name="other"))


def test_a_full_table(node: Node, shared: None, hca: str, pod: Pod) -> None:
    """Who requires RDMA is refused, by STATUS too, before anything is made; who does not is told."""
    required = macvlan(node, rdma={"required": True})
    with filled(PF, free=2):
        for command, code in (("ADD", 110), ("STATUS", 50)):
            error = node.refused(command, pod, required)
            assert error["code"] == code
            assert [s for s in (hca, "2 of 64 entries free", "takes 4", "VF") if s not in error["msg"]] == []
        assert (pod.links(), node.state_files()) == (set(), set())
        started = time.monotonic()
        reply = node.call("ADD", pod, macvlan(node, rdma={"gidTimeout": 60}))
        assert reply.exit_code == 0
        assert time.monotonic() - started < 30
        assert ["0 of 64 entries free" in line for line in reply.log] == [True]
        assert len(recorded(node, pod)) == 2  # who came first has the last two
        node.ok("DEL", pod)


def test_a_table_with_room_for_one_address_of_two(node: Node, shared: None, hca: str, pod: Pod) -> None:
    """Known only when the addresses are, and undone then."""
    with filled(PF, free=4):
        error = node.refused("ADD", pod, macvlan(node, rdma={"required": True, "gidTimeout": 60}))
        assert (error["code"], "0 of 64 entries free" in error["msg"]) == (110, True)
        assert (pod.links(), node.state_files()) == (set(), set())


@pytest.mark.usefixtures("node_file")
def test_device_information_of_a_vf(node: Node, pod: Pod) -> None:
    file = node.tmp_path / "devinfo/cni/rail0"
    conf = with_info(node.conf(rdma=PATIENT | {"name": "mlx5_0"}), file)
    node.ok("ADD", pod, conf)
    body, there = json.loads(file.read_text()), table("mlx5_0", pod.name)
    assert body["pci"] == {"pci-address": node.device, "pf-pci-address": pci(PF), "rdma-device": "mlx5_0"}
    assert len(body["gids"]) == 4
    for g in body["gids"]:
        assert there[g["index"]] == (gid(g["address"]), g["type"], "hpn0")
    node.ok("DEL", pod)
    assert list(file.parent.iterdir()) == []


@pytest.mark.usefixtures("node_file")
def test_device_information_of_a_shared_master(node: Node, shared: None, hca: str, pod: Pod) -> None:
    file = node.tmp_path / "devinfo"
    file.write_text('{"type": "pci", "version": "1.1.0", "pci": {"vhost-net": "/dev/vhost-net"}}')
    before = file.read_text()
    node.ok("ADD", pod, with_info(macvlan(node, rdma=PATIENT), file))
    body = json.loads(file.read_text())
    assert body["pci"] == {"pci-address": pci(PF), "rdma-device": hca, "vhost-net": "/dev/vhost-net"}
    assert {g["device"] for g in body["gids"]} == {hca}
    node.ok("GC", None, macvlan(node) | {"cni.dev/valid-attachments": []})
    assert file.read_text() == before


def test_device_information_of_an_add_that_failed(node: Node, pod: Pod, node_file: Path) -> None:
    """Written last; what was there before is there again."""
    file = node.tmp_path / "file"
    file.write_text("")
    error = node.refused("ADD", pod, with_info(node.conf(), file / "devinfo"))
    assert (error["code"], "CNIDeviceInfoFile" in error["msg"]) == (7, True)
    error = node.refused("ADD", pod, with_info(node.conf(), file))
    assert (error["code"], "CNIDeviceInfoFile" in error["msg"]) == (7, True)
    node_file.write_text('{"allowedPaths": {"CNIDeviceInfoFile": ["/proc"]}}')
    directory = Path("/proc/devinfo")  # not a place for files
    error = node.refused("ADD", pod, with_info(node.conf(), directory))
    assert (error["code"], "CNIDeviceInfoFile" in error["msg"]) == (5, True)
    assert (pod.links(), node.state_files(), file.read_text()) == (set(), set(), "")


def test_inspect(node: Node, pod: Pod) -> None:
    """The record's GIDs are where the pod's table has them."""
    node.ok("ADD", pod, node.conf(rdma=PATIENT | {"name": "mlx5_0"}))
    command = [sys.executable, "-m", "ctl", "inspect", "--json", "--state-dir", str(node.state)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    (found,) = json.loads(done.stdout)["attachments"]
    assert [found[k] for k in ("device", "pf", "pfName", "vf", "alive")] == [node.device, pci(PF), PF, 0, True]
    assert set(found["addresses"]) == pod.addresses()
    there = table("mlx5_0", pod.name)
    assert {g["address"] for g in found["rdma"]["gids"]} == {a.partition("/")[0] for a in pod.addresses()}
    for g in found["rdma"]["gids"]:
        assert there[g["index"]] == (gid(g["address"]), g["type"], "hpn0")
    print(subprocess.run([*command[:4], *command[5:]], capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    node.ok("DEL", pod)
