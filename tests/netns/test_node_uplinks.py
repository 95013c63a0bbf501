"""Which of its devices the host cannot spare."""

import socket
from pathlib import Path

import pytest
from sysfs_tree import Tree
from topology import Host, ip

from cni.kernel import budget, uplinks
from node import inventory

V6 = socket.AF_INET6


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


def test_none() -> None:
    route("table", "7", "default", "via", "192.0.2.2")
    route("default", "via", "192.0.2.2", "table", "1000")
    route("blackhole", "default")
    route("198.51.100.0/24", "via", "192.0.2.2")
    assert uplinks.of_default_routes() == set()
    assert uplinks.of_default_routes(V6) == set()
    assert uplinks.of_default_routes(socket.AF_BRIDGE) == set()


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
    assert (uplinks.of_default_routes(), uplinks.of_default_routes(V6)) == (names, set())


def test_ipv6() -> None:
    ip("-6", "route", "add", "default", "via", "fd00:1::2")
    assert (uplinks.of_default_routes(), uplinks.of_default_routes(V6)) == (set(), {"eth1"})


def reserved(tree: Tree) -> dict[str, str]:
    return {device.id: device.reserved for device in inventory.devices(tree.root) if device.reserved}


def test_the_devices(tmp_path: Path) -> None:
    """The device of the interface, and those below it.  IPv6's default route counts where IPv4 has none."""
    tree = Tree(tmp_path / "sys")
    for number in range(2):
        tree.netdev(f"slave{number}", tree.pci(f"0000:3b:00.{number}"))
        tree.netdev(f"eth{number}", below=[f"slave{number}"])
    assert reserved(tree) == {}
    ip("-6", "route", "add", "default", "via", "fd00:1::2")
    assert set(reserved(tree)) == {"0000:3b:00.1", "eth1"}
    route("default", "via", "192.0.2.2")
    assert reserved(tree) == dict.fromkeys(("0000:3b:00.0", "eth0"), "the host's default route leaves by eth0")
