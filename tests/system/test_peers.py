"""Our plugin under other IPAM plugins, our IPAM under other plugins, and other plugins after ours in a chain."""

import json
import os

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


@pytest.mark.parametrize("name", [None, "cni.dev/attachments", "cni.dev/valid-attachments"])
def test_gc_of_ours_with_host_local(machine: Machine, name: str | None) -> None:
    """GC frees the address of an attachment that only host-local knows, and never that of a pod with a record.

    host-local implements GC since 1.10.0: without cni.dev/valid-attachments it frees all addresses.
    """
    machine.network(ours(ipam={"type": "host-local", "ranges": RANGES[:1]}))
    pods = machine.pod(), machine.pod()
    for pod in pods:
        machine.ok("add", pod)
    for record in (machine.state / "attachments").rglob("*.json"):
        os.utime(record, (0, 0))  # GC spares what an ADD wrote since it began, within a tick of the kernel's clock
    held = machine.scratch / "host-local/rail0"
    (held / "10.56.0.9").write_text("lost\r\nhpn0")
    listed = [{"containerID": fabric.container_id(pods[0]), "ifname": "hpn0"}]
    conf = json.loads((machine.scratch / "net.d/rail0.conflist").read_text())
    stdin = {**conf["plugins"][0], "cniVersion": "1.1.0", "name": "rail0"} | ({name: listed} if name else {})
    done = machine.node.run([str(machine.tools.hpn)], machine.env | {"CNI_COMMAND": "GC"}, stdin=json.dumps(stdin))
    assert done.returncode == 0, done.stdout
    there = {path.name for path in held.glob("10.*")}
    assert ("10.56.0.2" in there, "10.56.0.9" in there) == (True, name is None)
    assert ("10.56.0.3" in there) == (name is None), "a pod that is not listed"
    (held / "10.56.0.9").unlink(missing_ok=True)
    for pod in pods:
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


def test_go_macvlan_with_our_ipam_that_needs_its_link(machine: Machine) -> None:
    """Go's macvlan has made the link when it calls the IPAM, and sets the link up when it has the addresses."""
    fabric.run("ip", "-netns", machine.node.fabric, "address", "add", "10.56.0.2/24", "dev", "port0")
    ranges = [RANGES[0], [{"subnet": "fd00:56::/64", "eui64": True}]]
    ipam = {"type": "hpn-ipam", "ranges": ranges, "probe": True}
    machine.network({"type": "macvlan", "master": "rail0", "mac": "02:00:00:00:00:2a", "ipam": ipam})
    pod = machine.pod()
    machine.ok("add", pod)
    assert machine.addresses(pod) == {"10.56.0.3/24", "fd00:56::ff:fe00:2a/64"}
    machine.ok("check", pod)
    machine.ok("del", pod)


def test_go_tuning_after_ours_gets_our_result(machine: Machine) -> None:
    machine.network(ours(), {"type": "tuning", "sysctl": {"net.ipv4.conf.hpn0.arp_filter": "1"}, "mtu": 1400})
    pod = machine.pod()
    result = machine.ok("add", pod)
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod)
    [link] = fabric.ip("link", "show", "dev", "hpn0", netns=pod)
    assert link["mtu"] == 1400
    assert fabric.run("ip", "netns", "exec", pod, "cat", "/proc/sys/net/ipv4/conf/hpn0/arp_filter").strip() == "1"
    # Our CHECK runs first, and must allow the later plugins' changes.
    machine.ok("check", pod)
    machine.ok("del", pod)


