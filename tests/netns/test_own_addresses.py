"""ADD allocates no address that the host has on the master: neither a probe nor duplicate detection finds it there."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.topology import Host, Pod, ip, until

from ipam.main import run as hpn_ipam

RANGES = [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]


def conf(host: Host, **ipam: Any) -> dict[str, Any]:
    return host.conf(ipam={"type": "hpn-ipam", "ranges": RANGES, **ipam})


def given(result: dict[str, Any]) -> list[str]:
    return [entry["address"].partition("/")[0] for entry in result["ips"]]


@pytest.mark.parametrize("more", [{}, {"probe": 0.1}])
def test_addresses_of_the_master(host: Host, pod: Pod, more: dict[str, Any]) -> None:
    ip("addr", "add", "10.56.0.2/24", "dev", "rail0")
    ip("addr", "add", "10.56.0.3/32", "dev", "rail0")
    ip("addr", "add", "fd00:56::2/64", "dev", "rail0", "nodad")
    # The kernel makes the address's route a moment later (net/ipv6/addrconf.c, addrconf_dad_work).
    until(lambda: "fd00:56::2" in [route["dst"] for route in ip("-6", "route", "show", "table", "local")])
    assert given(host.ok("ADD", pod, conf(host, **more))) == ["10.56.0.4", "fd00:56::3"]
    host.ok("DEL", pod, conf(host, **more))
    refused = host.call("ADD", pod, conf(host, **more) | {"runtimeConfig": {"ips": ["10.56.0.3"]}})
    assert json.loads(refused.stdout)["code"] == 102
    assert "10.56.0.3 is held by this node itself, on rail0; request another" in refused.stdout


def test_where_a_socket_may_have_any_address(host: Host, pod: Pod) -> None:
    """As keepalived sets it."""
    Path("/proc/sys/net/ipv4/ip_nonlocal_bind").write_text("1")
    ip("addr", "add", "10.56.0.2/24", "dev", "rail0")
    assert given(host.ok("ADD", pod, conf(host)))[0] == "10.56.0.3"


def test_the_master_by_its_altname(host: Host, pod: Pod) -> None:
    ip("link", "property", "add", "dev", "rail0", "altname", "the-fabric-of-rail-0")
    ip("addr", "add", "10.56.0.2/24", "dev", "rail0")
    named = conf(host) | {"master": "the-fabric-of-rail-0"}
    assert given(host.ok("ADD", pod, named))[0] == "10.56.0.3"


@pytest.mark.parametrize("master", ["\ud800", "x" * 500, "a\0b"])
def test_what_no_interface_can_be_called(host: Host, pod: Pod, master: str) -> None:
    """As no master: another plugin, which calls hpn-ipam, may read the key otherwise."""
    ip("addr", "add", "10.56.0.2/24", "dev", "fabric")
    answer = hpn_ipam(host.request("ADD", pod, conf(host) | {"master": master}))
    assert given(json.loads(answer.stdout))[0] == "10.56.0.3", answer


def test_the_last_address_is_the_hosts(host: Host, pod: Pod) -> None:
    """STATUS and ADD find the range exhausted."""
    ip("addr", "add", "10.56.0.9/24", "dev", "rail0")
    one = conf(host, ranges=[[{"subnet": "10.56.0.0/24", "rangeStart": "10.56.0.9", "rangeEnd": "10.56.0.9"}]])
    assert host.call("STATUS", None, one).exit_code != 0
    assert "all 1 addresses are held" in host.call("ADD", pod, one).stdout
    ip("addr", "del", "10.56.0.9/24", "dev", "rail0")
    assert given(host.ok("ADD", pod, one)) == ["10.56.0.9"]


def test_an_address_elsewhere_is_no_conflict(host: Host, pod: Pod) -> None:
    ip("addr", "add", "10.56.0.2/24", "dev", "lo")
    one = conf(host, ranges=[[{"subnet": "10.56.0.0/24", "rangeEnd": "10.56.0.2"}]])
    host.ok("STATUS", None, one)
    assert given(host.ok("ADD", pod, one)) == ["10.56.0.2"]


@pytest.mark.parametrize(
    ("master", "at"), [("rail0", "shim"), ("shim", "rail0"), ("shim", "shim2"), ("rail0", "shim2")]
)
def test_the_hosts_interface_beside_the_pods(host: Host, pod: Pod, master: str, at: str) -> None:
    """Hosts have one to reach their own pods; it is on the master's link, and so is one over it."""
    for name, over in (("shim", "rail0"), ("shim2", "shim")):
        ip("link", "add", name, "link", over, "type", "macvlan")
        ip("link", "set", name, "up")
    ip("addr", "add", "10.56.0.2/24", "dev", at)
    named = conf(host) | {"master": master}
    assert given(host.ok("ADD", pod, named))[0] == "10.56.0.3"


def test_the_hosts_interface_on_another_link(host: Host, pod: Pod) -> None:
    ip("link", "add", "shim", "link", "fabric", "type", "macvlan")
    ip("link", "set", "shim", "up")
    ip("addr", "add", "10.56.0.2/24", "dev", "shim")
    assert given(host.ok("ADD", pod, conf(host)))[0] == "10.56.0.2"


def test_without_a_known_master_all_interfaces_count(host: Host, pod: Pod) -> None:
    ip("addr", "add", "10.56.0.2/24", "dev", "fabric")
    ip("route", "add", "default", "dev", "rail0")
    found = conf(host)
    del found["master"]
    assert given(host.ok("ADD", pod, found))[0] == "10.56.0.3"
