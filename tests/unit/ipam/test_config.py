"""The configuration, through the program: accepted values, and the messages of refusals."""

import json

import pytest
from support.ipam_calls import Net

R = {"subnet": "10.0.0.0/24"}
SIX = {"subnet": "fd00::/64"}
DEFAULT = {"dst": "0.0.0.0/0", "gw": "10.0.0.1"}


@pytest.mark.parametrize(
    ("ipam", "expected"),
    [
        (R, [("10.0.0.2/24", "10.0.0.1")]),  # host-local's oldest form
        ({"ranges": [[R], [SIX]]}, [("10.0.0.2/24", "10.0.0.1"), ("fd00::2/64", "fd00::1")]),  # dual stack
        ({**SIX, "ranges": [[R]]}, [("fd00::2/64", "fd00::1"), ("10.0.0.2/24", "10.0.0.1")]),  # subnet's set is first
        ({**R, "gateway": None}, [("10.0.0.1/24", None)]),  # null: no gateway, and .1 is free to give
        ({**R, "gateway": None, "routes": [DEFAULT]}, [("10.0.0.2/24", None)]),  # .1 is a router all the same
        (
            {"ranges": [[R], [{**SIX, "gateway": None}]], "routes": [DEFAULT, {"dst": "fd01::/64", "gw": "fd00::1"}]},
            [("10.0.0.2/24", "10.0.0.1"), ("fd00::2/64", None)],
        ),
        ({**R, "gateway": "10.0.0.254"}, [("10.0.0.1/24", "10.0.0.254")]),
        ({**R, "rangeStart": "10.0.0.9"}, [("10.0.0.9/24", "10.0.0.1")]),  # a gateway outside the range
        ({"subnet": "10.0.0.4/31"}, [("10.0.0.4/31", None)]),  # point to point has no third party
        ({"subnet": "10.0.0.4/32"}, [("10.0.0.4/32", None)]),
        ({"subnet": "fd00::4/127"}, [("fd00::4/127", None)]),
        ({"subnet": "::/64", "gateway": None}, [("::1:0:0/64", None)]),  # the first without an IPv4 address in it
        ({**SIX, "gateway": "fe80::1"}, [("fd00::1/64", "fe80::1")]),  # the kernel resolves it on the link
        ({**SIX, "gateway": "fd00::"}, [("fd00::1/64", "fd00::")]),  # the subnet routers' anycast address
        ({**R, "exclude": ["10.0.0.2"]}, [("10.0.0.3/24", "10.0.0.1")]),
        ({**R, "exclude": ["10.0.0.0/29"]}, [("10.0.0.8/24", "10.0.0.1")]),
        ({**R, "exclude": ["10.0.0.2-10.0.0.4", "10.0.0.5"]}, [("10.0.0.6/24", "10.0.0.1")]),
        ({"ranges": [[{**R, "exclude": ["10.0.0.2"]}]]}, [("10.0.0.3/24", "10.0.0.1")]),
        (
            {"ranges": [[{**R, "rangeEnd": "10.0.0.9"}, {**R, "rangeStart": "10.0.0.10"}]]},
            [("10.0.0.2/24", "10.0.0.1")],
        ),
        ({**R, "cni.dev/whatever": 1, "type": 5}, [("10.0.0.2/24", "10.0.0.1")]),  # never ours to refuse
        ({**R, "ranges": None, "routes": None, "exclude": None}, [("10.0.0.2/24", "10.0.0.1")]),  # Go's empty
        ({**R, "rangeStart": "", "rangeEnd": "", "gateway": ""}, [("10.0.0.2/24", "10.0.0.1")]),  # Go's defaults
        ({"ranges": [[{**R, "gateway": "", "rangeend": ""}]], "rangeStart": ""}, [("10.0.0.2/24", "10.0.0.1")]),
        (
            {**R, "dataDir": "", "resolvConf": "", "routes": [{"dst": "10.0.0.0/8", "gw": ""}]},
            [("10.0.0.2/24", "10.0.0.1")],
        ),
        ({"Subnet": "10.0.0.0/24", "rangestart": "10.0.0.9"}, [("10.0.0.9/24", "10.0.0.1")]),
        ({"RANGES": [[{"SUBNET": "10.0.0.0/24", "Gateway": None}]]}, [("10.0.0.1/24", None)]),
    ],
)
def test_taken(tmp_path, ipam, expected):
    answer = Net(tmp_path, ipam).call("ADD")
    assert [(ip["address"], ip.get("gateway")) for ip in answer["ips"]] == expected


