"""Addresses from the parent's subnets on each node, and IPv6 addresses with the pod's IPv4 address in them."""

import ctypes
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import drawn
import pytest
from support import pci
from support.killing import killed_at
from support.recovery import Recovery, by_a_new_add, by_del, by_gc
from support.topology import Host, Pod, ip

from base.kernel import local, netns, routes, rtnl
from base.kernel.addresses import RTM_GETADDR
from base.kernel.rules import RTM_GETROUTE
from ctl.doctor.checks.pools import pool_of_own_address, pools_overlap
from ctl.doctor.model import Facts
from ctl.doctor.networks import addresses_of
from ipam.main import run as hpn_ipam

V4, V6 = {"subnet": "parent-ipv4"}, {"subnet": "parent-ipv6", "embedIPv4": True}
CLONE_NEWUTS = 0x04000000
NODES = {"a": ("10.1.0.5/24", "fd00:1::5/64"), "b": ("10.2.0.5/24", "fd00:2::5/64")}


def conf(host: Host, *sets: dict[str, Any], **keys: Any) -> dict[str, Any]:
    ranges = [[one] for one in sets or (V4, V6)]
    return host.conf(**{"ipam": {"type": "hpn-ipam", "ranges": ranges}} | keys)


def given(result: dict[str, Any]) -> list[str]:
    return [one["address"] for one in result["ips"]]


def address(*words: str, dev: str = "rail0") -> None:
    for one in words:
        ip("address", "add", one, "dev", dev, *(["nodad"] if ":" in one else []))


def show(host: Host) -> str:
    from ctl.ipam.command import answer  # noqa: PLC0415

    return answer(["show", "--data-dir", f"{host.state}/ipam"])[0]


def test_add_check_and_del(host: Host, pod: Pod, kind: str) -> None:
    address("10.1.0.1/24", "fd00:1::5/64")
    config = conf(host, kind=kind)
    reply = host.call("ADD", pod, config)
    result = json.loads(reply.stdout)
    assert (given(result), reply.log) == (["10.1.0.2/24", "fd00:1::a01:2/64"], ())
    assert "gateway" not in result["ips"][0], "the parent has the first address itself"
    assert pod.addresses() == set(given(result))
    assert host.ok("STATUS", None, config) == {}
    assert host.checked(pod, config, result).exit_code == 0
    assert host.leases() == {"10.1.0.2", "fd00:1::a01:2"}
    ip("address", "flush", "dev", "rail0", "scope", "global")
    assert host.checked(pod, config, result).exit_code == 0, "the attachment does not depend on them"
    host.ok("DEL", pod, config)
    assert (pod.links(), host.leases(), host.state_files()) == (set(), set(), set())


def test_check_misses_the_address(host: Host, pod: Pod) -> None:
    address(*NODES["a"])
    result = host.ok("ADD", pod, conf(host))
    pod.ip("address", "del", "fd00:1::a01:2/64", "dev", "hpn0")
    reply = host.checked(pod, conf(host), result)
    assert "fd00:1::a01:2" in reply.stdout
    host.ok("DEL", pod, conf(host))


@pytest.mark.parametrize(("command", "recover"), [("ADD", by_del), ("ADD", by_a_new_add), ("DEL", by_gc)])
def test_killed_at_every_step(host: Host, pod: Pod, command: str, recover: Recovery) -> None:
    address(*NODES["a"])
    config = conf(host, {"subnet": "parent-ipv4"}, V6)
    for step in drawn.steps():
        if command == "DEL":
            host.ok("ADD", pod, config)
        killed = killed_at(step, host.request(command, pod, config))
        recover(host, pod, config)
        assert (pod.links(), host.leases(), host.state_files()) == (set(), set(), set()), f"left after step {step}"
        if not killed:
            break
    assert step > 20


