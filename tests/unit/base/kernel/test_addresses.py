"""Every byte of base.kernel.addresses, compared with pyroute2's decoder."""

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from support.pyroute import decoded, encoded

from base.kernel import addresses
from base.protocol.result import Route


@pytest.mark.parametrize(
    ("address", "flags", "fields", "attrs"),
    [
        (
            "10.56.0.2/24",
            0,
            {"family": 2, "prefixlen": 24, "flags": 0},
            [("IFA_LOCAL", "10.56.0.2"), ("IFA_ADDRESS", "10.56.0.2"), ("IFA_BROADCAST", "10.56.0.255")],
        ),
        (  # RFC 3021: two hosts and no broadcast
            "10.56.0.2/31",
            0,
            {"family": 2, "prefixlen": 31, "flags": 0},
            [("IFA_LOCAL", "10.56.0.2"), ("IFA_ADDRESS", "10.56.0.2")],
        ),
        (
            "10.56.0.2/32",
            0,
            {"family": 2, "prefixlen": 32, "flags": 0},
            [("IFA_LOCAL", "10.56.0.2"), ("IFA_ADDRESS", "10.56.0.2")],
        ),
        (
            "10.56.0.2/30",
            0,
            {"family": 2, "prefixlen": 30, "flags": 0},
            [("IFA_LOCAL", "10.56.0.2"), ("IFA_ADDRESS", "10.56.0.2"), ("IFA_BROADCAST", "10.56.0.3")],
        ),
        (
            "fd00:56::2/64",
            0,
            {"family": 10, "prefixlen": 64, "flags": 0},
            [("IFA_LOCAL", "fd00:56::2"), ("IFA_ADDRESS", "fd00:56::2")],
        ),
        (
            "fd00:56::2/128",
            addresses.IFA_F_NODAD,
            {"family": 10, "prefixlen": 128, "flags": 2},
            [("IFA_LOCAL", "fd00:56::2"), ("IFA_ADDRESS", "fd00:56::2"), ("IFA_FLAGS", 2)],
        ),
        (
            "fd00:56::2/64",
            addresses.IFA_F_OPTIMISTIC,
            {"family": 10, "prefixlen": 64, "flags": 4},
            [("IFA_LOCAL", "fd00:56::2"), ("IFA_ADDRESS", "fd00:56::2"), ("IFA_FLAGS", 4)],
        ),
        (  # only the attribute holds a flag beyond the header's eight bits (IFA_F_NOPREFIXROUTE)
            "fd00:56::2/64",
            0x202,
            {"family": 10, "prefixlen": 64, "flags": 2},
            [("IFA_LOCAL", "fd00:56::2"), ("IFA_ADDRESS", "fd00:56::2"), ("IFA_FLAGS", 0x202)],
        ),
    ],
)
def test_new_address(address: str, flags: int, fields: dict[str, Any], attrs: list[Any]) -> None:
    *_, body = addresses.adding_address(7, ip_interface(address), flags)
    fields = {"scope": 0, "index": 7, **fields}
    assert decoded(ifaddrmsg, body) == (fields, attrs)
    assert body == encoded(ifaddrmsg, fields, attrs)


@pytest.mark.parametrize(
    ("fields", "attrs", "expected"),
    [
        ({"flags": 0x80}, [("IFA_ADDRESS", "fd00:56::2"), ("IFA_FLAGS", 0x80)], ("fd00:56::2", 0x80)),
        (
            {"flags": 0xC0},
            [("IFA_ADDRESS", "fe80::1"), ("IFA_FLAGS", 0x8C0)],
            ("fe80::1", 0x8C0),
        ),  # and flags above 8 bits
        ({"flags": 0x48}, [("IFA_ADDRESS", "fe80::1")], ("fe80::1", 0x48)),
        ({}, [("IFA_LOCAL", "fd00::1"), ("IFA_ADDRESS", "fd00::2")], ("fd00::1", 0)),  # the other one is the peer's
    ],
)
def test_parse_address(fields: dict[str, Any], attrs: list[Any], expected: tuple[str, int]) -> None:
    body = encoded(ifaddrmsg, {"family": 10, "prefixlen": 64, "flags": 0, "scope": 0, "index": 7, **fields}, attrs)
    assert addresses.parse_address(body) == (7, ip_address(expected[0]), expected[1])


