"""A StatefulSet's pod has one address on all nodes, from numbers that the cluster reserves."""

from typing import Any

import pytest
from support.cluster_nodes import SHARED, Cluster
from support.ipam_calls import of
from support.sticky_nodes import ASIDE, WEB, keep, named, node, number, numbers

from base.protocol.arguments import is_ordinal
from ipam.cluster import BLOCK, node_blocks
from ipam.cluster.rules.documents import Block


def test_it_moves_with_its_pod(cluster: Cluster) -> None:
    one, two = node(cluster, "node1"), node(cluster, "node2")
    (address,) = one.add("c1", *WEB)
    assert number(address) in range(64, 80)
    assert named(cluster) == {"ns/web-0:net1": ("node1", number(address))}
    one.call("DEL", "c1", *WEB)
    keep(one)
    assert named(cluster) == {"ns/web-0:net1": ("", number(address))}
    assert numbers(one).blocks == ()
    assert two.add("c2", *WEB) == (address,)
    assert named(cluster) == {"ns/web-0:net1": ("node2", number(address))}


def test_a_node_that_has_the_number_asks_nobody(cluster: Cluster) -> None:
    one = node(cluster, "node1")
    first = one.add("c1", *WEB)
    cluster.calls()
    assert one.add("c1", *WEB) == first
    one.call("DEL", "c1", *WEB)
    assert one.add("c2", *WEB) == first
    assert one.call("CHECK", "c2", *WEB) == {}
    one.call("DEL", "c2", *WEB)
    one.gc()
    assert cluster.calls() == []


def test_others_get_others(cluster: Cluster) -> None:
    """Pods of no StatefulSet, and pods with a requested address, behave as without the key."""
    one = node(cluster, "node1")
    given = [one.add(f"c{n}", *of(f"web-{n}")) for n in range(5)]
    given.append(one.add("d", *of("deployed-5bc9f")))
    given.append(one.add("e", "net1", of("any")[1] + ";STICKY=any"))
    assert len(set(given)) == 7
    assert [number(a) in range(64, 80) for (a,) in given] == [True] * 5 + [False, True]
    block = one.mine.giving[0]
    (asked,) = one.add("f", *WEB, runtimeConfig={"ips": [f"10.0.0.{16 * block + 9}"]})
    assert asked == f"10.0.0.{16 * block + 9}"
    code, said = one.refused("ADD", "g", *of("web-9"), runtimeConfig={"ips": ["10.0.0.70"]})
    assert code == 102
    assert "10.0.0.70" in said
    assert 4 not in cluster.owners()


def test_pods_of_other_controllers_take_no_number(cluster: Cluster) -> None:
    """Their names look like a StatefulSet's, or were generated."""
    one = node(cluster, "node1")
    kinds = {"train-worker-3": "PyTorchJob", "web-5d4f8c9-24567": "ReplicaSet", "web-1": "StatefulSet", "bare-2": ""}
    cluster.store.controllers = {f"ns/{name}": kind for name, kind in kinds.items()}
    given = {name: one.add(name, *of(name)) for name in [*kinds, "unknown-4"]}
    assert {name for name, (ip,) in given.items() if number(ip) in range(64, 80)} == {"web-1", "bare-2", "unknown-4"}
    assert {name.partition(":")[0] for name in named(cluster)} == {"ns/web-1", "ns/bare-2", "ns/unknown-4"}
    assert {name: one.add(name, *of(name)) for name in given} == given, "also when repeated"
    cluster.calls()
    one.add("web-1", *of("web-1"))
    assert cluster.calls() == [], "a node that owns the number asks nobody"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("web-0", True),
        ("ns/web-12345", True),  # 1 and 3 are in no generated name
        ("ns/web-5d4f8c9-24567", False),
        ("ns/job-99999", False),
        ("ns/web-007", False),
        ("ns/web-x2b4z", False),
        ("web", False),
        ("7", False),
        ("ns/job-0-7k2pq", False),
    ],
)
def test_names_of_a_stateful_set(name: str, expected: bool) -> None:
    assert is_ordinal(name) == expected