@contextmanager
def node(name: str) -> Iterator[None]:
    """Be in the node's namespace."""
    libc, own = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        with netns.hold_open(f"/run/netns/{name}") as fd:
            assert libc.setns(fd, 0) == 0
            yield
    finally:
        assert libc.setns(own, 0) == 0
        os.close(own)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Be on a node of this name."""
    libc, own = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/uts", os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWUTS) == 0
        socket.sethostname(name)
        yield
    finally:
        assert libc.setns(own, 0) == 0
        os.close(own)


def test_one_network_for_two_nodes(host: Host, make_pod: Callable[[], Pod], tmp_path: Path) -> None:
    """Each node allocates from its own subnets, with one configuration."""
    nodes, results = {name: make_pod() for name in NODES}, dict[str, list[str]]()
    config = host.conf(ipam={"type": "hpn-ipam", "ranges": [[V4], [V6]]})
    for name, inside in nodes.items():
        pod = make_pod()
        with node(inside.name):
            of_node = Host(tmp_path / name)
            address(*NODES[name])
            result = of_node.ok("ADD", pod, config)
            results[name] = given(result)
            assert of_node.checked(pod, config, result).exit_code == 0
            of_node.ok("DEL", pod, config)
            assert of_node.leases() == set()
    assert results == {"a": ["10.1.0.2/24", "fd00:1::a01:2/64"], "b": ["10.2.0.2/24", "fd00:2::a02:2/64"]}


def test_a_link_of_two_for_each_node(host: Host, make_pod: Callable[[], Pod], tmp_path: Path) -> None:
    """A /31 per node, by the node's name: the leaf has the gateway, and the pod the other address."""
    links = [
        {"subnet": f"10.1.0.{at}/31", "gateway": f"10.1.0.{at}", "node": name}
        for at, name in ((0, "node-a"), (2, "node-b"))
    ]
    config = host.conf(ipam={"type": "hpn-ipam", "ranges": [links]})
    results = dict[str, dict[str, Any]]()
    for name in ("node-a", "node-b", "node-c"):
        inside, pod = make_pod(), make_pod()
        with node(inside.name), named(name):
            of_node = Host(tmp_path / name)
            reply = of_node.call("ADD", pod, config)
            results[name] = json.loads(reply.stdout)
            of_node.ok("DEL", pod, config)
            assert of_node.leases() == set()
    assert [results[name]["ips"] for name in ("node-a", "node-b")] == [
        [{"address": "10.1.0.1/31", "gateway": "10.1.0.0", "interface": 0}],
        [{"address": "10.1.0.3/31", "gateway": "10.1.0.2", "interface": 0}],
    ]
    assert results["node-c"]["code"] == 7
    assert "ipam.ranges[0] has no range for node node-c" in results["node-c"]["msg"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([], "rail0 on node"),
        (["169.254.7.1/16"], "has no such subnet"),
        (["10.1.0.5/32"], "nor of one address"),
        (["10.1.0.5 peer 10.1.0.4/31"], "has no such subnet"),
    ],
)
def test_a_node_without_a_subnet(host: Host, pod: Pod, own: list[str], said: str) -> None:
    for one in own:
        ip("address", "add", *one.split(), "dev", "rail0")
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host, V4))
    assert error["code"] == 7
    assert "ipam.ranges[0][0].subnet parent-ipv4: rail0 on node " in error["msg"]
    assert os.uname().nodename in error["msg"]
    assert said in error["msg"]
    assert host.refused("STATUS", None, conf(host, V4))["msg"] == error["msg"]
    assert host.picture(pod) == before


def test_no_ipv6(host: Host, pod: Pod) -> None:
    address("10.1.0.5/24", "fe80::5/64")
    ip("address", "add", "fd00:1::5/64", "dev", "rail0", "nodad", "preferred_lft", "0")
    assert "ipam.ranges[1][0].subnet parent-ipv6: rail0" in host.refused("ADD", pod, conf(host))["msg"]


