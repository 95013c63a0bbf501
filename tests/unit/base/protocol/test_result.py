"""ADD's result in every version's shape, as documents written by hand."""

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.protocol.result import Interface, Ip, Result, Route

RICH = Result(
    interfaces=(
        Interface("br0", mac="02:00:00:00:00:01"),
        Interface(
            "hpn0",
            mac="02:00:00:00:00:02",
            sandbox="/run/netns/p",
            mtu=9000,
            socket_path="/run/vhost.sock",
            pci_id="0000:3b:00.2",
        ),
    ),
    ips=(
        Ip(ip_interface("10.56.0.2/24"), ip_address("10.56.0.1"), 1),
        Ip(ip_interface("fd00:56::2/64"), None, 1),
        Ip(ip_interface("10.57.0.2/32")),
    ),
    routes=(
        Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1")),
        Route(ip_network("fd00::/16"), None, mtu=1400, advmss=1360, priority=0, table=1000, scope=253),
    ),
    dns={"nameservers": ["10.0.0.53"], "search": ["example.org"]},
)

DNS = {"nameservers": ["10.0.0.53"], "search": ["example.org"]}
OLD_INTERFACES = [
    {"name": "br0", "mac": "02:00:00:00:00:01"},
    {"name": "hpn0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/p"},
]
OLD_ROUTES = [{"dst": "0.0.0.0/0", "gw": "10.56.0.1"}, {"dst": "fd00::/16"}]
NUMBERED_IPS = [
    {"version": "4", "interface": 1, "address": "10.56.0.2/24", "gateway": "10.56.0.1"},
    {"version": "6", "interface": 1, "address": "fd00:56::2/64"},
    {"version": "4", "address": "10.57.0.2/32"},
]
IPS = [
    {"interface": 1, "address": "10.56.0.2/24", "gateway": "10.56.0.1"},
    {"interface": 1, "address": "fd00:56::2/64"},
    {"address": "10.57.0.2/32"},
]
THROUGH_0_4 = {"interfaces": OLD_INTERFACES, "ips": NUMBERED_IPS, "routes": OLD_ROUTES, "dns": DNS}
V1_0 = {"interfaces": OLD_INTERFACES, "ips": IPS, "routes": OLD_ROUTES, "dns": DNS}
V1_1 = {
    "interfaces": [
        {"name": "br0", "mac": "02:00:00:00:00:01"},
        {
            "name": "hpn0",
            "mac": "02:00:00:00:00:02",
            "sandbox": "/run/netns/p",
            "mtu": 9000,
            "socketPath": "/run/vhost.sock",
            "pciID": "0000:3b:00.2",
        },
    ],
    "ips": IPS,
    "routes": [
        {"dst": "0.0.0.0/0", "gw": "10.56.0.1"},
        {"dst": "fd00::/16", "mtu": 1400, "advmss": 1360, "priority": 0, "table": 1000, "scope": 253},
    ],
    "dns": DNS,
}
SHAPES = {"0.3.0": THROUGH_0_4, "0.3.1": THROUGH_0_4, "0.4.0": THROUGH_0_4, "1.0.0": V1_0, "1.1.0": V1_1}

# The rest of RICH in a version without the newer members.
PLAIN = Result(
    interfaces=(
        Interface("br0", mac="02:00:00:00:00:01"),
        Interface("hpn0", mac="02:00:00:00:00:02", sandbox="/run/netns/p"),
    ),
    ips=RICH.ips,
    routes=(Route(ip_network("0.0.0.0/0"), ip_address("10.56.0.1")), Route(ip_network("fd00::/16"))),
    dns=DNS,
)


@pytest.mark.parametrize("version", SHAPES)
def test_to_json(version: str) -> None:
    assert RICH.to_json(version) == SHAPES[version]


@pytest.mark.parametrize("version", SHAPES)
def test_from_json(version: str) -> None:
    assert Result.from_json(SHAPES[version]) == (RICH if version == "1.1.0" else PLAIN)
    assert Result.from_json({"cniVersion": version} | SHAPES[version]) == Result.from_json(SHAPES[version])