@pytest.mark.parametrize(
    ("ipam", "code", "parts"),
    [
        ({}, 7, ["ipam has no range", "set ipam.subnet"]),
        (None, 7, ["ipam is missing"]),
        ({"subnet": "10.1/16"}, 7, ['ipam.subnet "10.1/16"', "write it in full"]),  # inet_aton's shorthand
        ({"subnet": "fe80::/64", "gateway": "fe80::1%eth0"}, 7, ["ipam.gateway", "write it in full"]),
        ({"subnet": "010.0.0.0/16"}, 7, ["ipam.subnet", "write it in full"]),  # octal, to some
        ({"subnet": "10.0.0.0"}, 7, ['ipam.subnet "10.0.0.0"', "address/length"]),
        ({"subnet": "10.0.0.0/33"}, 7, ["ipam.subnet", "address/length"]),
        ({"subnet": "10.0.0.0/255.255.255.0"}, 7, ["ipam.subnet", "address/length"]),
        ({"subnet": 5}, 7, ["ipam.subnet 5"]),
        ({"subnet": "10.0.0.5/24"}, 7, ["ipam.subnet", "host bits", "write 10.0.0.0/24"]),
        ({"ranges": [[R, {**R, "rangeStart": "10.0.1.1"}]]}, 7, ["ipam.ranges[0][1].rangeStart 10.0.1.1", "outside"]),
        ({**R, "rangeEnd": "fd00::1"}, 7, ["ipam.rangeEnd fd00::1", "outside"]),  # the other family
        ({**R, "gateway": "10.0.1.1"}, 7, ["ipam.gateway 10.0.1.1", "outside"]),
        ({**SIX, "gateway": "fd01::1"}, 7, ["ipam.gateway fd01::1", "outside"]),
        ({**R, "gateway": "fe80::1"}, 7, ["ipam.gateway fe80::1", "outside"]),
        ({**R, "gateway": "169.254.1.1"}, 7, ["ipam.gateway 169.254.1.1", "outside"]),
        ({**R, "rangeStart": "10.0.0.255", "rangeEnd": "10.0.0.255"}, 7, ["leave nothing of 10.0.0.255", "broadcast"]),
        ({**R, "gateway": "10.0.0.255"}, 7, ["ipam.gateway 10.0.0.255", "broadcast"]),
        ({**R, "gateway": "10.0.0.0"}, 7, ["ipam.gateway 10.0.0.0", "network"]),
        ({"subnet": "::/64"}, 7, ["ipam.gateway ::1", "loopback"]),
        ({"subnet": "224.1.0.0/24"}, 7, ["ipam.subnet 224.1.0.0/24", "multicast"]),
        ({"subnet": "127.0.0.5/32"}, 7, ["ipam.subnet 127.0.0.5/32", "loopback"]),
        ({"ranges": [[{"subnet": "0.0.0.0/24"}]]}, 7, ["ipam.ranges[0][0].subnet 0.0.0.0/24", "unspecified"]),
        ({"subnet": "ff05::/64"}, 7, ["ipam.subnet ff05::/64", "multicast"]),
        ({"subnet": "::ffff:0:0/96"}, 7, ["ipam.subnet ::ffff:0:0/96", "no host"]),
        ({**R, "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}, 7, ["ipam.rangeStart", "10.0.0.9-10.0.0.8"]),
        ({**R, "rangeStart": "10.0.0.255"}, 7, ["ipam.rangeStart", "not a range"]),  # above the default end
        ({"ranges": [[R], [R]]}, 7, ["ipam.ranges[1][0]", "overlaps ipam.ranges[0][0]"]),  # across sets
        ({"ranges": [[R, {"subnet": "10.0.0.128/25"}]]}, 7, ["overlaps"]),  # within one
        ({"ranges": [[R, SIX]]}, 7, ["ipam.ranges[0]", "mixes"]),
        ({"ranges": [[]]}, 7, ["ipam.ranges[0] []", "no range"]),
        ({"ranges": [R]}, 7, ["ipam.ranges[0]", "list"]),  # a set forgotten
        ({"ranges": [[{"gateway": "10.0.0.1"}]]}, 7, ["ipam.ranges[0][0].subnet is missing"]),
        ({"gateway": "10.0.0.1", "ranges": [[R]]}, 7, ["ipam.gateway", "without ipam.subnet"]),  # host-local: silence
        ({**R, "exclude": ["10.0.0.0/24"]}, 7, ["ipam: ", "leave nothing"]),
        ({"subnet": "10.0.0.4/32", "gateway": "10.0.0.4"}, 7, ["leave nothing"]),
        ({**R, "exclude": ["10.0.0.3", "10.0.1.0/24"]}, 7, ["ipam.exclude[1]", "10.0.1.0-10.0.1.255", "outside"]),
        ({**R, "exclude": ["10.0.0.9-10.0.0.8"]}, 7, ["ipam.exclude[0]", "lowest-highest"]),
        ({**R, "exclude": ["10.0.0.9-fd00::1"]}, 7, ["ipam.exclude[0]", "lowest-highest"]),
        ({**R, "routes": [{"dst": "0.0.0.0/0", "mtu": -1}]}, 7, ["ipam.routes[0].mtu -1"]),
        ({**R, "routes": [{"dst": "0.0.0.0/0", "mtu": True}]}, 7, ["ipam.routes[0].mtu true"]),  # not 1
        ({**R, "resolvConf": "/nonexistent/r"}, 7, ["ipam.resolvConf", "/nonexistent/r", "allowedPaths.resolvConf"]),
        ({**R, "dataDir": "state"}, 7, ["ipam.dataDir 'state'", "absolute"]),
        ({**R, "rangestrat": "10.0.0.9"}, 2, ["ipam.rangestrat", '"10.0.0.9"', "unknown key"]),
        ({**R, "rangeEnd": "10.0.0.9", "rangeend": ""}, 7, ["ipam.rangeEnd and ipam.rangeend", "remove one"]),
        ({"ranges": [[{**R, "x": {"y": 1}}]]}, 2, ["ipam.ranges[0][0].x", '{"y": 1}']),
        ({**R, "routes": [{"dst": "0.0.0.0/0", "metric": 5}]}, 2, ["ipam.routes[0].metric 5"]),
    ],
)
def test_refused(tmp_path, ipam, code, parts):
    answer = Net(tmp_path, ipam).call("ADD")
    assert answer.get("code") == code, answer
    assert all(part in answer["msg"] for part in parts), answer["msg"]
    assert not list(tmp_path.iterdir()), "a refused configuration leaves nothing"


@pytest.mark.parametrize(
    ("ipam", "addresses", "left_out"),
    [
        ({**R, "rangeStart": "10.0.0.254", "rangeEnd": "10.0.0.255"}, ["10.0.0.254"], "10.0.0.255"),
        ({**R, "rangeStart": "10.0.0.0", "rangeEnd": "10.0.0.2"}, ["10.0.0.2"], "10.0.0.0"),
        ({**SIX, "rangeStart": "fd00::", "rangeEnd": "fd00::2"}, ["fd00::2"], "fd00::"),
        (
            {
                "ranges": [
                    [
                        {**R, "rangeEnd": "10.0.0.255", "exclude": ["10.0.0.0/25", "10.0.0.128-10.0.0.253"]},
                        {"subnet": "10.1.0.0/30"},
                    ]
                ]
            },
            ["10.0.0.254", "10.1.0.2"],
            "10.0.0.255",
        ),
        ({"subnet": "10.0.0.4/31", "rangeStart": "10.0.0.4"}, ["10.0.0.4", "10.0.0.5"], ""),
        ({"subnet": "fd00::4/127"}, ["fd00::4", "fd00::5"], ""),
        ({**R, "exclude": ["10.0.0.3-10.0.0.255"], "rangeEnd": "10.0.0.255"}, ["10.0.0.2"], ""),
    ],
)
def test_a_range_with_an_address_that_no_host_can_have(tmp_path, ipam, addresses, left_out):
    """host-local allocates these, so a migrated configuration may name them.  No pod gets one; the log has a line."""
    net = Net(tmp_path, ipam)
    replies = [net.reply("ADD", f"c{n}") for n in range(len(addresses) + 1)]
    answers = [json.loads(reply.stdout) for reply in replies]
    assert [a["ips"][0]["address"].partition("/")[0] for a in answers[:-1]] == addresses
    assert answers[-1]["code"] == 103
    for reply in replies:
        assert [line.partition(": ")[0].partition(" leaves out ")[2] for line in reply.log] == [left_out] * bool(
            left_out
        )


@pytest.mark.parametrize("address", ["10.0.0.0", "10.0.0.255"])
@pytest.mark.parametrize(
    "keys", [{"rangeStart": "10.0.0.0", "rangeEnd": "10.0.0.255"}, {"reserved": ["10.0.0.0", "10.0.0.255"]}]
)
def test_no_request_gets_an_address_that_no_host_can_have(tmp_path, keys, address):
    answer = Net(tmp_path, {**R, **keys}, {"runtimeConfig": {"ips": [address]}}).call("ADD")
    assert (answer["code"], "broadcast" in answer["msg"]) == (102, True), answer


def test_all_problems_are_told(tmp_path):
    answer = Net(tmp_path, {"subnet": "10.1/16", "gateway": "x", "foo": 1}).call("ADD")
    assert "ipam.gateway" in answer["msg"] + answer["details"]
    assert "ipam.subnet" in answer["msg"] + answer["details"]
    assert "ipam.foo" in answer["details"]


def test_not_strict_tolerates_unknown_keys_only(tmp_path):
    net = Net(tmp_path, {"ranges": [[{**R, "x": 1}]], "y": 2}, {"strict": False})
    assert net.add() == ("10.0.0.2",)
    net.ipam["ranges"][0][0]["gateway"] = "10.9.9.9"
    assert net.call("ADD")["code"] == 7


def test_strict_must_be_a_boolean(tmp_path):
    assert Net(tmp_path, R, {"strict": "no"}).call("ADD")["code"] == 7


def test_runtime_ranges_come_first(tmp_path):
    net = Net(tmp_path, {**R, "ranges": [[SIX]]}, {"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/24"}]]}})
    assert net.add() == ("10.7.0.2", "10.0.0.2", "fd00::2")


