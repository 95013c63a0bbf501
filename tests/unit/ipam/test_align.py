"""The same host number on all rails."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support.ipam_calls import killed_at
from support.rails import A, B, few, network, on, refused


@pytest.fixture
def net(tmp_path):
    return partial(network, tmp_path)


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
    """For subnets of different sizes, and for each of several sets."""
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
    assert "requested address 10.2.0.9 differs from 10.2.0.2" in answer["msg"]
    assert "this container has 10.1.0.2, host number 2" in answer["msg"]


def test_a_request_where_the_subnet_lacks_the_containers_number(net):
    """The error names the number that the subnet lacks, not the requested address."""
    net = net()
    on(net, "eth1")
    net.ipam |= {"rails": [A, B | {"subnet": "10.2.0.0/31"}], "align": True}
    answer = refused(net, "eth2", args="IP=10.2.0.1")
    assert answer["code"] == 102
    assert "host number 2, which is outside of ipam.rails[1]" in answer["msg"]


def test_a_request_for_anothers_number(net):
    """Another container has this number on another rail, and may need it here."""
    net = net(align=True)
    on(net, "eth1")
    answer = refused(net, "eth2", "d", args="IP=10.2.0.2")
    assert answer["code"] == 102
    assert (
        "host number 2 belongs to another container (ipam.align): 10.1.0.2 is held by net-eth1 of container c, "
        "network net" in answer["msg"]
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
    """An address that is free on one rail may be held on the other."""
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
    """The whole id identifies a container; the fields for people do not."""
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
    """In any case the container's next attachment is aligned with it, or with nothing."""
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
