"""IPv6 addresses derived from the interface's MAC."""

import json
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from support.topology import Host, Pod, ip

from ipam.main import run as hpn_ipam


def conf(host: Host, **ipam: Any) -> dict[str, Any]:
    ranges = [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64", "eui64": True}]]
    return host.conf(ipam={"type": "hpn-ipam", "ranges": ranges} | ipam)


def given(result: dict[str, Any]) -> list[str]:
    return [entry["address"] for entry in result["ips"]]


def test_eui64(host: Host, pod: Pod) -> None:
    config = conf(host)
    result = host.ok("ADD", pod, config)
    assert pod.addresses() == set(given(result))
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    # The kernel derives its link-local address from the MAC in the same way.
    (local,) = [IPv6Address(a["local"]) for a in link["addr_info"] if a["scope"] == "link"]
    own = IPv6Address(given(result)[1].removesuffix("/64"))
    assert own.packed == IPv6Address("fd00:56::").packed[:8] + local.packed[8:]
    assert host.leases() == {"10.56.0.2", str(own)}
    assert host.checked(pod, config, result).exit_code == 0
    host.ok("DEL", pod, config)
    assert host.leases() == set()


def test_eui64_and_probe(host: Host, pod: Pod) -> None:
    config = conf(host, probe=1) | {"mac": "02:00:00:00:00:2a"}
    before = host.picture(pod)
    ip("addr", "add", "fd00:56::ff:fe00:2a/64", "dev", "fabric", "nodad")
    (other,) = ip("link", "show", "fabric")
    error = host.refused("ADD", pod, config)
    assert error["code"] == 104
    assert f"fd00:56::ff:fe00:2a is in use by another host on the link (MAC {other['address']})" in error["msg"]
    ip("addr", "flush", "dev", "fabric", "scope", "global")
    assert host.picture(pod) == before
    assert "fd00:56::ff:fe00:2a/64" in given(host.ok("ADD", pod, config))


def test_two_with_one_mac(host: Host, make_pod: Callable[[], Pod]) -> None:
    one, two = make_pod(), make_pod()
    config = conf(host) | {"mac": "02:00:00:00:00:2a"}
    host.ok("ADD", one, config)
    before = host.picture(one, two)
    error = host.refused("ADD", two, config)
    assert error["code"] == 102
    assert f"fd00:56::ff:fe00:2a is held by hpn0 of container {one.name[:12]}, network" in error["msg"]
    assert "MAC 02:00:00:00:00:2a (eui64)" in error["details"]
    assert host.picture(one, two) == before
    host.ok("DEL", one, config)
    host.ok("ADD", two, config)


def test_ipvlans_have_one_mac(host: Host, make_pod: Callable[[], Pod], ipvlan: str) -> None:
    one, two = make_pod(), make_pod()
    config = conf(host) | {"kind": ipvlan}
    host.ok("ADD", one, config)
    assert f"held by hpn0 of container {one.name[:12]}, network" in host.refused("ADD", two, config)["msg"]


def test_on_rails(host: Host, pod: Pod) -> None:
    """The attachment gets an address of its own rail only."""
    rails = [{"master": f"rail{n}", "subnet": f"fd00:{n}::/64", "eui64": True} for n in (1, 0)]
    ipam = {"type": "hpn-ipam", "rails": rails}
    assert given(host.ok("ADD", pod, host.conf(ipam=ipam, mac="02:00:00:00:00:2a"))) == ["fd00::ff:fe00:2a/64"]


def test_without_an_interface(host: Host, pod: Pod) -> None:
    """hpn-ipam refuses eui64 under a main plugin that calls it before the interface exists."""
    error = json.loads(hpn_ipam(host.request("ADD", pod, conf(host))).stdout)
    assert error["code"] == 101
    assert "CNI_IFNAME=hpn0" in error["msg"]
    assert host.leases() == set()