def test_a_prefix_that_is_too_long(host: Host, pod: Pod) -> None:
    address("10.1.0.5/24", "fd00:1::5/112")
    error = host.refused("ADD", pod, conf(host))
    assert error["code"] == 7
    assert "embedIPv4 true with subnet fd00:1::/112, which is not an IPv6 prefix of at most 96 bits" in error["msg"]


def test_the_lowest_of_several(host: Host, pod: Pod) -> None:
    address("10.9.0.5/24", "10.1.0.5/24", "fd00:1::5/64", "2001:db8:7::5/64", "2001:db8:8::5/64")
    address("fd00:1::6/128")
    assert given(host.ok("ADD", pod, conf(host))) == ["10.1.0.2/24", "2001:db8:7::a01:2/64"]


def test_the_gateway_is_the_parents(host: Host, pod: Pod) -> None:
    address("10.1.0.1/24", "fd00:1::1/64")
    ip("route", "add", "10.8.0.0/16", "via", "10.1.0.9", "dev", "rail0")
    ip("route", "add", "default", "via", "10.1.0.254", "dev", "rail0", "table", "101", "metric", "7")
    ip("-6", "route", "add", "default", "via", "fe80::1", "dev", "rail0", "metric", "7")
    config = conf(host)
    config["ipam"]["routes"] = [{"dst": "10.8.0.0/16"}, {"dst": "fd00:8::/32"}]
    result = host.ok("ADD", pod, config)
    assert [one["gateway"] for one in result["ips"]] == ["10.1.0.254", "fe80::1"]
    (v4,) = pod.ip("route", "show", "10.8.0.0/16")
    (v6,) = pod.ip("-6", "route", "show", "fd00:8::/32")
    assert (v4["gateway"], v6["gateway"]) == ("10.1.0.254", "fe80::1")


def test_a_multipath_route_of_two_interfaces(host: Host) -> None:
    """Only the hops over the interface count."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    ip("link", "set", "rail1", "up"), ip("link", "set", "fabric1", "up")
    address("10.1.0.5/24"), address("10.2.0.5/24", dev="rail1")
    hops = ("nexthop", "via", "10.2.0.1", "dev", "rail1", "nexthop", "via", "10.1.0.9", "dev", "rail0")
    ip("route", "add", "10.8.0.0/16", *hops)
    with rtnl.open_in(strictly=True) as here:
        (rail0,) = ip("link", "show", "rail0")
        assert [str(one) for one in routes.next_hops(here, rail0["ifindex"])] == ["10.1.0.9"]
        assert [str(one) for one in local.addresses_on(here, rail0["ifindex"])] == ["10.1.0.5/24"]


def test_a_link_of_two(host: Host, pod: Pod) -> None:
    """The pod gets the other address of a /31, unless that is the gateway's."""
    address("10.1.0.1/31")
    config = conf(host, V4)
    result = host.ok("ADD", pod, config)
    assert result["ips"] == [{"address": "10.1.0.0/31", "interface": 0}]
    host.ok("DEL", pod, config)
    ip("route", "add", "10.8.0.0/16", "via", "10.1.0.0", "dev", "rail0")
    error = host.refused("ADD", pod, config)
    assert error["code"] == 7
    assert "rail0, the parent, has 10.1.0.1 of 10.1.0.0/31, and with the gateway 10.1.0.0 no address" in error["msg"]


