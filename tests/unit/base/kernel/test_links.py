"""Every byte that base.kernel.links builds or decodes, compared with pyroute2's encoder and decoder."""

import os
import struct
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from support.pyroute import decoded, encoded

from base.kernel import links, netlink
from base.kernel.links import Link

NO_LINK_FIELDS = {"family": 0, "ifi_type": 0, "index": 0, "flags": 0, "change": 0}


@pytest.mark.parametrize(
    ("given", "index", "attrs"),
    [
        ({}, 0, [("IFLA_EXT_MASK", 8)]),
        ({"index": 7}, 7, [("IFLA_EXT_MASK", 8)]),
        ({"name": "hpn0"}, 0, [("IFLA_IFNAME", "hpn0"), ("IFLA_EXT_MASK", 8)]),
        ({"name": "a" * 15}, 0, [("IFLA_IFNAME", "a" * 15), ("IFLA_EXT_MASK", 8)]),
    ],
)
def test_get_link(given: dict[str, Any], index: int, attrs: list[Any]) -> None:
    body = links.get_link(**given)
    assert decoded(ifinfmsg, body) == (NO_LINK_FIELDS | {"index": index}, attrs)
    assert body == encoded(ifinfmsg, {"index": index}, attrs)


def test_get_link_whose_name_is_no_text() -> None:
    """A pod may have renamed it; a directory listing has its bytes as surrogates."""
    assert b"\x06\x00\x03\x00\xff\x00" in links.get_link(os.fsdecode(b"\xff"))


@pytest.mark.parametrize("name", [b"hpn0", b"\xff", b"\xfe", "é".encode()])
def test_a_name_stays_what_it_is(name: bytes) -> None:
    assert netlink.text(netlink.read_text(name + b"\0")) == name + b"\0"


MACVLAN_BRIDGE = struct.pack("=HHI", 8, 1, 4)
IPVLAN_L3 = struct.pack("=HHHxx", 6, 1, 1)


def test_new_link_with_everything() -> None:
    body = links.new_link(
        kind="macvlan", data=MACVLAN_BRIDGE, parent=3, name="hpn0", mac="02:00:00:00:00:01", mtu=9000, ns_fd=11
    )
    attrs = [
        ("IFLA_IFNAME", "hpn0"),
        ("IFLA_LINK", 3),
        ("IFLA_ADDRESS", "02:00:00:00:00:01"),
        ("IFLA_MTU", 9000),
        ("IFLA_NET_NS_FD", 11),
        ("IFLA_LINKINFO", [("IFLA_INFO_KIND", "macvlan"), ("IFLA_INFO_DATA", [("IFLA_MACVLAN_MODE", "bridge")])]),
    ]
    assert decoded(ifinfmsg, body) == (NO_LINK_FIELDS, attrs)


def test_new_link_with_the_least() -> None:
    """The message omits what the kernel chooses: 0 or an empty MAC would be a request."""
    body = links.new_link(kind="ipvlan", data=IPVLAN_L3, parent=2**31 - 1, name="x")
    attrs = [
        ("IFLA_IFNAME", "x"),
        ("IFLA_LINK", 2**31 - 1),
        ("IFLA_LINKINFO", [("IFLA_INFO_KIND", "ipvlan"), ("IFLA_INFO_DATA", [("IFLA_IPVLAN_MODE", 1)])]),
    ]
    assert decoded(ifinfmsg, body) == (NO_LINK_FIELDS, attrs)


def test_new_link_in_descriptor_zero() -> None:
    _, attrs = decoded(ifinfmsg, links.new_link(kind="macvlan", data=b"", parent=3, name="x", ns_fd=0))
    assert ("IFLA_NET_NS_FD", 0) in attrs


VETH = [("IFLA_IFNAME", "rail0"), ("IFLA_MTU", 1500), ("IFLA_ADDRESS", "02:00:00:00:00:09")]