def test_runtime_ranges_are_named_in_refusals(tmp_path):
    net = Net(tmp_path, R, {"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/24", "gateway": "1.1.1.1"}]]}})
    assert net.call("ADD")["msg"].startswith("runtimeConfig.ipRanges[0][0].gateway 1.1.1.1")


@pytest.mark.usefixtures("node_file")
def test_routes_and_dns_are_passed_on(tmp_path):
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(
        "# nameserver 9.9.9.9\nnameserver 10.0.0.53\nnameserver fd00::53 # why\ndomain a.b\n"
        "search a.b c\noptions ndots:2 edns0\nsortlist 1.2.3.4\n\nnameserver\n"
    )
    route = {"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400, "advmss": 1360, "priority": 0, "table": 5, "scope": 253}
    answer = Net(tmp_path / "s", {**R, "routes": [route, {"dst": "fd00::/8"}], "resolvConf": str(resolv)}).call("ADD")
    assert answer["routes"] == [route, {"dst": "fd00::/8"}]
    assert answer["dns"] == {
        "nameservers": ["10.0.0.53", "fd00::53"],
        "domain": "a.b",
        "search": ["a.b", "c"],
        "options": ["ndots:2", "edns0"],
    }
    assert "interfaces" not in answer
    assert "interface" not in answer["ips"][0]


@pytest.mark.parametrize(
    ("more", "args", "expected"),
    [
        ({}, "IP=10.0.0.9", "10.0.0.9"),
        ({}, "IP=10.0.0.9/8", "10.0.0.9"),  # the subnet's length counts
        ({"runtimeConfig": {"ips": ["10.0.0.8/24"]}}, "IP=10.0.0.9", "10.0.0.8"),  # hides CNI_ARGS whole
        ({"args": {"cni": {"ips": ["10.0.0.7"]}}}, "IP=10.0.0.9", "10.0.0.7"),
        ({"args": {"cni": {"ips": ["10.0.0.7"]}}, "runtimeConfig": {"ips": ["10.0.0.8"]}}, "", "10.0.0.8"),
        ({"runtimeConfig": {"ips": []}}, "IP=10.0.0.9", "10.0.0.9"),  # Multus may send an empty list
        ({"runtimeConfig": {"ips": ["10.0.0.8", "10.0.0.8/24"]}}, "", "10.0.0.8"),  # twice the same is once
    ],
)
def test_requested(tmp_path, more, args, expected):
    assert Net(tmp_path, R, more).add(args=args) == (expected,)


def test_requested_by_a_comma_list(tmp_path):
    assert Net(tmp_path, {"ranges": [[R], [SIX]]}).add(args="IP=fd00::9,10.0.0.9") == ("10.0.0.9", "fd00::9")


@pytest.mark.parametrize(
    ("more", "args", "code"),
    [
        ({}, "IP=10.0.9", 4),  # the environment's fault
        ({"runtimeConfig": {"ips": ["nonsense"]}}, "", 7),  # the configuration's
        ({"args": {"cni": {"ips": [5]}}}, "", 7),
        ({}, "IP=10.0.0.1", 102),  # the gateway
        ({}, "IP=10.0.1.1", 102),
    ],
)
def test_requested_and_refused(tmp_path, more, args, code):
    assert Net(tmp_path, R, more).call("ADD", args=args)["code"] == code


def test_a_pod_that_is_the_router_requests_its_address(tmp_path):
    net = Net(tmp_path, {**R, "gateway": None, "routes": [DEFAULT]})
    assert net.call("ADD", args="IP=10.0.0.1")["ips"][0]["address"] == "10.0.0.1/24"


def test_an_interface_that_has_a_routes_gateway_from_its_mac(tmp_path):
    """Such a range has no choice, so nothing of it can be reserved."""
    conf = {**SIX, "gateway": None, "eui64": True}
    said = [
        Net(tmp_path, conf | more).call("STATUS") for more in ({}, {"routes": [{"dst": "fd01::/64", "gw": "fd00::1"}]})
    ]
    assert said[0] == said[1]
    assert "code" not in (said[0] or {})


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_every_version(tmp_path, version):
    answer = Net(tmp_path, R, {"cniVersion": version}).call("ADD")
    assert answer["cniVersion"] == version
    assert answer["ips"][0].get("version") == ("4" if version < "1" else None)


def test_data_dir(tmp_path):
    Net(tmp_path / "unused", {**R, "dataDir": str(tmp_path / "d")}).add()
    assert '"addresses":["10.0.0.2/24"]' in (tmp_path / "d" / "net" / "leases").read_text()
    assert not (tmp_path / "unused").exists()
