"""Addresses derived from a MAC, without an interface."""

from ipaddress import IPv6Address, ip_address

import pytest

from base.protocol.errors import InvalidConfig
from ipam.config import load
from ipam.pool import eui64_addresses, interface_id

SMALL = {"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.9"}
EUI = {"subnet": "fd00:56::/64", "eui64": True}


def pool(**ipam):
    return load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam}, {})


@pytest.mark.parametrize(
    ("mac", "expected"),
    [
        ("34:56:78:9a:bc:de", "3656:78ff:fe9a:bcde"),  # RFC 4291, appendix A: an individual, universal one
        ("02:00:00:00:00:2a", "0:ff:fe00:2a"),  # locally administered: the bit goes
        # IPoIB's link address: flags and queue pair, subnet prefix, GUID; the bit is set, or stays so (RFC 4391).
        ("80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:1a:2b:3c", "202:c903:1a:2b3c"),
        ("80:00:02:08:fe:80:00:00:00:00:00:00:02:02:c9:03:00:1a:2b:3c", "202:c903:1a:2b3c"),
    ],
)
def test_interface_id(mac, expected):
    assert IPv6Address(bytes(8) + interface_id(mac)) == IPv6Address(f"::{expected}")


def test_addresses_of_a_mac():
    sets = pool(ranges=[[SMALL], [EUI], [{"subnet": "fd00:57::/64"}], [EUI | {"subnet": "fd00:58::/64"}]]).sets
    expected = ("fd00:56::ff:fe00:99", "fd00:58::ff:fe00:99")
    assert eui64_addresses(sets, "02:00:00:00:00:99") == tuple(map(ip_address, expected))


@pytest.mark.parametrize(
    ("ipam", "said"),
    [
        ({"subnet": "10.0.0.0/24", "eui64": True}, "ipam.eui64 true with subnet 10.0.0.0/24"),
        ({"ranges": [[{"subnet": "fd00::/48", "eui64": True}]]}, "ipam.ranges[0][0].eui64 true with subnet fd00::/48"),
        ({"ranges": [[EUI | {"rangeEnd": "fd00:56::9"}]]}, "the MAC determines the address"),
        ({"ranges": [[EUI | {"exclude": ["fd00:56::9"]}]]}, "the MAC determines the address"),
        ({"ranges": [[EUI | {"reserved": ["fd00:56::9"]}]]}, "the MAC determines the address"),
        ({"ranges": [[EUI, {"subnet": "fd00:57::/64"}]]}, "ipam.ranges[0] has 2 ranges on this node, one with eui64"),
        ({"eui64": True, "ranges": [[SMALL]]}, "of no effect without ipam.subnet"),
        ({"subnet": "fd00::/64", "eui64": "yes"}, 'ipam.eui64 "yes"'),
        (
            {"align": True, "rails": [{"pf": "a", **EUI}, {"pf": "b", "subnet": "fd00:57::/64"}]},
            "ipam.align: ipam.rails[0] has eui64",
        ),
    ],
)
def test_refused(ipam, said):
    with pytest.raises(InvalidConfig) as e:
        pool(**ipam)
    assert said in e.value.msg


def test_needs_the_link():
    assert pool(ranges=[[SMALL], [EUI]]).needs_link
    assert not pool(ranges=[[SMALL], [EUI | {"eui64": False}]]).needs_link
