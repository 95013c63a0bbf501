"""The routing table of each address, and the table's routes, without a kernel."""

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from base.kernel.sysctl import name, path
from base.protocol.errors import InvalidConfig
from base.protocol.result import Ip, Result, Route
from cni.features import routing


def ips(*pairs: tuple[str, str | None]) -> tuple[Ip, ...]:
    return tuple(Ip(ip_interface(address), ip_address(gw) if gw else None) for address, gw in pairs)


TWO = ips(("10.0.0.2/24", "10.0.0.1"), ("10.1.0.2/24", "10.1.0.1"), ("fd00::2/64", "fd00::1"))


@pytest.mark.parametrize(
    ("first", "used", "given", "tables"),
    [
        (None, {253, 254, 255}, TWO, [100, 101, 100]),
        (None, {100, 102}, TWO, [101, 103, 101]),
        (None, set(range(100, 252)), TWO, [252, 256, 252]),  # the kernel's own, in use or not
        (7, {100}, TWO, [7, 8, 7]),
        (2**32 - 1, set[int](), TWO[:1], [2**32 - 1]),
        (None, set[int](), ips(("10.0.0.2/24", None), ("10.0.0.3/24", None)), [100, 100]),
        (None, set[int](), ips(("10.0.0.2/24", None), ("10.0.0.3/24", "10.0.0.1")), [100, 101]),
    ],
)
def test_tables(first: int | None, used: set[int], given: tuple[Ip, ...], tables: list[int]) -> None:
    rules = routing.planned(first, used, Result(ips=given))
    assert rules == [{"from": str(ip.address.ip), "table": t} for ip, t in zip(given, tables, strict=True)]


@pytest.mark.parametrize(("first", "used"), [(7, {7}), (7, {8}), (252, {1}), (2**32 - 1, {1})])
def test_no_table(first: int, used: set[int]) -> None:
    """Of the two tables from there on, one is in use, the kernel's, or above the last number."""
    with pytest.raises(InvalidConfig, match=f"policyRouting.table {first}: "):
        routing.planned(first, used, Result(ips=TWO))


def test_routes_without_a_gateway_take_their_tables() -> None:
    routes = (Route(ip_network("10.9.0.0/16"), priority=3), Route(ip_network("10.8.0.0/16"), gw=ip_address("10.1.0.9")))
    result = Result(ips=TWO[:2], routes=routes)
    placed = routing.placed(result, routing.planned(None, set(), result)).routes
    assert [(str(r.dst), str(r.gw), r.table, r.priority) for r in placed] == [
        ("10.0.0.0/24", "None", 100, None),
        ("10.9.0.0/16", "10.0.0.1", 100, 3),
        ("0.0.0.0/0", "10.0.0.1", 100, None),
        ("10.1.0.0/24", "None", 101, None),
        ("10.9.0.0/16", "10.1.0.1", 101, 3),
        ("10.8.0.0/16", "10.1.0.9", 101, None),
        ("0.0.0.0/0", "10.1.0.1", 101, None),
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("net.core.somaxconn", "core/somaxconn"),
        ("net/core/somaxconn", "core/somaxconn"),
        ("net.ipv4.conf.eth0/100.rp_filter", "ipv4/conf/eth0.100/rp_filter"),
        ("net/ipv4/conf/eth0.100/rp_filter", "ipv4/conf/eth0.100/rp_filter"),
    ],
)
def test_sysctl_names_as_sysctl_takes_them(key: str, expected: str) -> None:
    assert path(key) == expected
    assert name(expected) == (key if key.startswith("net.") else "net." + expected.translate(str.maketrans("./", "/.")))


@pytest.mark.parametrize(
    "key",
    ["", "net", "net.", "kernel.shmmax", "net/../kernel/shmmax", "net..core", "/net/core/x", ".net.core",
     "network.x", "net.core.\0", "net.core.a\nb", "net/./core/x", "net.core.x.", "/proc/sys/net/core/x"],
)  # fmt: skip
def test_no_sysctl_of_the_network(key: Any) -> None:
    with pytest.raises(ValueError, match="is not a sysctl of the network"):
        path(key)