@pytest.mark.parametrize("version", SHAPES)
def test_round_trip(version: str) -> None:
    assert Result.from_json(SHAPES[version]).to_json(version) == SHAPES[version]


@pytest.mark.parametrize(
    ("version", "document"),
    [("0.3.0", {"dns": {}}), ("0.3.1", {"dns": {}}), ("0.4.0", {"dns": {}}), ("1.0.0", {}), ("1.1.0", {})],
)
def test_empty(version: str, document: dict[str, Any]) -> None:
    assert Result().to_json(version) == document
    assert Result.from_json(document) == Result()


@pytest.mark.parametrize(
    "document",
    [
        {"interfaces": None, "ips": None, "routes": None, "dns": None},  # Go's nil slices
        {"interfaces": [], "ips": [], "routes": [], "dns": {}},
        {"unknown": 5},
    ],
    ids=repr,
)
def test_empty_in_other_words(document: dict[str, Any]) -> None:
    assert Result.from_json(document) == Result()


def test_members_may_be_null_or_empty() -> None:
    document = {
        "interfaces": [{"name": "a", "mac": None, "sandbox": None, "mtu": None, "pciID": ""}],
        "ips": [{"address": "10.0.0.2/24", "gateway": None, "interface": None}],
        "routes": [{"dst": "10.0.0.0/8", "gw": None, "mtu": None, "table": None}],
    }
    assert Result.from_json(document) == Result(
        (Interface("a"),), (Ip(ip_interface("10.0.0.2/24")),), (Route(ip_network("10.0.0.0/8")),)
    )


def test_after_moves_the_interface_index() -> None:
    first = Result((Interface("a"), Interface("b")), (Ip(ip_interface("10.0.0.1/24"), None, 0),), dns={"domain": "x"})
    ours = Result(
        (Interface("c"),),
        (Ip(ip_interface("10.1.0.1/24"), None, 0), Ip(ip_interface("10.2.0.1/24"))),
        (Route(ip_network("10.9.0.0/16")),),
    )
    assert ours.after(first).to_json("1.1.0") == {
        "interfaces": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "ips": [
            {"interface": 0, "address": "10.0.0.1/24"},
            {"interface": 2, "address": "10.1.0.1/24"},
            {"address": "10.2.0.1/24"},
        ],
        "routes": [{"dst": "10.9.0.0/16"}],
        "dns": {"domain": "x"},
    }


