"""The devices that the host cannot spare."""

import subprocess
from pathlib import Path

import pytest
from support.sysfs_tree import Tree
from support.topology import Host, ip

from base.kernel import budget, routes
from hardware import inventory


@pytest.fixture(autouse=True)
def addresses(host: Host) -> None:
    budget.begin()
    for number in range(2):
        ip("link", "add", f"eth{number}", "type", "veth", "peer", "name", f"far{number}")
        ip("link", "set", f"far{number}", "up")
        ip("link", "set", f"eth{number}", "up")
        ip("address", "add", f"192.0.2.{number * 4 + 1}/30", "dev", f"eth{number}")
        ip("address", "add", f"fd00:{number}::1/64", "dev", f"eth{number}", "nodad")


def route(*words: str) -> None:
    ip(*("-6",) if ":" in words[-1] else (), "route", "add", *words)


def rule(*words: str) -> None:
    ip("rule", "add", *words)


def set_compatible(value: str) -> None:
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(value)


def test_none() -> None:
    route("table", "7", "default", "via", "192.0.2.2")
    route("default", "via", "192.0.2.2", "table", "1000")
    route("blackhole", "default")
    route("198.51.100.0/24", "via", "192.0.2.2")
    assert routes.uplinks() == set()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([["default", "via", "192.0.2.2"]], {"eth0"}),
        ([["default", "dev", "eth1"]], {"eth1"}),
        ([["default", "via", "192.0.2.2"], ["default", "via", "192.0.2.6", "metric", "9"]], {"eth0", "eth1"}),
        ([["default", "nexthop", "via", "192.0.2.2", "nexthop", "via", "192.0.2.6"]], {"eth0", "eth1"}),
    ],
)
def test_ipv4(words: list[list[str]], names: set[str]) -> None:
    for one in words:
        route(*one)
    assert routes.uplinks() == names
    route("default", "via", "fd00:1::2")
    assert routes.uplinks() == names


@pytest.mark.parametrize("compatible", ["1", "0"])
def test_nexthop_objects(compatible: str) -> None:
    """hpn node resolves nexthop objects, as FRR creates them.  With nexthop_compat_mode=0 a route names only the
    object."""
    set_compatible(compatible)
    ip("nexthop", "add", "id", "7", "via", "192.0.2.2", "dev", "eth0")
    ip("nexthop", "add", "id", "8", "via", "192.0.2.6", "dev", "eth1")
    ip("nexthop", "add", "id", "9", "group", "7/8")
    route("198.51.100.0/24", "nhid", "9")
    assert routes.uplinks() == set()
    route("default", "nhid", "8", "metric", "5")
    assert routes.uplinks() == {"eth1"}
    route("default", "nhid", "9")
    assert routes.uplinks() == {"eth0", "eth1"}


def test_nexthop_objects_of_ipv6() -> None:
    set_compatible("0")
    ip("-6", "nexthop", "add", "id", "7", "via", "fd00:1::2", "dev", "eth1")
    ip("-6", "route", "add", "default", "nhid", "7")
    assert routes.uplinks() == {"eth1"}


def test_ipv6() -> None:
    route("default", "via", "fd00:1::2")
    assert routes.uplinks() == {"eth1"}


@pytest.mark.parametrize("table", ["100", "1000"])
@pytest.mark.parametrize(
    ("condition", "counts"),
    [
        ([], True),
        (["priority", "9", "suppress_prefixlength", "0", "protocol", "static"], True),
        (["from", "192.0.2.1"], False),
        (["to", "198.51.100.0/24"], False),
        (["not", "from", "192.0.2.1"], False),
        (["fwmark", "7"], False),
        (["iif", "eth1"], False),
        (["dsfield", "8"], False),
    ],
    ids=lambda words: "-".join(words) if isinstance(words, list) else None,
)
def test_a_table_of_everybodys(table: str, condition: list[str], counts: bool) -> None:
    """A table behind conditional rules only may be a rail's, so its default route does not count."""
    route("default", "via", "192.0.2.2", "table", table)
    rule(*condition, "lookup", table)
    route("default", "via", "192.0.2.6")
    assert routes.uplinks() == ({"eth0", "eth1"} if counts else {"eth1"})


