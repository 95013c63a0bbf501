"""The common behavior of macvlan and ipvlan: each test runs for both, for ipvlan if the kernel supports it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.topology import Host, Pod, ip, until

V4 = {"version": "4", "interface": 0, "address": "10.56.0.2/24", "gateway": "10.56.0.1"}
V6 = {"version": "6", "interface": 0, "address": "fd00:56::2/64", "gateway": "fd00:56::1"}
ROUTE = {"dst": "10.60.0.0/16", "gw": "10.56.0.1"}
ROUTE_1_1 = ROUTE | {"mtu": 1400, "priority": 70}


def plain(ip_of_result: dict[str, Any]) -> dict[str, Any]:
    """The address without its family, as from 1.0.0 on."""
    return {k: v for k, v in ip_of_result.items() if k != "version"}


def test_attach_check_detach(host: Host, pod: Pod, kind: str) -> None:
    conf = host.conf(kind=kind)
    before = host.picture(pod)
    result = host.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    assert (link["linkinfo"]["info_kind"], link["mtu"]) == (kind, 1500)
    assert {"UP", "LOWER_UP"} <= set(link["flags"])
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert host.picture(pod) == before


@pytest.mark.parametrize(
    ("version", "interface", "rest"),
    [
        # The three old versions have a family with each address, an empty dns, and no key of 1.1.0.
        ("0.3.0", {}, {"ips": [V4, V6], "routes": [ROUTE], "dns": {}}),
        ("0.3.1", {}, {"ips": [V4, V6], "routes": [ROUTE], "dns": {}}),
        ("0.4.0", {}, {"ips": [V4, V6], "routes": [ROUTE], "dns": {}}),
        # Version 1.0.0 has no family, and omits an empty dns.
        ("1.0.0", {}, {"ips": [plain(V4), plain(V6)], "routes": [ROUTE]}),
        # Version 1.1.0 adds the interface's mtu and the routes' attributes.
        ("1.1.0", {"mtu": 1500}, {"ips": [plain(V4), plain(V6)], "routes": [ROUTE_1_1]}),
    ],
)
def test_result_of_each_version(
    host: Host, pod: Pod, kind: str, version: str, interface: dict[str, Any], rest: dict[str, Any]
) -> None:
    conf = host.conf(kind=kind, cniVersion=version)
    conf["ipam"]["routes"] = [ROUTE_1_1]
    result = host.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    interface = {"name": "hpn0", "mac": link["address"], "sandbox": pod.path} | interface
    assert result == {"cniVersion": version, "interfaces": [interface]} | rest
    if version >= "0.4.0":
        assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf | {"prevResult": result})
    assert pod.links() == set()


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_passes_an_earlier_plugins_result_on(host: Host, pod: Pod, kind: str, version: str) -> None:
    """ADD puts an earlier plugin's items first and unchanged, and its own address points to the interface after
    them."""
    family = {"version": "4"} if version < "1.0.0" else {}
    earlier = {
        "cniVersion": version,
        "interfaces": [{"name": "veth9", "mac": "02:00:00:00:00:99"}, {"name": "eth0", "sandbox": pod.path}],
        "ips": [family | {"interface": 1, "address": "192.0.2.5/24", "gateway": "192.0.2.1"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1"}],
        "dns": {"nameservers": ["192.0.2.53"]},
    }
    conf = host.conf(kind=kind, cniVersion=version)
    result = host.ok("ADD", pod, conf | {"prevResult": earlier})
    assert result["interfaces"][:2] == earlier["interfaces"]
    assert [i["name"] for i in result["interfaces"]] == ["veth9", "eth0", "hpn0"]
    assert result["ips"][0] == earlier["ips"][0]
    assert [i["interface"] for i in result["ips"]] == [1, 2, 2]
    assert result["routes"] == earlier["routes"]
    assert result["dns"] == earlier["dns"]
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    if version >= "0.4.0":
        assert host.checked(pod, conf, result).exit_code == 0


@pytest.mark.parametrize("ipam", [..., {}], ids=["absent", "empty"])
def test_without_ipam_it_is_a_link_and_nothing_else(host: Host, pod: Pod, kind: str, ipam: Any) -> None:
    conf = host.conf(kind=kind, ipam=ipam)
    result = host.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    assert "UP" in link["flags"]
    assert pod.addresses() == set()
    assert result.keys() == {"cniVersion", "interfaces"}
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert pod.links() == set()


@pytest.mark.parametrize(
    ("routes", "found"),
    [
        ([("-4", "rail0", "10.0.0.254")], True),  # IPv4's default route
        ([("-6", "rail0", "fd00::ff")], True),  # IPv6's, without one of IPv4
        ([("-4", "rail0", "10.0.0.254"), ("-6", "other0", "fd01::ff")], True),  # IPv4's precedes IPv6's
        ([("-4", "other0", "10.1.0.254", "metric", "9"), ("-4", "rail0", "10.0.0.254", "metric", "5")], True),  # lowest
        ([], False),  # neither
    ],
)
def test_master_by_default_route(host: Host, pod: Pod, kind: str, routes: list[tuple[str, ...]], found: bool) -> None:
    ip("link", "add", "other0", "type", "veth", "peer", "name", "other1")
    for name, v4, v6 in (("rail0", "10.0.0.1/24", "fd00::1/64"), ("other0", "10.1.0.1/24", "fd01::1/64")):
        ip("link", "set", name, "up")
        ip("addr", "add", v4, "dev", name)
        ip("addr", "add", v6, "dev", name, "nodad")
    ip("link", "set", "other1", "up")
    for family, device, gateway, *more in routes:
        ip(family, "route", "add", "default", "via", gateway, "dev", device, *more)
    conf = host.conf(kind=kind, master=...)
    if found:
        host.ok("ADD", pod, conf)
        link = pod.link()
        assert link
        (master,) = ip("link", "show", "rail0")
        assert link["link_index"] == master["ifindex"]
    else:
        error = host.refused("ADD", pod, conf)
        assert error["code"] == 101
        assert "default route" in error["msg"]
        assert pod.links() == set()


@pytest.mark.usefixtures("node_file")
def test_dns_of_the_configuration_wins(host: Host, pod: Pod, kind: str) -> None:
    resolv_conf = host.tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 192.0.2.1\nsearch ipam.example\n")
    conf = host.conf(kind=kind)
    conf["ipam"]["resolvConf"] = str(resolv_conf)
    assert host.ok("ADD", pod, conf)["dns"] == {"nameservers": ["192.0.2.1"], "search": ["ipam.example"]}
    host.ok("DEL", pod, conf)
    own = {"nameservers": ["192.0.2.2"]}
    assert host.ok("ADD", pod, conf | {"dns": own})["dns"] == own


def test_two_networks_in_one_pod(host: Host, pod: Pod, kind: str) -> None:
    """Two interfaces of a pod have a record each, and DEL of one leaves the other."""
    one = host.conf(kind=kind)
    two = host.conf(kind=kind, name="rail1", ipam={"type": "hpn-ipam", "subnet": "10.57.0.0/24"})
    first, second = host.ok("ADD", pod, one), host.ok("ADD", pod, two, CNI_IFNAME="hpn1")
    assert pod.links() == {"hpn0", "hpn1"}
    assert pod.addresses("hpn1") == {"10.57.0.2/24"}
    assert host.checked(pod, two, second, CNI_IFNAME="hpn1").exit_code == 0
    host.ok("DEL", pod, two, CNI_IFNAME="hpn1")
    assert pod.links() == {"hpn0"}
    assert host.checked(pod, one, first).exit_code == 0


@pytest.mark.parametrize(
    "name",
    [
        "rail.0",  # a sysctl's path keeps the dot
        "schiene-ä",  # bytes above 127
        "a" * 15,  # the kernel's longest name
    ],
)
def test_interface_name(host: Host, pod: Pod, kind: str, name: str) -> None:
    conf = host.conf(kind=kind)
    result = host.ok("ADD", pod, conf, CNI_IFNAME=name)
    assert pod.links() == {name}
    assert result["interfaces"][0]["name"] == name
    assert pod.sysctl(f"ipv4/conf/{name}/arp_notify") == "1"
    assert host.checked(pod, conf, result, CNI_IFNAME=name).exit_code == 0
    host.ok("DEL", pod, conf, CNI_IFNAME=name)
    assert pod.links() == set()


def test_two_pods_reach_each_other(host: Host, make_pod: Callable[[], Pod], kind: str) -> None:
    one, two = make_pod(), make_pod()
    host.ok("ADD", one, host.conf(kind=kind))
    host.ok("ADD", two, host.conf(kind=kind))
    assert one.ping("10.56.0.3")
    assert until(lambda: one.ping("fd00:56::3", "-W", "1"))


def test_nobody_else_is_reached(host: Host, make_pod: Callable[[], Pod], kind: str) -> None:
    """The control to the test above: a pod without an attachment is not reachable."""
    one, two = make_pod(), make_pod()
    host.ok("ADD", one, host.conf(kind=kind))
    # time: nothing is to come
    assert not one.ping("10.56.0.3", "-W", "0.2")
    assert two.links() == set()


def test_a_name_taken_meanwhile(host: Host, pod: Pod, kind: str) -> None:
    """ADD fails if the name is taken after its check, for example by another network of the pod."""
    with host.meanwhile(pod, host.conf(kind=kind)) as reply:
        stranger = pod.stranger()
    error = json.loads(reply.result().stdout)
    assert (error["code"], "CNI_IFNAME=hpn0" in error["msg"]) == (100, True)
    assert pod.link() == stranger
    assert host.state_files() == set()


def test_a_name_that_is_taken_costs_no_address(host: Host, pod: Pod, kind: str) -> None:
    """ADD checks the name before it allocates, so a refused ADD costs no address."""
    pod.stranger()
    assert host.refused("ADD", pod, host.conf(kind=kind))["code"] == 100
    pod.ip("link", "delete", "hpn0")
    host.ok("ADD", pod, host.conf(kind=kind))
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