def test_a_living_pod_keeps_it(cluster: Cluster) -> None:
    """The pod was deleted by force, and still runs on an unreachable node."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    (address,) = one.add("c1", *WEB)
    keep(one)
    code, said = two.refused("ADD", "c2", *WEB)
    assert code == 11
    assert f"host number {number(address)} of network net, and node node1 did not release it" in said
    assert "hpn ipam release-node node1" in said
    assert named(cluster) == {"ns/web-0:net1": ("node1", number(address))}
    assert one.add("c1", *WEB) == (address,)


def test_two_of_one_name_on_one_node(cluster: Cluster) -> None:
    one = node(cluster, "node1")
    first = one.add("c1", *WEB)
    code, said = one.refused("ADD", "c2", *WEB)
    assert (code, "another attachment of that name lives" in said) == (11, True)
    one.call("DEL", "c1", *WEB)
    assert one.add("c2", *WEB) == first


@pytest.mark.parametrize("keeps", [True, False], ids=["after a round", "before one"])
def test_it_comes_back_to_its_node(cluster: Cluster, keeps: bool) -> None:
    one = node(cluster, "node1")
    first = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    if keeps:
        keep(one)
    assert one.add("c2", *WEB) == first
    keep(one)
    assert [block.state for block in numbers(one).blocks] == [node_blocks.HELD]
    assert one.add("c2", *WEB) == first


def test_each_interface_has_its_own(cluster: Cluster) -> None:
    one, two = node(cluster, "node1"), node(cluster, "node2")
    both = [one.add("c1", *of("web-0", ifname)) for ifname in ("net1", "net2")]
    assert both[0] != both[1]
    for ifname in ("net1", "net2"):
        one.call("DEL", "c1", *of("web-0", ifname))
    keep(one)
    assert [two.add("c1", *of("web-0", ifname)) for ifname in ("net2", "net1")] == both[::-1]


def test_another_name_has_it_when_its_time_is_over(cluster: Cluster) -> None:
    few = {"cluster": SHARED | {"sticky": "64-65"}}
    one, two = node(cluster, "node1", **few), node(cluster, "node2", **few)
    given = [one.add(f"c{n}", *of(f"web-{n}"))[0] for n in range(2)]
    code, said = two.refused("ADD", "x", *of("other-0"))
    assert code == 103
    assert "all 2 host numbers that network net reserves (64-65, ipam.cluster.sticky)" in said
    one.call("DEL", "c1", *of("web-1"))
    keep(one)
    assert two.refused("ADD", "x", *of("other-0"))[0] == 103
    assert [body["suspect"] for body in cluster.store.bodies(BLOCK).values()] == [0, 0]
    cluster.store.clock += 61
    assert two.add("x", *of("other-0")) == (given[1],)
    assert one.refused("ADD", "c1", *of("web-1"))[0] == 103
    assert sorted(named(cluster)) == ["ns/other-0:net1", "ns/web-0:net1"]


def test_on_rails_that_are_aligned(cluster: Cluster) -> None:
    """All interfaces of a pod share one number, and the last of them frees it."""
    rails = [{"master": f"rail{n}", "subnet": f"10.0.{n}.0/24"} for n in range(2)]
    ipam = {"rails": rails, "align": True, "sticky": 60, "cluster": SHARED | {"sticky": "64-79"}}
    one, two = cluster.node("node1", **ipam), cluster.node("node2", **ipam)
    both = [one.add("c1", *of("web-0", f"net{n}"), master=f"rail{n}")[0] for n in range(2)]
    assert number(both[0]) == number(both[1])
    assert list(named(cluster)) == ["ns/web-0"]
    one.call("DEL", "c1", *of("web-0", "net0"), master="rail0")
    keep(one)
    assert two.refused("ADD", "c2", *of("web-0", "net1"), master="rail1")[0] == 11
    one.call("DEL", "c1", *of("web-0", "net1"), master="rail1")
    keep(one)
    assert [two.add("c2", *of("web-0", f"net{n}"), master=f"rail{n}")[0] for n in range(2)] == both


@pytest.mark.parametrize(
    ("sticky", "said"),
    [
        ("64", "'64' is not a span of host numbers; write lowest-highest"),
        ("9-5", "'9-5' is not a span"),
        ("0-4096", "with 4096 numbers at most"),
        ("0-1", "none of these host numbers has an address"),
        ("300-310", "none of these host numbers has an address"),
        ("0-255", "less than one block"),
        (7, "ipam.cluster.sticky 7"),
    ],
)
def test_no_numbers_for_names(cluster: Cluster, sticky: Any, said: str) -> None:
    code, words = node(cluster, "node1", cluster=SHARED | {"sticky": sticky}).refused("ADD", "c", *WEB)
    assert code == 7
    assert said in words
    assert cluster.calls() == []


def test_without_a_time(cluster: Cluster) -> None:
    code, said = cluster.node("node1", **ASIDE | {"sticky": 0}).refused("ADD", "c", *WEB)
    assert (code, "of no effect without ipam.sticky" in said) == (7, True)


@pytest.mark.parametrize("is_new", [True, False], ids=["a new node", "the node"])
@pytest.mark.parametrize("pod", ["web-0", "web"])
def test_other_numbers_than_the_networks(cluster: Cluster, pod: str, is_new: bool) -> None:
    node(cluster, "node1").add("c1", *of(pod))
    for other, has in (({}, "is not set"), ({"sticky": "64-95"}, "64-95")):
        another = node(cluster, "node2" if is_new else "node1", cluster=SHARED | other)
        code, said = another.refused("ADD", "c2", *of(pod))
        assert code == 7
        assert f"ipam.cluster.sticky {has}: network net reserves 64-79" in said
        assert "set sticky 64-79" in said


def test_what_was_given_before(cluster: Cluster) -> None:
    """Pods got addresses of these numbers when the network was this node's alone."""
    alone = cluster.node("node1", subnet="10.0.0.0/24", rangeStart="10.0.0.70")
    alone.add("old")
    for pod in ("web-0", "web"):
        code, said = node(cluster, "node1").refused("ADD", "c", *of(pod))
        assert code == 7
        assert "this node allocated 10.0.0.70 before these numbers were reserved" in said
    assert cluster.store.bodies(BLOCK) == {}


def test_a_number_that_nobody_can_read_is_not_free(cluster: Cluster) -> None:
    few = {"cluster": SHARED | {"sticky": "64-65"}}
    name = Block("net/sticky", 64, 1, "", "", "").name
    cluster.store.create(BLOCK, name, "net/sticky", {"network": "net/sticky", "index": "?"})
    assert node(cluster, "node1", **few).add("c", *WEB) == ("10.0.0.65",)
    code, said = node(cluster, "node1", **few).refused("ADD", "d", *of("web-1"))
    assert (code, "all 2 host numbers" in said) == (103, True), said