@pytest.mark.parametrize("table", ["10", "1000"])
def test_vrf(host: Host, table: str) -> None:
    """A VRF's routes are in its own table, which no rule names."""
    made = subprocess.run(
        ["ip", "link", "add", "blue", "type", "vrf", "table", table], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this kernel has no vrf; runs in the lab")
    ip("link", "set", "blue", "up")
    ip("link", "set", "eth0", "master", "blue")
    assert routes.uplinks() == set()
    route("default", "vrf", "blue", "via", "192.0.2.2")
    route("default", "via", "192.0.2.6", "table", "7")
    assert routes.uplinks() == {"eth0"}
    route("default", "via", "192.0.2.6")
    assert routes.uplinks() == {"eth0", "eth1"}


def reserved(tree: Tree) -> dict[str, str]:
    return {device.id: device.reserved for device in inventory.devices(tree.root) if device.reserved}


def test_the_devices(tmp_path: Path) -> None:
    """The interface's device counts, and those below it.  IPv6's default route counts if IPv4 has none."""
    tree = Tree(tmp_path / "sys")
    for number in range(2):
        tree.netdev(f"slave{number}", tree.pci(f"0000:3b:00.{number}"))
        tree.netdev(f"eth{number}", below=[f"slave{number}"])
    assert reserved(tree) == {}
    route("default", "via", "fd00:1::2")
    assert set(reserved(tree)) == {"0000:3b:00.1", "eth1"}
    route("default", "via", "192.0.2.2")
    assert reserved(tree) == dict.fromkeys(("0000:3b:00.0", "eth0"), "the host's default route leaves by eth0")


def test_open_vswitch(tmp_path: Path) -> None:
    """All ports of Open vSwitch count: the default route leaves by its own interface, and the port is unknown."""
    tree = Tree(tmp_path / "sys")
    for number in range(3):
        tree.netdev(f"rail{number}", tree.pci(f"0000:3b:00.{number}"))
    tree.netdev("bond0", below=["rail1"])
    tree.netdev("ovs-system", below=["rail0", "bond0"])
    said = "Open vSwitch owns its interface and may carry the host's traffic through it"
    assert reserved(tree) == dict.fromkeys(("0000:3b:00.0", "0000:3b:00.1", "bond0"), said)


def test_what_else_the_host_uses(tmp_path: Path) -> None:
    """Devices count that ADD would refuse.  An interface that is up, with only the kernel's own addresses and routes,
    does not count."""
    set_compatible("0")
    tree = Tree(tmp_path / "sys")
    for number in range(6):
        if number > 1:
            ip("link", "add", f"eth{number}", "type", "veth", "peer", "name", f"far{number}")
            for name in (f"eth{number}", f"far{number}"):
                ip("link", "set", name, "up")
        tree.netdev(f"eth{number}", tree.pci(f"0000:3b:00.{number}"))
    tree.netdev("eth4.7", below=["eth4"])
    ip("address", "delete", "192.0.2.5/30", "dev", "eth1")
    ip("-6", "address", "add", "fe80::7/64", "dev", "eth2", "nodad")
    ip("-6", "route", "add", "fd00:7::/64", "dev", "eth2", "proto", "kernel")
    route("198.51.100.7/32", "dev", "eth3")
    ip("nexthop", "add", "id", "7", "dev", "eth5")
    route("203.0.113.0/24", "nhid", "7")
    assert {device.id[-1]: device.used for device in inventory.devices(tree.root) if device.used} == {
        "0": "the host has fd00::1/64 on it",
        "1": "the host has fd00:1::1/64 on it",
        "3": "the host has a route to 198.51.100.7/32 through it",
        "4": "eth4.7 of the host is over it",
        "5": "the host has a route to 203.0.113.0/24 through it",
    }
