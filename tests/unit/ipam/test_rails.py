"""Rails: an attachment's rail, and its addresses there."""

import json
from functools import partial

import pytest
from support.ipam_calls import Net
from support.rails import A, B, few, network, on, refused

from ctl.main import main
from ipam import rails

PF, VF, SF = "0000:3b:00.0", "0000:3b:02.1", "mlx5_core.sf.4"


@pytest.fixture
def net(tmp_path):
    return partial(network, tmp_path)


# The device


@pytest.fixture
def sys(tmp_path):
    """A PF eth1 on NUMA node 1 with a VF and a subfunction; eth1.7 is a VLAN over it, bond0 a bond with another PF."""
    root = tmp_path / "sys"
    for address, name, node in ((PF, "eth1", 1), (VF, "eth1v1", 1), ("0000:5e:00.0", "eth2", -1)):
        function = root / "bus/pci/devices" / address
        (function / "net" / name).mkdir(parents=True)
        (function / "vendor").write_text("0x15b3\n")
        (function / "numa_node").write_text(f"{node}\n")
        (root / "class/net" / name).mkdir(parents=True)
        (root / "class/net" / name / "device").symlink_to(function)
    (root / "bus/pci/devices" / VF / "physfn").symlink_to(f"../{PF}")
    (root / "bus/pci/devices" / PF / SF / "net/sf4").mkdir(parents=True)
    (root / "bus/auxiliary/devices").mkdir(parents=True)
    (root / "bus/auxiliary/devices" / SF).symlink_to(root / "bus/pci/devices" / PF / SF)
    for name, lower in (("eth1.7", ["eth1"]), ("bond0", ["eth1", "eth2"]), ("veth0", [])):
        (root / "class/net" / name).mkdir()
        for each in lower:
            (root / "class/net" / name / f"lower_{each}").symlink_to(f"../{each}")
    return root


OF_PF = {"pf": ("eth1",), "pciAddress": [PF], "numaNode": [1]}
OF_VF = OF_PF | {"pciAddress": [VF, PF]}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"deviceID": VF}, OF_VF),
        ({"runtimeConfig": {"deviceID": VF.upper()}, "deviceID": PF}, OF_VF),
        ({"pciBusID": VF, "type": "host-device"}, OF_VF),
        ({"deviceID": PF}, OF_PF),
        ({"deviceID": SF}, OF_PF),  # a part of it
        ({"device": "eth1v1", "kind": "host-device"}, OF_VF | {"master": ["eth1v1"]}),
        ({"device": "eth1", "type": "host-device"}, OF_PF | {"master": ["eth1"]}),
        ({"device": "eth1"}, {}),
        ({"deviceID": "0000:99:00.1"}, {"pciAddress": ["0000:99:00.1"]}),  # gone, or no PCI function
        ({"pf": "eth1"}, OF_PF | {"pf": ["eth1"]}),
        ({"pf": "nosuch"}, {"pf": ["nosuch"]}),
        ({"pf": "eth2"}, {"pf": ["eth2"], "pciAddress": ["0000:5e:00.0"]}),  # a machine without nodes
        ({"master": "eth1"}, OF_PF | {"master": ["eth1"]}),
        ({"master": "eth1v1"}, OF_VF | {"master": ["eth1v1"]}),
        ({"master": "eth1.7", "deviceID": "0000:5e:00.0"}, OF_PF | {"master": ["eth1.7"]}),  # Multus' is passed over
        ({"master": "bond0"}, {"master": ["bond0"]}),
        ({"master": "veth0"}, {"master": ["veth0"]}),
        ({"master": "eth1", "linkInContainer": True}, {"master": ["eth1"]}),  # another of that name
        ({"deviceID": VF, "type": "macvlan"}, {}),  # over the default route's interface
        ({"deviceID": VF, "kind": "ipvlan"}, {}),
        ({"deviceID": VF, "mode": "bridge"}, {}),
        ({"deviceID": 5, "master": ["x"], "pf": "../../bus"}, {}),
        ({}, {}),
    ],
)
def test_device(sys, conf, expected):
    assert dict(rails.device_of(conf, sys)) == expected


# The rail


def test_each_its_own_ranges(net):
    net = net(A, B | {"ranges": [[{"subnet": "fd00:2::/64"}]]}, routes=[{"dst": "10.0.0.0/8"}])
    assert on(net, "eth1") == ("10.1.0.2",)
    assert on(net, "eth2") == ("10.2.0.2", "fd00:2::2")
    assert net.call("ADD", "d", master="eth2")["ips"][0] == {"address": "10.2.0.3/24", "gateway": "10.2.0.1"}
    assert on(net, "eth2") == ("10.2.0.2", "fd00:2::2"), "the same again"
    assert net.agrees()


def test_no_pod_gets_the_gateway_of_a_route_by_chance(net):
    net = net(A, B, routes=[{"dst": "10.0.0.0/8", "gw": "10.2.0.2"}])
    assert (on(net, "eth1"), on(net, "eth2")) == (("10.1.0.2",), ("10.2.0.3",))