ROUTE = {
    "family": 2, "dst_len": 0, "src_len": 0, "tos": 0, "table": 254, "proto": 4, "scope": 0, "type": 1, "flags": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("route", "fields", "attrs"),
    [
        (  # a default route has no destination
            Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1")),
            {},
            [("RTA_OIF", 7), ("RTA_TABLE", 254), ("RTA_GATEWAY", "10.56.0.1")],
        ),
        (
            Route(ip_network("::/0"), ip_address("fd00:56::1")),
            {"family": 10},
            [("RTA_OIF", 7), ("RTA_TABLE", 254), ("RTA_GATEWAY", "fd00:56::1")],
        ),
        (  # on-link: link scope in the kernel's IPv4
            Route(ip_network("10.0.0.0/8")),
            {"dst_len": 8, "scope": 253},
            [("RTA_DST", "10.0.0.0"), ("RTA_OIF", 7), ("RTA_TABLE", 254)],
        ),
        (Route(ip_network("0.0.0.0/0")), {"scope": 253}, [("RTA_OIF", 7), ("RTA_TABLE", 254)]),
        (  # but not in its IPv6
            Route(ip_network("fd00::/16")),
            {"family": 10, "dst_len": 16},
            [("RTA_DST", "fd00::"), ("RTA_OIF", 7), ("RTA_TABLE", 254)],
        ),
        (  # a requested scope is kept, even 0
            Route(ip_network("10.0.0.1/32"), scope=0),
            {"dst_len": 32},
            [("RTA_DST", "10.0.0.1"), ("RTA_OIF", 7), ("RTA_TABLE", 254)],
        ),
        (
            Route(ip_network("10.0.0.0/8"), ip_address("10.56.0.1"), scope=200),
            {"dst_len": 8, "scope": 200},
            [("RTA_DST", "10.0.0.0"), ("RTA_OIF", 7), ("RTA_TABLE", 254), ("RTA_GATEWAY", "10.56.0.1")],
        ),
        (
            Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1"), table=255),
            {"table": 255},
            [("RTA_OIF", 7), ("RTA_TABLE", 255), ("RTA_GATEWAY", "10.56.0.1")],
        ),
        (  # too large for the header's byte
            Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1"), table=256),
            {"table": 0},
            [("RTA_OIF", 7), ("RTA_TABLE", 256), ("RTA_GATEWAY", "10.56.0.1")],
        ),
        (
            Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1"), table=2**32 - 1, priority=2**32 - 1),
            {"table": 0},
            [
                ("RTA_OIF", 7),
                ("RTA_TABLE", 2**32 - 1),
                ("RTA_GATEWAY", "10.56.0.1"),
                ("RTA_PRIORITY", 2**32 - 1),
            ],
        ),
        (  # 0 is a value, not a missing one
            Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1"), priority=0, table=0),
            {"table": 0},
            [("RTA_OIF", 7), ("RTA_TABLE", 0), ("RTA_GATEWAY", "10.56.0.1"), ("RTA_PRIORITY", 0)],
        ),
        (
            Route(ip_network("fd00::/16"), mtu=1400, advmss=1340),
            {"family": 10, "dst_len": 16},
            [
                ("RTA_DST", "fd00::"),
                ("RTA_OIF", 7),
                ("RTA_TABLE", 254),
                ("RTA_METRICS", [("RTAX_MTU", 1400), ("RTAX_ADVMSS", 1340)]),
            ],
        ),
        (
            Route(ip_network("0.0.0.0/0"), advmss=1340),
            {"scope": 253},
            [("RTA_OIF", 7), ("RTA_TABLE", 254), ("RTA_METRICS", [("RTAX_ADVMSS", 1340)])],
        ),
    ],
)
def test_new_route(route: Route, fields: dict[str, Any], attrs: list[Any]) -> None:
    *_, body = addresses.adding_route(7, route)
    assert decoded(rtmsg, body) == (ROUTE | fields, attrs)
    nested = [(k, {"attrs": v}) if k == "RTA_METRICS" else (k, v) for k, v in attrs]
    assert body == encoded(rtmsg, ROUTE | fields, nested)
