"""A VF's attributes: bytes compared with pyroute2's decoder, and a PF's answers, in bytes made by hand."""

import json
import struct
from dataclasses import asdict
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from base.kernel import netlink, vf
from base.kernel.vf import VfSettings

MAC = "02:00:00:00:00:07"


def decoded(attribute: bytes) -> Any:
    """pyroute2's view of an RTM_SETLINK with this attribute: the first VF's."""
    body = struct.pack("=BxHiII", 0, 0, 9, 0, 0) + attribute
    message = ifinfmsg(struct.pack("=IHHII", 16 + len(body), 16, 1, 1, 0) + body)
    message.decode()
    return message.get_attr("IFLA_VFINFO_LIST").get_attr("IFLA_VF_INFO")


@pytest.mark.parametrize(
    ("name", "value", "attribute", "fields"),
    [
        ("mac", MAC, "IFLA_VF_MAC", {"vf": 3, "mac": MAC}),
        ("rate", (10, 200), "IFLA_VF_RATE", {"vf": 3, "min_tx_rate": 10, "max_tx_rate": 200}),
        ("spoofchk", True, "IFLA_VF_SPOOFCHK", {"vf": 3, "spoofchk": 1}),
        ("spoofchk", False, "IFLA_VF_SPOOFCHK", {"vf": 3, "spoofchk": 0}),
        ("trust", True, "IFLA_VF_TRUST", {"vf": 3, "trust": 1}),
        ("link_state", "disable", "IFLA_VF_LINK_STATE", {"vf": 3, "link_state": 2}),
        ("link_state", "auto", "IFLA_VF_LINK_STATE", {"vf": 3, "link_state": 0}),
    ],
)
def test_set_attribute(name: str, value: object, attribute: str, fields: dict[str, Any]) -> None:
    found = decoded(vf.set_attribute(3, name, value)).get_attr(attribute)
    assert {k: found[k] for k in fields} == fields


@pytest.mark.parametrize(("name", "number"), [("node_guid", 10), ("port_guid", 11)])
def test_set_guid(name: str, number: int) -> None:
    """struct ifla_vf_guid, a number after padding.  pyroute2 has the same bytes, and twenty that the kernel ignores."""
    guid = "00:11:22:33:44:55:66:77"
    body = netlink.attributes(netlink.attributes(netlink.attributes(vf.set_attribute(3, name, guid))[22])[1])[number]
    assert body == struct.pack("=I4xQ", 3, 0x0011223344556677)
    theirs = ifinfmsg.vflist.vfinfo.__dict__[f"vf_ib_{name}"](data=bytearray(64))
    theirs["vf"], theirs[f"ib_{name}"] = 3, guid
    theirs.encode()
    assert bytes(theirs.data[4:20]) == body


@pytest.mark.parametrize(("protocol", "number"), [("802.1q", 0x8100), ("802.1ad", 0x88A8)])
def test_set_vlan(protocol: str, number: int) -> None:
    """Only the protocol is in network order (struct ifla_vf_vlan_info)."""
    body = vf.set_attribute(3, "vlan", (7, 2, protocol))
    for kind in (22, 1, 12, 1):
        body = netlink.attributes(body)[kind]
    assert body == struct.pack("=III", 3, 7, 2) + number.to_bytes(2, "big") + bytes(2)


@pytest.mark.parametrize(("name", "value"), [("mtu", 9000), ("trust", "on"), ("vlan", (1, 2)), ("link_state", 5)])
def test_no_such_attribute(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        vf.set_attribute(0, name, value)


def reported(index: int, *more: bytes) -> bytes:
    """One IFLA_VF_INFO, in the form of rtnl_fill_vfinfo."""
    mac = netlink.attr(1, struct.pack("=I", index) + bytes.fromhex(MAC.replace(":", "")) + bytes(26))
    return netlink.attr(1, mac + b"".join(more))


def test_parse() -> None:
    one = reported(
        0,
        netlink.attr(12, netlink.attr(1, struct.pack("=III", 0, 7, 2) + b"\x88\xa8\0\0")),
        netlink.attr(6, struct.pack("=III", 0, 10, 50)),
        netlink.attr(4, struct.pack("=II", 0, 1)),
        netlink.attr(9, struct.pack("=II", 0, 0)),
        netlink.attr(5, struct.pack("=II", 0, 1)),
    )
    # A value that the driver does not report is 2^32-1.
    other = reported(
        1, netlink.attr(4, struct.pack("=II", 1, 0xFFFFFFFF)), netlink.attr(2, struct.pack("=III", 1, 5, 1))
    )
    assert vf.parse(one + other) == {
        0: VfSettings(MAC, (7, 2, "802.1ad"), (10, 50), spoofchk=True, trust=False, link_state="enable"),
        1: VfSettings(MAC, (5, 1, "802.1q"), (0, 0), spoofchk=None, trust=None, link_state=None),
    }


def test_parse_of_an_infiniband_vf() -> None:
    """Its MAC is the first bytes of the PF's own address; a GUID that was not set is zero."""
    node = netlink.attr(10, struct.pack("=I4xQ", 0, 0x0011223344556677))
    port, none = (netlink.attr(11, struct.pack("=I4xQ", 0, number)) for number in (0x1122334455667788, 0))
    assert vf.parse(reported(0, node, port) + reported(1, none)) == {
        0: VfSettings(None, node_guid="00:11:22:33:44:55:66:77", port_guid="11:22:33:44:55:66:77:88"),
        1: VfSettings(None),
    }


def test_parse_of_nothing() -> None:
    assert vf.parse(b"") == {}


def test_differing_names_what_is_known_and_not_the_same() -> None:
    before = VfSettings(MAC, spoofchk=True, trust=None, link_state="auto")
    assert before.differing(before) == []
    assert before.differing(VfSettings(MAC, (7, 0, "802.1q"), spoofchk=False, trust=True, link_state="auto")) == [
        "vlan",
        "spoofchk",
    ]


def test_json_round_trip() -> None:
    one = VfSettings(MAC, (7, 2, "802.1ad"), (10, 50), spoofchk=True)
    assert VfSettings.from_json(json.loads(json.dumps(asdict(one)))) == one
