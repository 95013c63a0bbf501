"""Rails: which one an attachment is on, and the same host number on all of them."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.ipam_calls import Net, killed_at

from ctl.main import main
from ipam import device

A, B = {"master": "eth1", "subnet": "10.1.0.0/24"}, {"master": "eth2", "subnet": "10.2.0.0/24"}
PF, VF = "0000:3b:00.0", "0000:3b:02.1"


@pytest.fixture
def net(tmp_path):
    def network(*rails, **ipam):
        return Net(tmp_path, {"rails": list(rails or (A, B)), **ipam})

    return network


def on(net, master, cid="c", ifname=None, args=""):
    """The addresses of an ADD over this master, by an interface named after it."""
    return net.add(cid, ifname or f"net-{master}", args, master=master)


def refused(net, master, cid="c", ifname=None, args=""):
    return net.call("ADD", cid, ifname or f"net-{master}", args, master=master)


def few(rail, first, last, **more):
    base = rail["subnet"].rpartition(".")[0]
    return rail | {"rangeStart": f"{base}.{first}", "rangeEnd": f"{base}.{last}", **more}


# The device


@pytest.fixture
def sys(tmp_path):
    """A PF eth1 with a VF, of node 1; eth1.7 is a VLAN over it, bond0 a bond of it and of another."""
    root = tmp_path / "sys"
    for address, name, node in ((PF, "eth1", 1), (VF, "eth1v1", 1), ("0000:5e:00.0", "eth2", -1)):
        function = root / "bus/pci/devices" / address
        (function / "net" / name).mkdir(parents=True)
        (function / "vendor").write_text("0x15b3\n")
        (function / "numa_node").write_text(f"{node}\n")
        (root / "class/net" / name).mkdir(parents=True)
        (root / "class/net" / name / "device").symlink_to(function)
    (root / "bus/pci/devices" / VF / "physfn").symlink_to(f"../{PF}")
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
    assert dict(device.of(conf, sys)) == expected


# The rail


def test_each_its_own_ranges(net):
    net = net(A, B | {"ranges": [[{"subnet": "fd00:2::/64"}]]}, routes=[{"dst": "10.0.0.0/8"}])
    assert on(net, "eth1") == ("10.1.0.2",)
    assert on(net, "eth2") == ("10.2.0.2", "fd00:2::2")
    assert net.call("ADD", "d", master="eth2")["ips"][0] == {"address": "10.2.0.3/24", "gateway": "10.2.0.1"}
    assert on(net, "eth2") == ("10.2.0.2", "fd00:2::2"), "the same again"
    assert net.agrees()


def test_round_robin_on_each_rail(net):
    """An address is not given again at once for an ADD on another rail in between."""
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
    assert not any("its ranges were" in line for line in log), "they are the same on every rail"
    assert main(["hpn", "ipam", "show", "--data-dir", str(net.state / "ipam"), "--json"]) == 0
    (network,) = json.loads(capsys.readouterr().out)["networks"]
    assert [(pool["held"], pool["size"]) for pool in network["pools"]] == [(1, 2), (1, 4)]


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"master": "eth3"}, ["the attachment has master eth3", "the rails are master eth1, master eth2"]),
        ({"pf": "eth3"}, ["the attachment has pf eth3,"]),
        ({}, ["names no device", "set master, deviceID or pf"]),
        ({"master": "eth1", "type": "macvlan", "deviceID": "0000:ff:1f.7"}, []),
    ],
)
def test_no_rail(net, more, parts):
    answer = net().call("ADD", **more)
    assert answer.get("code") == (7 if parts else None)
    assert all(part in answer["msg"] for part in parts), answer["msg"]


def test_two_rails(net, sys, monkeypatch):
    monkeypatch.setattr(device.of, "__defaults__", (sys,))
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
        ({"rails": [A, B | {"master": "eth1"}]}, 7, ["ipam.rails[1] and ipam.rails[0] are both of master eth1"]),
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


# align


def test_the_same_number(net):
    net = net(align=True)
    assert on(net, "eth1") == ("10.1.0.2",)
    assert on(net, "eth2", "d") == ("10.2.0.3",), "2 is c's, also where it has not come to yet"
    assert on(net, "eth2") == ("10.2.0.2",)
    assert on(net, "eth1", "d") == ("10.1.0.3",)
    assert on(net, "eth2") == ("10.2.0.2",), "the same again"
    assert on(net, "eth1", "d") == ("10.1.0.3",)
    assert net.agrees()


def test_the_same_number_of_every_set(net):
    """Of unlike subnets, of several sets each by itself."""
    a = {"master": "eth1", "subnet": "10.1.0.0/24", "ranges": [[{"subnet": "fd00:1::/64"}]]}
    b = {"master": "eth2", "subnet": "10.2.4.0/22", "ranges": [[{"subnet": "fd00:2::/120", "rangeStart": "fd00:2::7"}]]}
    net = net(b, a, align=True)
    assert on(net, "eth1") == ("10.1.0.2", "fd00:1::7")
    assert on(net, "eth2") == ("10.2.4.2", "fd00:2::7")


def test_a_number_that_all_rails_have(net):
    a = few(A, 2, 9, exclude=["10.1.0.4"], reserved=["10.1.0.7"])
    net = net(a, few(B, 4, 8, gateway="10.2.0.5"), align=True)
    given = [on(net, "eth1", f"c{i}") for i in range(2)]
    assert given == [("10.1.0.6",), ("10.1.0.8",)]
    answer = refused(net, "eth2", "d")
    assert answer["code"] == 103
    assert "no host number is free on all of 10.1.0.0/24, 10.2.0.0/24" in answer["msg"]
    assert on(net, "eth2", "c1") == ("10.2.0.8",), "the number was its own"


def test_numbers_go_round(net):
    net = net(few(A, 2, 4), few(B, 2, 4), align=True)
    for number in (2, 3, 4, 2):
        assert on(net, "eth2") == (f"10.2.0.{number}",)
        assert on(net, "eth1") == (f"10.1.0.{number}",)
        net.call("DEL", "c", "net-eth1")
        net.call("DEL", "c", "net-eth2")


def test_a_request_decides(net):
    net = net(few(A, 2, 20, reserved=["10.1.0.9"]), few(B, 2, 20, reserved=["10.2.0.9"]), align=True)
    assert on(net, "eth2") == ("10.2.0.2",)
    assert on(net, "eth2", args="IP=10.2.0.9") == ("10.2.0.9",), "it is alone, and may have another"
    assert on(net, "eth1", args="IP=10.1.0.9") == ("10.1.0.9",)
    assert on(net, "eth1", "d", args="IP=10.1.0.5") == ("10.1.0.5",)
    assert on(net, "eth2", "d") == ("10.2.0.5",)


def test_a_request_that_is_another_number(net):
    net = net(align=True)
    on(net, "eth1")
    answer = refused(net, "eth2", args="IP=10.2.0.9")
    assert answer["code"] == 102
    assert "requested address 10.2.0.9 is not what it gets here, 10.2.0.2" in answer["msg"]
    assert "this container has 10.1.0.2, host number 2" in answer["msg"]


def test_a_request_for_anothers_number(net):
    """It would be in the way of who has it on another rail."""
    net = net(align=True)
    on(net, "eth1")
    answer = refused(net, "eth2", "d", args="IP=10.2.0.2")
    assert answer["code"] == 102
    assert (
        "host number 2 is another's (ipam.align), 10.1.0.2 is held by net-eth1 of container c, network net"
        in answer["msg"]
    )


def test_a_number_that_another_holds(net):
    net = net()
    assert on(net, "eth2", "d", "net1") == ("10.2.0.2",)
    assert on(net, "eth1") == ("10.1.0.2",)
    net.ipam["align"] = True
    answer = refused(net, "eth2")
    assert answer["code"] == 102
    assert (
        "container has 10.1.0.2, host number 2, and 10.2.0.2 is held by net1 of container d, network net"
        in answer["msg"]
    )
    assert "delete that, or delete all attachments" in answer["msg"]
    assert net.leases() == {"d:net1": ("10.2.0.2",), "c:net-eth1": ("10.1.0.2",)}
    net.rewrite("d", boot="another")
    assert on(net, "eth2") == ("10.2.0.2",), "the dead give way"


def test_a_number_that_is_free_on_all_rails(net):
    """What is free on each rail by itself may be held on the other."""
    net = net(few(A, 2, 9), few(B, 2, 9))
    for cid, master, address in (("d", "eth2", "10.2.0.3"), ("e", "eth1", "10.1.0.2"), ("f", "eth1", "10.1.0.4")):
        assert on(net, master, cid, args=f"IP={address}") == (address,)
    assert on(net, "eth1", "g", args="IP=10.1.0.9") == ("10.1.0.9",)  # where it goes on
    net.ipam["align"] = True
    assert on(net, "eth1") == ("10.1.0.5",)
    assert on(net, "eth2") == ("10.2.0.5",)


@pytest.mark.parametrize(
    ("b", "part"),
    [
        (B | {"exclude": ["10.2.0.2"]}, "10.2.0.2 is excluded by ipam.rails[1].exclude"),
        (B | {"gateway": "10.2.0.2"}, "10.2.0.2 is the gateway of ipam.rails[1]"),
        (few(B, 3, 9), "10.2.0.2 is outside 10.2.0.3-10.2.0.9"),
        (B | {"subnet": "10.2.0.0/31"}, "which is outside of ipam.rails[1]"),
    ],
)
def test_a_number_that_the_rail_does_not_have(net, b, part):
    net = net()
    on(net, "eth1")
    net.ipam |= {"rails": [A, b], "align": True}
    answer = refused(net, "eth2")
    assert answer["code"] == 102
    assert part in answer["msg"]


def test_two_attachments_of_one_rail(net):
    net = net(align=True)
    on(net, "eth1")
    answer = refused(net, "eth1", ifname="other")
    assert (answer["code"], "10.1.0.2 is held by net-eth1 of container c, network net" in answer["msg"]) == (102, True)


def test_names_that_are_alike(net):
    """A container is its whole id, and what is only for people is none."""
    net = net(align=True)
    on(net, "eth1", "c1")
    on(net, "eth1", "xc", args="IgnoreUnknown=1;K8S_POD_NAME=c")
    assert on(net, "eth2", "c") == ("10.2.0.4",)


def test_a_lease_of_several_lines(net):
    rails = [
        {"master": f"eth{i}", "ranges": [[{"subnet": f"fd00:{i}:{j}::/64"}] for j in range(9)]} for i in range(1, 3)
    ]
    net = net(*rails, align=True)
    on(net, "eth1", "x"), on(net, "eth2", "y" * 200)
    assert on(net, "eth1", "y" * 200) == tuple(f"fd00:1:{j}::3" if j else "fd00:1::3" for j in range(9))


def test_many_at_once(net):
    net = net(align=True)
    adds = [(master, f"c{i}") for i in range(40) for master in ("eth1", "eth2")]
    with ThreadPoolExecutor(8) as threads:
        given = dict(zip(adds, threads.map(lambda add: on(net, *add), adds), strict=True))
    numbers = {cid: {given[master, cid][0].rpartition(".")[2] for master in ("eth1", "eth2")} for _, cid in adds}
    assert all(len(each) == 1 for each in numbers.values()), "whichever rail was first"
    assert len(set.union(*numbers.values())) == 40
    assert net.agrees()


def test_first_add_killed_at_every_step(net):
    """Whatever it came to, the container's next attachment is aligned with it, or with nothing."""
    net = net(align=True)
    for step in range(1, 99):
        killed = killed_at(step, lambda: net.reply("ADD", "c", "net-eth1", master="eth1"))
        (second,) = on(net, "eth2")
        (first,) = on(net, "eth1")
        assert first.rpartition(".")[2] == second.rpartition(".")[2]
        assert net.agrees()
        assert net.gc() == {}
        if not killed:
            break
    assert 3 < step < 99


# sticky


def of(pod):
    return f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}"


@pytest.mark.parametrize("align", [False, True])
def test_sticky_is_by_rail(net, align):
    """Which of a pod's interfaces comes to which rail is the device plugin's pick, each time another."""
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
