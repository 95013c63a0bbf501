"""One network over several masters gives a pod an interface on each, with addresses of that rail's ranges."""

from collections.abc import Callable
from typing import Any

import pytest
from support.topology import Host, Pod, ip

RAILS = ("rail0", "rail1")
ENTRIES = [
    {"master": rail, "subnet": f"10.{56 + i}.0.0/24", "ranges": [[{"subnet": f"fd00:{56 + i}::/64"}]]}
    for i, rail in enumerate(RAILS)
]


@pytest.fixture
def rails(host: Host) -> Callable[..., dict[str, Any]]:
    """The configuration with this master, one of two."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    for name in ("rail1", "fabric1"):
        ip("link", "set", name, "up")

    def conf(master: Any, **ipam: Any) -> dict[str, Any]:
        return host.conf(master=master, ipam={"type": "hpn-ipam", "rails": ENTRIES, "align": True} | ipam)

    return conf


def attached(host: Host, pod: Pod, conf: dict[str, Any]) -> dict[str, Any]:
    """Attach the interface with the rail's number."""
    return host.ok("ADD", pod, conf, CNI_IFNAME=f"hpn{conf['master'][-1]}")


def test_aligned(host: Host, make_pod: Callable[[], Pod], rails: Callable[..., dict[str, Any]]) -> None:
    first, second = make_pod(), make_pod()
    before = host.picture(first, second)
    for pod, master in ((first, "rail0"), (second, "rail1"), (second, "rail0"), (first, "rail1")):
        result = attached(host, pod, rails(master))
        assert host.checked(pod, rails(master), result, CNI_IFNAME=f"hpn{master[-1]}").exit_code == 0
        assert result["ips"][0]["gateway"] == f"10.{56 + int(master[-1])}.0.1"
    for pod, number in ((first, 2), (second, 3)):
        assert pod.addresses("hpn0") == {f"10.56.0.{number}/24", f"fd00:56::{number}/64"}
        assert pod.addresses("hpn1") == {f"10.57.0.{number}/24", f"fd00:57::{number}/64"}
    assert first.ping("10.56.0.3")
    assert first.ping("10.57.0.3")
    assert host.ok("STATUS", None, rails("rail0"), CNI_IFNAME="") == {}

    host.ok("DEL", first, rails("rail0"))
    assert host.leases() == {"10.57.0.2", "fd00:57::2", "10.56.0.3", "fd00:56::3", "10.57.0.3", "fd00:57::3"}
    assert attached(host, first, rails("rail0"))["ips"][0]["address"] == "10.56.0.2/24"
    valid = [{"containerID": second.name, "ifname": "hpn1"}]
    host.ok("GC", None, rails("rail0") | {"cni.dev/valid-attachments": valid}, CNI_IFNAME="")
    assert host.leases() == {"10.57.0.3", "fd00:57::3"}
    host.ok("DEL", second, rails(...), CNI_IFNAME="hpn1")
    assert host.picture(first, second) == before


def test_of_a_pod_that_died(host: Host, make_pod: Callable[[], Pod], rails: Callable[..., dict[str, Any]]) -> None:
    """A dead pod's number becomes free on all rails at once."""
    few = [entry | {"rangeEnd": f"10.{56 + i}.0.2"} for i, entry in enumerate(ENTRIES)]
    dead, pod = make_pod(), make_pod()
    for master in RAILS:
        attached(host, dead, rails(master, rails=few))
    error = host.refused("ADD", pod, rails("rail0", rails=few))
    assert (error["code"], "no host number is free on all of" in error["msg"]) == (103, True)
    assert host.refused("STATUS", None, rails("rail0", rails=few), CNI_IFNAME="")["code"] == 50
    dead.gone()
    for master in reversed(RAILS):
        attached(host, pod, rails(master, rails=few))
    assert pod.addresses("hpn0") == {"10.56.0.2/24", "fd00:56::3/64"}
    assert pod.addresses("hpn1") == {"10.57.0.2/24", "fd00:57::3/64"}


def test_refused_without_a_trace(host: Host, pod: Pod, rails: Callable[..., dict[str, Any]]) -> None:
    ip("addr", "add", "192.0.2.1/24", "dev", "rail0")
    ip("route", "add", "default", "via", "192.0.2.2")
    attached(host, pod, rails("rail0"))
    before = host.picture(pod)
    for conf, code, part in (
        (rails("fabric1"), 7, "has master fabric1, and the rails are master rail0, master rail1"),
        (
            rails(...),
            7,
            "names no device, so no rail; set master, deviceID or pf",
        ),  # hpn-ipam does not know the default route's
        (rails("rail0"), 102, f"10.56.0.2 is held by hpn0 of container {pod.name[:12]}, network"),
        (rails("rail1") | {"runtimeConfig": {"ips": ["10.57.0.9"]}}, 102, "differs from 10.57.0.2"),
        (rails("rail1", ranges=[[{"subnet": "10.1.0.0/24"}]]), 7, "ipam.ranges beside ipam.rails"),
    ):
        error = host.refused("ADD", pod, conf, CNI_IFNAME="other")
        assert (error["code"], part in error["msg"]) == (code, True), error
        assert host.picture(pod) == before


@pytest.mark.parametrize("altname", ["enp59s0f0np0", "enP60932p0s2f0np0v3"])
@pytest.mark.parametrize("written", ["master", "rail", "both"])
def test_an_altname(host: Host, pod: Pod, altname: str, written: str) -> None:
    """A master and a rail may have any name of the interface."""
    ip("link", "property", "add", "dev", "rail0", "altname", altname)
    master, rail = (altname if written in (one, "both") else "rail0" for one in ("master", "rail"))
    keys = host.conf(master=master, ipam={"type": "hpn-ipam", "rails": [{"master": rail, "subnet": "10.56.0.0/24"}]})
    result = host.ok("ADD", pod, keys)
    assert [one["address"] for one in result["ips"]] == ["10.56.0.2/24"]
    assert host.checked(pod, keys, result).exit_code == 0
    host.ok("DEL", pod, keys)
