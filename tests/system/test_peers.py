"""Our plugin under others' IPAM, our IPAM under others' plugin, and others after us in a chain."""

import pytest
from system.machine import RANGES, Machine, fabric, ours


@pytest.mark.parametrize(
    ("ipam", "expected"),
    [
        ({"type": "host-local", "ranges": RANGES}, {"10.56.0.2/24", "fd00:56::2/64"}),
        ({"type": "static", "addresses": [{"address": "10.56.0.9/24"}]}, {"10.56.0.9/24"}),
        ({}, set()),
    ],
    ids=["host-local", "static", "none"],
)
def test_ours_with_an_ipam_of_the_peers(machine: Machine, ipam: dict, expected: set) -> None:
    machine.network(ours(ipam=ipam))
    pod = machine.pod()
    result = machine.ok("add", pod)
    assert {ip["address"] for ip in result.get("ips", [])} == machine.addresses(pod) == expected
    machine.ok("check", pod)
    machine.ok("status", pod)
    machine.ok("del", pod)


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_go_macvlan_with_our_ipam(machine: Machine, version: str) -> None:
    machine.network(
        {"type": "macvlan", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": RANGES}}, version=version
    )
    pod = machine.pod()
    result = machine.ok("add", pod)
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod)
    assert len(machine.records()) == 1
    if version >= "0.4.0":
        machine.ok("check", pod)
    if version >= "1.1.0":
        machine.ok("status", pod)
    machine.ok("del", pod)


def test_go_host_device_with_our_ipam(machine: Machine) -> None:
    fabric.run("ip", "-netns", machine.node.netns, "link", "add", "dev0", "type", "veth", "peer", "name", "far0")
    machine.network({"type": "host-device", "device": "dev0", "ipam": {"type": "hpn-ipam", "ranges": RANGES}})
    pod = machine.pod()
    result = machine.ok("add", pod)
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod)
    assert len(machine.records()) == 1
    machine.ok("check", pod)
    machine.ok("del", pod)
    fabric.run("ip", "-netns", machine.node.netns, "link", "delete", "dev0")  # it came back


def test_go_tuning_after_ours_gets_our_result(machine: Machine) -> None:
    machine.network(ours(), {"type": "tuning", "sysctl": {"net.ipv4.conf.hpn0.arp_filter": "1"}, "mtu": 1400})
    pod = machine.pod()
    result = machine.ok("add", pod)
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod)
    [link] = fabric.ip("link", "show", "dev", "hpn0", netns=pod)
    assert link["mtu"] == 1400
    assert fabric.run("ip", "netns", "exec", pod, "cat", "/proc/sys/net/ipv4/conf/hpn0/arp_filter").strip() == "1"
    # Ours checks first, and must allow what came later in the chain.
    machine.ok("check", pod)
    machine.ok("del", pod)


def test_two_networks_in_one_pod(machine: Machine) -> None:
    machine.network(ours(), name="rail0")
    machine.network(
        {"type": "macvlan", "master": "rail0", "ipam": {"type": "static", "addresses": [{"address": "10.57.0.9/24"}]}},
        name="other",
    )
    pod = machine.pod()
    machine.ok("add", pod)
    machine.ok("add", pod, "other", CNI_IFNAME="net1")
    assert machine.links(pod) == {"hpn0", "net1"}
    machine.ok("del", pod)
    assert machine.links(pod) == {"net1"}
    machine.ok("del", pod, "other", CNI_IFNAME="net1")