def test_after_prefers_our_dns() -> None:
    assert Result(dns={"domain": "ours"}).after(Result(dns={"domain": "theirs"})).dns == {"domain": "ours"}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (5, "result 5"),
        ([], r"result \[\]"),
        ("x", "result 'x'"),
        ({"interfaces": 5}, "interfaces 5 is not a list"),
        ({"interfaces": {"name": "a"}}, "interfaces .* is not a list"),
        ({"interfaces": ["a"]}, "interfaces: 'a' is not an object"),
        ({"ips": "10.0.0.1"}, "ips '10.0.0.1' is not a list"),
        ({"ips": ["10.0.0.1/24"]}, "ips: '10.0.0.1/24' is not an object"),
        ({"routes": [5]}, "routes: 5 is not an object"),
        ({"dns": ["10.0.0.53"]}, "dns: .* is not an object"),
        (
            {"ips": [{"address": "10.0.0.2/24", "interface": 0}]},
            r"ips\[\].interface 0 is not an index into 0 interfaces",
        ),
        (
            {"interfaces": [{"name": "a"}], "ips": [{"address": "10.0.0.2/24", "interface": 1}]},
            r"ips\[\].interface 1 is not an index into 1 interfaces",
        ),
        ({"routes": [{"dst": "10.0.0.0/8", "mtu": "1400"}]}, r"routes\[\].mtu '1400' is not a number"),
        ({"routes": [{"dst": "10.0.0.0/8", "table": -1}]}, r"routes\[\].table -1 is not a number"),
        ({"routes": [{"dst": "10.0.0.0/8", "table": 2**32}]}, r"routes\[\].table 4294967296 is not a number"),
        ({"routes": [{"dst": "10.0.0.0/8", "scope": True}]}, r"routes\[\].scope True is not a number"),
        ({"routes": [{"dst": "10.0.0.0/8", "priority": 1.5}]}, r"routes\[\].priority 1.5 is not a number"),
        ({"routes": [{"dst": "10.0.0.0/8", "advmss": [1]}]}, r"routes\[\].advmss \[1\] is not a number"),
        # ipaddress' message has the value; ours names the member
        pytest.param({"ips": [{"address": "x"}]}, "(?s)address.*'x'"),
        pytest.param({"ips": [{}]}, "address"),
        pytest.param({"ips": [{"address": 5}]}, "(?s)address.*5"),
        pytest.param({"ips": [{"address": "10.0.0.2/33"}]}, "(?s)address.*10.0.0.2/33"),
        pytest.param({"ips": [{"address": "10.0.0.2/24", "gateway": "x"}]}, "(?s)gateway.*'x'"),
        pytest.param({"ips": [{"address": "10.0.0.2/24", "gateway": 5}]}, "(?s)gateway.*5"),  # 0.0.0.5 to Python
        pytest.param({"ips": [{"address": "10.0.0.2/24", "interface": "0"}]}, "interface '0'"),
        ({"ips": [{"address": "10.0.0.2/24", "interface": True}]}, "interface True"),
        pytest.param({"routes": [{}]}, "dst"),
        pytest.param({"routes": [{"dst": "x"}]}, "(?s)dst.*'x'"),
        pytest.param({"routes": [{"dst": "10.0.0.1/8"}]}, "(?s)dst.*10.0.0.1/8"),
        pytest.param({"routes": [{"dst": "10.0.0.0/8", "gw": "x"}]}, "(?s)gw.*'x'"),
        pytest.param({"routes": [{"dst": "10.0.0.0/8", "gw": 5}]}, "(?s)gw.*5"),
        pytest.param({"interfaces": [{"name": "a", "mtu": "x"}]}, "mtu 'x'"),
    ],
    ids=repr,
)
def test_malformed(document: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Result.from_json(document)


word = st.text(st.characters(codec="utf-8"), min_size=1, max_size=15)
number = st.integers(0, 2**32 - 1)
optional = st.none() | number
interfaces = st.builds(Interface, word, mac=word, sandbox=word, mtu=number, socket_path=word, pci_id=word)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@st.composite
def nets(draw: st.DrawFn, make: Any) -> Any:
    address = draw(addresses)
    return make((int(address).to_bytes(address.max_prefixlen // 8), draw(st.integers(0, address.max_prefixlen))))


@st.composite
def results(draw: st.DrawFn) -> Result:
    found = tuple(draw(st.lists(interfaces, max_size=3)))
    index = st.none() | st.integers(0, len(found) - 1) if found else st.none()
    ips = st.builds(Ip, nets(ip_interface), st.none() | addresses, index)
    network = nets(lambda at: ip_network(at, strict=False))
    routes = st.builds(Route, network, st.none() | addresses, optional, optional, optional, optional, optional)
    dns = st.dictionaries(word, word | st.lists(word), max_size=2)
    return Result(found, tuple(draw(st.lists(ips, max_size=3))), tuple(draw(st.lists(routes, max_size=3))), draw(dns))


@given(results())
def test_nothing_is_lost_in_the_newest_version(result: Result) -> None:
    assert Result.from_json(result.to_json("1.1.0")) == result


def test_an_ipv6_route_with_host_bits() -> None:
    """As in static's own documentation; the kernel clears the bits, so the reference plugins accept it."""
    (route,) = Result.from_json({"routes": [{"dst": "3ffe:ffff:0:1ff::1/64", "gw": "3ffe:ffff:0::1"}]}).routes
    assert route == Route(ip_network("3ffe:ffff:0:1ff::/64"), ip_address("3ffe:ffff::1"))
