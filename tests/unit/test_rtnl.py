"""Every byte cni.kernel.rtnl makes or reads, held against pyroute2's encoder and decoder."""

import errno
import re
import struct
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from cni.kernel import addresses, links, netlink
from cni.kernel.links import Link
from cni.protocol.result import Route


def plain(message: Any) -> Any:
    """pyroute2's attribute lists as lists of pairs and nothing else."""
    return [
        (name, plain(value) if isinstance(value, dict) and "attrs" in value else value)
        for name, value in message["attrs"]
    ]


def decoded(kind: Any, body: bytes) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The message's fixed fields and its attributes in order, as pyroute2 reads them."""
    message = kind(struct.pack("=IHHII", 16 + len(body), 0, 0, 1, 0) + body)
    message.decode()
    return {name: message[name] for name, _ in kind.fields if name != "__align"}, plain(message)


def encoded(kind: Any, fields: dict[str, Any], attrs: list[Any]) -> bytes:
    """The body as pyroute2 writes it."""
    message = kind()
    message.update(fields)
    message["attrs"] = attrs
    message.encode()
    return bytes(message.data[16:])


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
    """What is left to the kernel is not in the message at all: 0 or an empty MAC would be an order."""
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
        (  # a flag beyond the header's eight bits (IFA_F_NOPREFIXROUTE) is in the attribute alone
            "fd00:56::2/64",
            0x202,
            {"family": 10, "prefixlen": 64, "flags": 2},
            [("IFA_LOCAL", "fd00:56::2"), ("IFA_ADDRESS", "fd00:56::2"), ("IFA_FLAGS", 0x202)],
        ),
    ],
)
def test_new_address(address: str, flags: int, fields: dict[str, Any], attrs: list[Any]) -> None:
    body = addresses.new_address(7, ip_interface(address), flags)
    fields = {"scope": 0, "index": 7, **fields}
    assert decoded(ifaddrmsg, body) == (fields, attrs)
    assert body == encoded(ifaddrmsg, fields, attrs)


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
        (  # on-link, which the kernel's IPv4 calls link scope
            Route(ip_network("10.0.0.0/8")),
            {"dst_len": 8, "scope": 253},
            [("RTA_DST", "10.0.0.0"), ("RTA_OIF", 7), ("RTA_TABLE", 254)],
        ),
        (Route(ip_network("0.0.0.0/0")), {"scope": 253}, [("RTA_OIF", 7), ("RTA_TABLE", 254)]),
        (  # and its IPv6 does not
            Route(ip_network("fd00::/16")),
            {"family": 10, "dst_len": 16},
            [("RTA_DST", "fd00::"), ("RTA_OIF", 7), ("RTA_TABLE", 254)],
        ),
        (  # a scope that is asked for is not second-guessed, 0 included
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
        (  # 0 is a value, not an absence
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
    body = addresses.new_route(7, route)
    assert decoded(rtmsg, body) == (ROUTE | fields, attrs)
    nested = [(k, {"attrs": v}) if k == "RTA_METRICS" else (k, v) for k, v in attrs]
    assert body == encoded(rtmsg, ROUTE | fields, nested)


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
        (  # a kind of which the kernel tells no more
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


def nlmsgerr(number: int, *attrs: bytes) -> bytes:
    """struct nlmsgerr as the kernel sends it under NETLINK_CAP_ACK: errno, the request's header, attributes."""
    return struct.pack("=iIHHII", -number, 48, 16, 5, 1, 0) + b"".join(attrs)


MSG = struct.pack("=HH", 4 + 13, 1) + b"Invalid name\0" + b"\0\0\0"
OFFS = struct.pack("=HHI", 8, 2, 32)


@pytest.mark.parametrize(
    ("body", "has_message", "number", "text"),
    [
        (nlmsgerr(16), False, errno.EBUSY, "Device or resource busy"),
        (nlmsgerr(22, MSG), True, errno.EINVAL, "Invalid argument (Invalid name)"),
        (nlmsgerr(22, OFFS, MSG), True, errno.EINVAL, "Invalid argument (Invalid name)"),  # not the first attribute
        (nlmsgerr(22, OFFS), True, errno.EINVAL, "Invalid argument"),  # an offset and no sentence
        (nlmsgerr(22), True, errno.EINVAL, "Invalid argument"),
        # without the flag what follows is no attribute
        (nlmsgerr(22, MSG), False, errno.EINVAL, "Invalid argument"),
    ],
)
def test_error(body: bytes, has_message: bool, number: int, text: str) -> None:
    with pytest.raises(OSError, match=re.escape(text)) as e:
        netlink.raise_error(body, netlink.NLM_F_ACK_TLVS if has_message else 0)
    assert (e.value.errno, e.value.strerror) == (number, text)


def test_error_of_its_own_class() -> None:
    with pytest.raises(FileExistsError):
        netlink.raise_error(nlmsgerr(17), 0)


def test_acknowledgement_is_no_error() -> None:
    netlink.raise_error(nlmsgerr(0), 0)
    netlink.raise_error(nlmsgerr(0, MSG), netlink.NLM_F_ACK_TLVS)  # a warning beside success


@pytest.mark.parametrize(
    ("kind", "payload", "raw"),
    [
        (1, b"", "0400 0100"),
        (3, b"a\0", "0600 0300 6100 0000"),
        (4, b"\1\2\3\4", "0800 0400 0102 0304"),
        (5, b"\1\2\3\4\5", "0900 0500 0102 0304 0500 0000"),
    ],
)
def test_attr(kind: int, payload: bytes, raw: str) -> None:
    assert netlink.attr(kind, payload) == bytes.fromhex(raw)  # of a little-endian machine
    assert netlink.attributes(bytes.fromhex(raw)) == {kind: payload}


def test_attributes_drops_flag_bits_and_keeps_the_last() -> None:
    nested, swapped = struct.pack("=HHI", 8, 0x8000 | 18, 1), struct.pack("=HHI", 8, 0x4000 | 19, 2)
    assert netlink.attributes(nested + swapped + netlink.attr(18, b"last")) == {18: b"last", 19: struct.pack("=I", 2)}


@pytest.mark.parametrize("length", [0, 1, 3])
def test_an_attribute_shorter_than_its_header_ends_the_list(length: int) -> None:
    broken = struct.pack("=HH", length, 9)
    assert netlink.attributes(netlink.attr(1, b"ok") + broken + netlink.attr(2, b"x")) == {1: b"ok"}


pairs = st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=8)


@given(pairs)
def test_attributes_reads_what_attr_wrote(written: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attr(kind, payload) for kind, payload in written)
    assert netlink.attributes(data) == dict(written)
    assert len(data) % 4 == 0


@given(pairs, st.integers(0, 400))
def test_attributes_cut_short(written: list[tuple[int, bytes]], length: int) -> None:
    """Every payload is what was written, but for the last one, which may be its beginning."""
    data = b"".join(netlink.attr(kind, payload) for kind, payload in written)[:length]
    read = netlink.attributes(data)
    cut = [kind for kind, payload in read.items() if (kind, payload) not in written]
    assert len(cut) <= 1
    assert all(any(k == kind and p.startswith(read[kind]) for k, p in written) for kind in cut)


@given(st.binary(max_size=300))
def test_attributes_of_anything(data: bytes) -> None:
    assert all(payload in data for payload in netlink.attributes(data).values())


def test_altname() -> None:
    attrs = [("IFLA_PROP_LIST", [("IFLA_ALT_IFNAME", "nic0")])]
    assert decoded(ifinfmsg, links.altname(7, "nic0")) == (NO_LINK_FIELDS | {"index": 7}, attrs)


def test_every_altname_of_a_link() -> None:
    names = netlink.attr(links.IFLA_ALT_IFNAME, b"nic0\0") + netlink.attr(links.IFLA_ALT_IFNAME, b"enp1s0\0")
    body = (
        struct.pack("=BxHiII", 0, 1, 3, 0, 0) + netlink.attr(3, b"rail0\0") + netlink.attr(4, struct.pack("=I", 1500))
    )
    assert links.parse_link(body + netlink.attr(links.IFLA_PROP_LIST, names)).altnames == ("nic0", "enp1s0")