def test_round_robin_on_each_rail(net):
    """An ADD on another rail in between does not make an address available again at once."""
    net = net()
    for number in range(2, 6):
        assert on(net, "eth1") == (f"10.1.0.{number}",)
        assert on(net, "eth2") == (f"10.2.0.{number}",)
        net.call("DEL", "c", "net-eth1")
        net.call("DEL", "c", "net-eth2")


def test_released_by_delete_and_gc(net):
    net = net()
    on(net, "eth1"), on(net, "eth2"), on(net, "eth1", "d")
    assert net.call("DEL", "c", "net-eth2") == {}, "it names no device"
    assert net.held() == {"10.1.0.2", "10.1.0.3"}
    assert net.gc(("d", "net-eth1")) == {}
    assert net.held() == {"10.1.0.3"}


def test_check(net):
    net = net()
    on(net, "eth2")
    assert net.call("CHECK", "c", "net-eth2") == {}


def test_requested(net):
    net = net()
    assert on(net, "eth2", args="IP=10.2.0.9") == ("10.2.0.9",)
    answer = refused(net, "eth1", "d", args="IP=10.2.0.8")
    assert (answer["code"], answer["msg"]) == (
        102,
        "requested address 10.2.0.8 is in no range: ipam.rails[0] is 10.1.0.0/24; request another",
    )


def test_the_dead_give_way(net):
    net = net(few(A, 5, 5), B)
    on(net, "eth1", ifname="net1")
    net.rewrite("c", boot="another")
    assert on(net, "eth1", "d") == ("10.1.0.5",)


@pytest.mark.parametrize("align", [False, True])
def test_status_is_of_every_rail(net, align):
    net = net(few(A, 5, 5), few(B, 5, 6), align=align)
    assert net.call("STATUS") == {}, "it names no device"
    on(net, "eth1")
    answer = net.call("STATUS")
    assert answer["code"] == 50
    assert "ipam.rails[0]" in answer["msg"]


def test_shown(net, capsys):
    net = net(few(A, 5, 6), few(B, 5, 8))
    on(net, "eth2")
    log = net.reply("ADD", "d", "net-eth1", master="eth1").log
    assert not any("its ranges changed" in line for line in log), "they are the same on every rail"
    assert main(["hpn", "ipam", "show", "--data-dir", str(net.state / "ipam"), "--json"]) == 0
    (network,) = json.loads(capsys.readouterr().out)["networks"]
    assert [(pool["held"], pool["size"]) for pool in network["pools"]] == [(1, 2), (1, 4)]


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"master": "eth3"}, ["the attachment has master eth3", "the rails are master eth1, master eth2"]),
        ({"pf": "eth3"}, ["the attachment has pf eth3,"]),
        ({}, ["names no device", "set master, deviceID or pf"]),
        ({"master": "\ud800", "pf": "\ud800"}, ["names no device"]),
        ({"master": "eth1", "type": "macvlan", "deviceID": "0000:ff:1f.7"}, []),
    ],
)
def test_no_rail(net, more, parts):
    answer = net().call("ADD", **more)
    assert answer.get("code") == (7 if parts else None)
    assert all(part in answer["msg"] for part in parts), answer["msg"]


def test_two_rails(net, sys, monkeypatch):
    monkeypatch.setattr(rails.device_of, "__defaults__", (sys,))
    net = net({"numaNode": 1, "subnet": "10.1.0.0/24"}, {"pf": "eth1", "subnet": "10.2.0.0/24"})
    answer = net.call("ADD", deviceID=VF)
    assert answer["code"] == 7
    assert f"has pf eth1, pciAddress {VF} or {PF}, numaNode 1" in answer["msg"]
    assert "ipam.rails[0] (numaNode 1) and ipam.rails[1] (pf eth1)" in answer["msg"]
    net.ipam["rails"][0] = {"pciAddress": "0000:5E:00.0", "subnet": "10.1.0.0/24"}
    assert net.add(deviceID=VF) == ("10.2.0.2",)
    assert net.add("d", deviceID="0000:5e:00.0") == ("10.1.0.2",)


# The configuration

R, S = {"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24"}