def test_a_device_with_its_hosts_network(host: Host, pod: Pod) -> None:
    """The parent of a device that moves is the device, which has its subnets until then."""
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    ip("link", "set", "eth9", "up")
    address(*NODES["a"], dev="eth9")
    moved = {"kind": "host-device", "master": ..., "device": "eth9", "useInterfaceNetwork": True}
    config = conf(host, **moved)
    result = host.ok("ADD", pod, config)
    assert set(given(result)) == {"10.1.0.2/24", "fd00:1::a01:2/64", *NODES["a"]}
    assert host.checked(pod, config, result).exit_code == 0
    host.ok("DEL", pod, config)
    (link,) = ip("address", "show", "dev", "eth9")
    back = {f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"}
    assert back == set(NODES["a"])


@pytest.mark.parametrize("more", [{"probe": 0.1}, {"ranges": [[{"subnet": "parent-ipv6", "eui64": True}]]}])
def test_a_parent_that_has_moved(host: Host, pod: Pod, more: dict[str, Any]) -> None:
    """A MAC and a probe need the device in the pod, where it is nobody's parent: refused, and undone."""
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    ip("link", "set", "eth9", "up"), ip("link", "set", "far9", "up")
    address(*NODES["a"], dev="eth9")
    config = conf(host, kind="host-device", master=..., device="eth9", useInterfaceNetwork=True)
    config["ipam"] |= more
    error = host.refused("ADD", pod, config)
    assert error["code"] == 7
    assert "parent-ipv" in error["msg"]
    assert "eth9 on node" in error["msg"]
    assert (pod.links(), host.leases(), host.state_files()) == (set(), set(), set())
    (link,) = ip("address", "show", "dev", "eth9")
    back = {f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"}
    assert back == set(NODES["a"])


def test_the_parent_of_a_vf(host: Host, pod: Pod, sys_tree: Path) -> None:
    """Its PF; or the PF's bond, if the PF itself has no such subnet."""
    ip("link", "add", "bond0", "type", "veth", "peer", "name", "slave0")
    ip("link", "set", "bond0", "up")
    address("fd00:1::5/64")
    address("10.1.0.5/24", "fd00:9::5/64", dev="bond0")
    (sys_tree / "class/net/bond0").mkdir()
    (sys_tree / "class/net/rail0/master").symlink_to("../bond0")
    config = conf(host, master=..., deviceID=pci.VF)
    result = json.loads(hpn_ipam(host.request("ADD", pod, config)).stdout)
    assert given(result) == ["10.1.0.2/24", "fd00:1::a01:2/64"]


def test_no_parent(host: Host, pod: Pod) -> None:
    reply = hpn_ipam(host.request("ADD", pod, conf(host, master=..., type="bridge")))
    assert json.loads(reply.stdout)["code"] == 7
    assert "no parent of this attachment is an interface on node" in reply.stdout
    pods = conf(host, linkInContainer=True)
    assert "with linkInContainer" in hpn_ipam(host.request("ADD", pod, pods)).stdout
    any_device = conf(host, master=..., kind="sriov")
    assert hpn_ipam(host.request("STATUS", None, any_device)).exit_code == 0, "only an ADD names the device"


def test_by_the_mac(host: Host, pod: Pod) -> None:
    address(*NODES["a"])
    config = conf(host, {"subnet": "parent-ipv6", "eui64": True}, mac="02:00:00:00:00:2a")
    assert given(host.ok("ADD", pod, config)) == ["fd00:1::ff:fe00:2a/64"]


def test_two_pods_and_two_networks(host: Host, make_pod: Callable[[], Pod]) -> None:
    """In one network no two pods get one address.  Of two networks with one subnet, hpn doctor finds the overlap."""
    address(*NODES["a"])
    one, two = make_pod(), make_pod()
    assert given(host.ok("ADD", one, conf(host)))[1] == "fd00:1::a01:2/64"
    assert given(host.ok("ADD", two, conf(host)))[1] == "fd00:1::a01:3/64"
    asked = conf(host) | {"runtimeConfig": {"ips": ["10.1.0.2"]}}
    assert host.refused("ADD", make_pod(), asked)["code"] == 102
    other = conf(host, name="other")
    error = host.refused("ADD", make_pod(), other)
    assert error["code"] == 104
    assert "fd00:1::a01:2 is in use by another interface" in error["msg"], "duplicate detection finds it too"
    assert given(host.ok("ADD", make_pod(), conf(host, V4, name="other"))) == ["10.1.0.3/24"]
    known = [found for one in (conf(host), other) for found in addresses_of(one["name"], one, is_here=True)]
    (finding,) = pools_overlap(Facts(addresses=(*known, *known)))
    assert "other: 10.1.0.2-10.1.0.4 of network other overlaps 10.1.0.2-10.1.0.4 of network rail0" in finding.evidence
    own = {ip_address("10.1.0.5"): "rail0", ip_address("fd00:1::5"): "rail0"}
    assert list(pool_of_own_address(Facts(addresses=tuple(known), own_addresses=own))) == []
    # A node on which the parent has none, as another node sees the network.
    ip("address", "flush", "dev", "rail0", "scope", "global")
    known = [found for one in (conf(host), other) for found in addresses_of(one["name"], one, is_here=True)]
    assert [one.of_node for one in known] == [(), ()]


def test_the_subnets_of_two_parents_are_shown(host: Host, make_pod: Callable[[], Pod]) -> None:
    """One network over two rails: each has its own subnet, its own round robin, and its own bar."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    ip("link", "set", "rail1", "up")
    address("10.1.0.5/24"), address("10.2.0.5/24", dev="rail1")
    logs = list[str]()
    for number in (2, 3, 4):
        for at in (1, 2):
            pod, config = make_pod(), conf(host, V4, master=f"rail{at - 1}")
            reply = host.call("ADD", pod, config)
            logs += reply.log
            assert given(json.loads(reply.stdout)) == [f"10.{at}.0.{number}/24"]
            host.ok("DEL", pod, config)
    assert logs == []
    pod = make_pod()
    host.ok("ADD", pod, conf(host, V4))
    shown = show(host)
    assert "  10.1.0.2-10.1.0.4, 10.1.0.6-10.1.0.254  of rail0\n" in shown
    assert "  10.2.0.2-10.2.0.4, 10.2.0.6-10.2.0.254  of rail1\n" in shown
    assert "outside its ranges" not in shown
    # Another subnet of one parent replaces that parent's only.
    ip("address", "del", "10.1.0.5/24", "dev", "rail0")
    address("10.3.0.5/24")
    assert "changed from 10.1.0.2-10.1.0.4" in "".join(host.call("ADD", make_pod(), conf(host, V4)).log)
    shown = show(host)
    assert "10.3.0.6-10.3.0.254  of rail0\n" in shown
    assert "10.2.0.6-10.2.0.254  of rail1\n" in shown
    assert "outside its ranges\n    1 held" in shown


def test_a_fixed_range_beside_those_of_two_parents(host: Host, make_pod: Callable[[], Pod]) -> None:
    """It has one bar, in which the pods over both parents count."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    ip("link", "set", "rail1", "up")
    address("10.1.0.5/24"), address("10.2.0.5/24", dev="rail1")
    ranges = [[{"subnet": "fd00:56::/64"}], [V4]]
    for master in ("rail0", "rail1"):
        host.ok("ADD", make_pod(), host.conf(ipam={"type": "hpn-ipam", "ranges": ranges}, master=master))
    shown = show(host)
    lines = shown.splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("  fd00:56::2-fd00:56::"))
    assert (lines[at].endswith("ffff:ffff"), "2 held" in lines[at + 1]) == (True, True), shown
    assert shown.count("1 held") == 2, "of each parent"
    assert "outside its ranges" not in shown


def test_no_message_without_the_key(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that names no parent asks the kernel for none of its subnets."""
    asked = list[int]()
    dump = rtnl.Rtnl.dump

    def counting(self: rtnl.Rtnl, kind: int, body: bytes) -> Iterator[bytes]:
        asked.append(kind)
        return dump(self, kind, body)

    monkeypatch.setattr(rtnl.Rtnl, "dump", counting)
    address(*NODES["a"])
    plain = conf(host, {"subnet": "10.7.0.0/24"})
    host.ok("ADD", pod, plain)
    host.ok("DEL", pod, plain)
    assert not {RTM_GETADDR, RTM_GETROUTE} & set(asked)
    host.ok("ADD", pod, conf(host, V4))
    assert {RTM_GETADDR, RTM_GETROUTE} <= set(asked)