TUNED = {"mtu": 1400, "mac": "02:00:00:00:00:2b", "promisc": True, "allmulti": True, "txQLen": 77}


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_check_after_go_tuning_changed_the_interface(machine: Machine, version: str) -> None:
    """tuning's result mentions only the MAC; a file of its own records the MTU."""
    machine.network(ours(), {"type": "tuning"} | TUNED, version=version)
    pod = machine.pod()
    machine.ok("add", pod)
    machine.ok("check", pod)
    fabric.run("ip", "-netns", pod, "link", "set", "hpn0", "mtu", "1300")
    done = machine.cnitool("check", pod)
    assert (done.returncode != 0, "MTU of hpn0 is 1400, current value is 1300" in done.stderr) == (True, True)
    machine.ok("del", pod)


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_check_after_go_sbr_moved_the_routes(machine: Machine, version: str) -> None:
    """sbr moves the routes to other tables, including those of connected networks, and its result does not mention
    it."""
    routes = [{"dst": "10.60.0.0/16"}, {"dst": "0.0.0.0/0"}, {"dst": "fd00:60::/48", "gw": "fd00:56::9"}]
    ipam = {"type": "hpn-ipam", "ranges": RANGES, "routes": routes}
    machine.network(ours(ipam=ipam), {"type": "sbr"}, version=version)
    pod = machine.pod()
    machine.ok("add", pod)
    machine.ok("check", pod)
    assert ("10.60.0.0/16", "10.56.0.1") in routing(pod)["10.56.0.2"]
    fabric.run("ip", "-netns", pod, "rule", "delete", "from", "10.56.0.2")
    done = machine.cnitool("check", pod)
    assert (done.returncode != 0, "where no rule leads" in done.stderr) == (True, True)
    machine.ok("del", pod)


def routing(pod: str) -> dict[str, set[tuple[str, str]]]:
    """For each source address with a rule: destination and gateway of the routes in its table."""
    found = {}
    for family in ("-4", "-6"):
        for rule in fabric.ip(family, "rule", "show", netns=pod):
            if rule["src"] != "all":
                routes = fabric.ip(family, "route", "show", "table", rule["table"], netns=pod)
                assert {route["dev"] for route in routes} == {"hpn0"}
                found[rule["src"]] = {(route["dst"], route.get("gateway", "")) for route in routes}
    return {src: {r for r in routes if not r[0].startswith(("fe80", "ff00"))} for src, routes in found.items()}


def test_sysctl_and_policy_routing_do_what_tuning_and_sbr_do(machine: Machine) -> None:
    sysctls = {"net.ipv4.conf.IFNAME.rp_filter": "2", "net.core.somaxconn": "1024"}
    routes = [{"dst": "10.60.0.0/16"}, {"dst": "0.0.0.0/0"}, {"dst": "fd00:60::/48", "gw": "fd00:56::9"}]
    theirs, mine = machine.pod(), machine.pod()
    go = {"type": "macvlan", "master": "rail0", "ipam": {"type": "host-local", "ranges": RANGES, "routes": routes}}
    machine.network(go, {"type": "tuning", "sysctl": sysctls}, {"type": "sbr"}, name="theirs")
    ipam = {"type": "hpn-ipam", "ranges": RANGES, "routes": routes}
    machine.network(ours(ipam=ipam, sysctl=sysctls, policyRouting=True))
    machine.ok("add", theirs, "theirs")
    # Both get the same addresses, one after the other: Go's duplicate detection would find ours.
    expected = routing(theirs)
    values = [(path, sysctl(theirs, path)) for path in ("ipv4/conf/hpn0/rp_filter", "core/somaxconn")]
    machine.ok("del", theirs, "theirs")
    machine.ok("add", mine)
    assert routing(mine) == expected
    assert expected["10.56.0.2"] == {("10.56.0.0/24", ""), ("10.60.0.0/16", "10.56.0.1"), ("default", "10.56.0.1")}
    assert [(path, sysctl(mine, path)) for path, _ in values] == values
    machine.ok("check", mine)
    machine.ok("del", mine)
    assert routing(mine) == {}


def sysctl(pod: str, path: str) -> str:
    return fabric.run("ip", "netns", "exec", pod, "cat", f"/proc/sys/net/{path}").strip()


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