@pytest.mark.parametrize(
    ("ipam", "code", "parts"),
    [
        ({"rails": []}, 7, ["ipam.rails []"]),
        ({"rails": [R]}, 7, ["ipam.rails[0] has none of pf, master, pciAddress, numaNode"]),
        ({"rails": [A | {"pf": "eth1"}]}, 7, ["ipam.rails[0] has pf and master of"]),
        ({"rails": [A, {"pf": "eth1"}]}, 7, ["ipam.rails[1] has no range", "subnet or ranges"]),
        ({"rails": [A, B | {"master": "eth1"}]}, 7, ["ipam.rails[1] and ipam.rails[0] are both for master eth1"]),
        ({"rails": [A, A | {"master": "eth2"}]}, 7, ["ipam.rails[1] 10.1.0.1-", "overlaps ipam.rails[0]"]),
        ({"rails": [A | {"gateway": "10.2.0.1"}]}, 7, ["ipam.rails[0].gateway 10.2.0.1"]),
        ({"rails": [{"pf": "e", "gateway": "10.2.0.1"}]}, 7, ["ipam.rails[0].gateway", "without ipam.rails[0].subnet"]),
        ({"rails": [{"pf": "a/b", **R}]}, 7, ['ipam.rails[0].pf "a/b"']),
        ({"rails": [{"master": 5, **R}]}, 7, ["ipam.rails[0].master 5"]),
        ({"rails": [{"pciAddress": "3b:00.2", **R}]}, 7, ['ipam.rails[0].pciAddress "3b:00.2"', "0000:3b:00.2"]),
        ({"rails": [{"numaNode": -1, **R}]}, 7, ["ipam.rails[0].numaNode -1"]),
        ({"rails": [{"numaNode": "0", **R}]}, 7, ['ipam.rails[0].numaNode "0"']),
        ({"rails": [A | {"pciadress": 1}]}, 2, ["ipam.rails[0].pciadress 1", "unknown key"]),
        ({"rails": [A], **S}, 7, ["ipam.subnet beside ipam.rails"]),
        ({"rails": [A], "ranges": [[S]]}, 7, ["ipam.ranges beside ipam.rails"]),
        ({**R, "align": True}, 7, ["ipam.align true", "without ipam.rails"]),
        ({"rails": [A, B], "align": 1}, 7, ["ipam.align 1"]),
        ({"rails": [A, few(A, 9, 9) | {"master": "eth2", "rangeStart": "10.1.0.9"}], "align": True}, 7, ["overlaps"]),
        ({"rails": [few(A, 2, 8), few(A, 9, 9) | {"master": "b"}], "align": True}, 7, ["host number is the same"]),
        ({"rails": [A, B | {"ranges": [[{"subnet": "fd00::/64"}]]}], "align": True}, 7, ["IPv4 and", "IPv4, IPv6"]),
        ({"rails": [A, {"pf": "e", "ranges": [[S, {"subnet": "10.3.0.0/24"}]]}], "align": True}, 7, ["2 ranges"]),
    ],
)
def test_refused(tmp_path, ipam, code, parts):
    answer = Net(tmp_path, ipam).call("ADD", master="eth1")
    assert answer.get("code") == code, answer
    assert all(part in answer["msg"] for part in parts), answer["msg"]
    assert not list(tmp_path.iterdir()), "a refused configuration leaves nothing"


def test_no_ranges_of_the_runtime(net):
    answer = net().call("ADD", master="eth1", runtimeConfig={"ipRanges": [[S]]})
    assert (answer["code"], "runtimeConfig.ipRanges beside ipam.rails" in answer["msg"]) == (7, True)


# sticky


def of(pod):
    return f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}"


@pytest.mark.parametrize("align", [False, True])
def test_sticky_is_by_rail(net, align):
    """The device plugin chooses the rail of each of a pod's interfaces, each time another."""
    net = net(sticky=3600, align=align)
    on(net, "eth1", "x", args=of("x"))
    first = on(net, "eth1", "c1", "net1", of("db-0")), on(net, "eth2", "c1", "net2", of("db-0"))
    for ifname in ("net1", "net2"):
        net.call("DEL", "c1", ifname)
    on(net, "eth1", "y", args=of("y")), on(net, "eth2", "z", args=of("z"))
    second = on(net, "eth2", "c2", "net1", of("db-0")), on(net, "eth1", "c2", "net2", of("db-0"))
    assert second == first[::-1]
    assert net.agrees()


def test_alignment_before_stickiness(net):
    net = net(sticky=3600)
    on(net, "eth1", "x", args=of("x"))
    first = on(net, "eth1", "c1", args=of("db-0")), on(net, "eth2", "c1", args=of("db-0"))
    assert first == (("10.1.0.3",), ("10.2.0.2",))
    for master in ("eth1", "eth2"):
        net.call("DEL", "c1", f"net-{master}")
    net.ipam["align"] = True
    assert on(net, "eth1", "c2", args=of("db-0")) == ("10.1.0.3",)
    assert on(net, "eth2", "c2", args=of("db-0")) == ("10.2.0.3",)
    assert net.agrees()


def test_sticky_and_requested(net):
    net = net(sticky=3600, align=True)
    for cid in ("c1", "c2"):
        assert on(net, "eth1", cid, args=of("db-0") + ";IP=10.1.0.9") == ("10.1.0.9",)
        assert on(net, "eth2", cid, args=of("db-0")) == ("10.2.0.9",)
        for master in ("eth1", "eth2"):
            net.call("DEL", cid, f"net-{master}")