@pytest.mark.parametrize(
    ("fields", "attrs", "link"),
    [
        (
            {"index": 3, "flags": 0x10043},
            VETH,
            Link(index=3, name="rail0", flags=0x10043, mac="02:00:00:00:00:09", mtu=1500),
        ),
        (  # the parent is in another namespace, whose number may be 0
            {"index": 2**31 - 1, "flags": 0x1002},
            [
                *VETH,
                ("IFLA_LINK", 5),
                ("IFLA_LINK_NETNSID", 0),
                (
                    "IFLA_LINKINFO",
                    {
                        "attrs": [
                            ("IFLA_INFO_KIND", "macvlan"),
                            ("IFLA_INFO_DATA", {"attrs": [("IFLA_MACVLAN_MODE", "bridge")]}),
                        ]
                    },
                ),
            ],
            Link(
                index=2**31 - 1,
                name="rail0",
                flags=0x1002,
                mac="02:00:00:00:00:09",
                mtu=1500,
                kind="macvlan",
                parent=5,
                parent_nsid=0,
                data=MACVLAN_BRIDGE,
            ),
        ),
        (  # NETNSA_NSID_NOT_ASSIGNED
            {"index": 3},
            [*VETH, ("IFLA_LINK", 5), ("IFLA_LINK_NETNSID", -1)],
            Link(index=3, name="rail0", flags=0, mac="02:00:00:00:00:09", mtu=1500, parent=5, parent_nsid=-1),
        ),
        (  # a link without a MAC, as tunnels are
            {"index": 1, "ifi_type": 772},
            [("IFLA_IFNAME", "lo"), ("IFLA_MTU", 65536)],
            Link(index=1, name="lo", flags=0, mac="", mtu=65536, hardware=772),
        ),
        (  # a kind without data
            {"index": 1},
            [*VETH, ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "veth")]})],
            Link(index=1, name="rail0", flags=0, mac="02:00:00:00:00:09", mtu=1500, kind="veth"),
        ),
    ],
)
def test_parse_link(fields: dict[str, Any], attrs: list[Any], link: Link) -> None:
    found = links.parse_link(encoded(ifinfmsg, {"ifi_type": 1} | fields, attrs))
    assert (found, found.ethernet) == (link, link.name != "lo")


def test_infiniband_address_is_kept_whole() -> None:
    mac = ":".join(f"{n:02x}" for n in range(20))
    body = struct.pack("=BxHiII", 0, 32, 3, 0, 0)
    body += netlink.attr(1, bytes(range(20))) + netlink.attr(3, b"ib0\0") + netlink.attr(4, struct.pack("=I", 2044))
    link = links.parse_link(body)
    assert (link.mac, link.infiniband) == (mac, True)


@pytest.mark.parametrize(
    ("flags", "up", "carrier"), [(0, False, False), (0x1, True, False), (0x10000, False, True), (0x10043, True, True)]
)
def test_link_flags(flags: int, up: bool, carrier: bool) -> None:
    link = Link(1, "x", flags, "", 1500)
    assert (link.up, link.carrier) == (up, carrier)


def test_altname() -> None:
    attrs = [("IFLA_PROP_LIST", [("IFLA_ALT_IFNAME", "nic0")])]
    assert decoded(ifinfmsg, links.altname(7, "nic0")) == (NO_LINK_FIELDS | {"index": 7}, attrs)


def test_every_altname_of_a_link() -> None:
    names = netlink.attr(links.IFLA_ALT_IFNAME, b"nic0\0") + netlink.attr(links.IFLA_ALT_IFNAME, b"enp1s0\0")
    body = (
        struct.pack("=BxHiII", 0, 1, 3, 0, 0) + netlink.attr(3, b"rail0\0") + netlink.attr(4, struct.pack("=I", 1500))
    )
    assert links.parse_link(body + netlink.attr(links.IFLA_PROP_LIST, names)).altnames == ("nic0", "enp1s0")
