"""multiRail: four rails of a pod share one wire and one subnet, and each rail carries its own traffic.  The wire is the
witness: it shows the MAC and the address of each sender."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from netns.test_routing import rules
from support.namespaces import with_both
from support.topology import Host, Pod, ip, until
from support.wire import Wire

RAILS = range(4)
GATEWAY, GATEWAY6 = "10.56.0.1", "fd00:56::1"
SYSCTLS = {"ipv4/conf/{}/arp_ignore": "1", "ipv4/conf/{}/arp_announce": "2", "ipv4/conf/{}/rp_filter": "2",
           "ipv6/conf/{}/accept_ra": "0"}  # fmt: skip

pytestmark = with_both


@pytest.fixture
def wire(host: Host) -> Iterator[Wire]:
    """A bridge with all rails and the host."""
    ip("link", "add", "wire", "type", "bridge")
    for number in RAILS[1:]:
        ip("link", "add", f"rail{number}", "type", "veth", "peer", "name", f"fabric{number}")
        ip("link", "set", f"rail{number}", "up")
    for name in ("fabric", *(f"fabric{number}" for number in RAILS[1:])):
        ip("link", "set", name, "up", "master", "wire")
    ip("link", "set", "wire", "up")
    ip("addr", "add", f"{GATEWAY}/24", "dev", "wire")
    for address in (f"{GATEWAY6}/64", "fe80::1/64"):
        ip("addr", "add", address, "dev", "wire", "nodad")
    with Wire.at("wire") as seen:
        yield seen


@pytest.fixture
def pod(make_pod: Callable[[], Pod], wire: Wire) -> Pod:
    """A pod with a default network, and with the strict filter that many hosts set."""
    pod = make_pod()
    ip("link", "add", "cali0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    pod.ip("link", "set", "eth0", "up")
    pod.ip("addr", "add", "10.244.0.2/24", "dev", "eth0")
    pod.ip("route", "add", "default", "via", "10.244.0.1")
    pod.sysctl("ipv4/conf/all/rp_filter", "1")
    pod.sysctl("ipv6/conf/default/accept_ra", "1")
    return pod


def conf(host: Host, number: int, **keys: Any) -> dict[str, Any]:
    return host.conf(**{"master": f"rail{number}", "multiRail": True} | keys)


def attached(host: Host, pod: Pod, **keys: Any) -> list[dict[str, Any]]:
    return [host.ok("ADD", pod, conf(host, number, **keys), CNI_IFNAME=f"hpn{number}") for number in RAILS]


def own(results: list[dict[str, Any]], family: int) -> dict[str, str]:
    """The MAC of the rail by address."""
    return {
        one["address"].partition("/")[0]: result["interfaces"][0]["mac"]
        for result in results
        for one in result["ips"]
        if (":" in one["address"]) == (family == 6)
    }


def test_each_goes_its_own_way(host: Host, pod: Pod, wire: Wire) -> None:
    main, default = pod.ip("route", "show"), pod.ip("route", "show", "default")
    results = attached(host, pod)
    v4, v6 = own(results, 4), own(results, 6)
    assert (len(v4), len(v6)) == (4, 4)
    for _ in range(5):
        for address in v4:
            wire.ask(address, GATEWAY)
    for address in (*v4, *v6):
        until(lambda address=address: host.ping(address))
    pod.ip("neigh", "flush", "all")
    for address in v4:
        assert pod.ping(GATEWAY, "-I", address)
    for address in v6:
        assert pod.ping(GATEWAY6, "-I", address)
    ways = {(mac, address) for address, mac in v4.items()}, {(mac, address) for address, mac in v6.items()}
    assert wire.seen("ARP reply") == wire.seen("ARP request") == ways[0]
    assert {one for one in wire.seen("advertisement") if one[1] in v6} == ways[1]
    assert wire.seen("echo") == wire.seen("echo reply") == ways[0] | ways[1]
    assert pod.ip("route", "show", "default") == default
    for number, result in enumerate(results):
        assert host.checked(pod, conf(host, number), result, CNI_IFNAME=f"hpn{number}").exit_code == 0
        host.ok("DEL", pod, conf(host, number), CNI_IFNAME=f"hpn{number}")
    assert (rules(pod), pod.links(), pod.ip("route", "show")) == (set(), {"eth0"}, main)
    assert host.state_files() == set()


def test_one_rail_down(host: Host, pod: Pod, wire: Wire) -> None:
    addresses = list(own(attached(host, pod), 4))

    def reached() -> set[str]:
        return {a for a in addresses if pod.run("ping", "-nc1", "-W1", "-I", a, GATEWAY).returncode == 0}

    assert reached() == set(addresses)
    ip("link", "set", "fabric2", "down")
    assert reached() == {*addresses} - {addresses[2]}
    ip("link", "set", "fabric2", "up")
    until(lambda: reached() == set(addresses))


def test_routers_on_the_rails_change_nothing(host: Host, pod: Pod, wire: Wire) -> None:
    """Router advertisements reach the rails, as another interface proves, and change nothing there.  The sysctl alone
    keeps them off too, also from an interface that has only IPv4 of the IPAM."""
    attached(host, pod)
    plain = {"multiRail": False, "ipam": {"type": "hpn-ipam", "subnet": "10.57.0.0/24"}, "name": "plain"}
    host.ok("ADD", pod, conf(host, 0, **plain), CNI_IFNAME="other")
    quiet = {"sysctl": {"net.ipv6.conf.IFNAME.accept_ra": "0"}}
    host.ok("ADD", pod, conf(host, 0, **plain | quiet), CNI_IFNAME="quiet")
    prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0) + socket.inet_pton(socket.AF_INET6, "fd00:99::")
    with closing(socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)) as router:
        router.bind(("fe80::1", 0, 0, socket.if_nametoindex("wire")))
        router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        router.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + prefix, ("ff02::1", 0))
    names = [*(f"hpn{number}" for number in RAILS), "quiet"]

    def heard(name: str) -> bool:
        counters = pod.run("cat", f"/proc/net/dev_snmp6/{name}").stdout.split()
        return int(counters[counters.index("Icmp6InRouterAdvertisements") + 1]) > 0

    until(lambda: all(map(heard, names)) and pod.ip("-6", "route", "show", "default"))
    assert {route["dev"] for route in pod.ip("-6", "route", "show", "default")} == {"other"}
    assert any(address.startswith("fd00:99:") for address in pod.addresses("other"))
    for name in names:
        assert not any(address.startswith("fd00:99:") for address in pod.addresses(name))


@pytest.mark.parametrize("path", SYSCTLS)
def test_check_compares(host: Host, pod: Pod, path: str) -> None:
    result = host.ok("ADD", pod, conf(host, 1))
    assert {one: pod.sysctl(one.format("hpn0")) for one in SYSCTLS} == SYSCTLS
    pod.sysctl(path.format("hpn0"), "0" if SYSCTLS[path] == "1" else "1")
    error = host.refused("CHECK", pod, conf(host, 1) | {"prevResult": result})
    assert (error["code"], path.format("hpn0").replace("/", ".") in error["msg"]) == (107, True)


def test_with_sysctls_and_a_table_of_its_own(host: Host, pod: Pod) -> None:
    keys = {
        "policyRouting": {"table": 300},
        "sysctl": {"net.core.somaxconn": "77", "net/ipv4/conf/hpn0/rp_filter": "2"},
    }
    before = pod.sysctl("core/somaxconn")
    host.ok("ADD", pod, conf(host, 0, **keys))
    assert rules(pod) == {("10.56.0.2", "300"), ("fd00:56::2", "300")}
    assert (pod.sysctl("core/somaxconn"), pod.sysctl("ipv4/conf/hpn0/arp_ignore")) == ("77", "1")
    host.ok("DEL", pod, conf(host, 0, **keys))
    assert (rules(pod), pod.sysctl("core/somaxconn")) == (set(), before)


@pytest.mark.parametrize("name", ["IFNAME", "hpn0"])
def test_a_sysctl_that_contradicts(host: Host, pod: Pod, name: str) -> None:
    error = host.refused("ADD", pod, conf(host, 0, sysctl={f"net.ipv4.conf.{name}.rp_filter": "1"}))
    said = f"sysctl 'net.ipv4.conf.{name}.rp_filter' '1' conflicts with multiRail, which sets '2'; remove the sysctl"
    assert (error["code"], said in error["msg"]) == (7, True)
    assert (rules(pod), pod.links(), host.state_files()) == (set(), {"eth0"}, set())
