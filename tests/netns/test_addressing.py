"""Addresses, routes and sysctls as the kernel shows them."""

from functools import partial
from ipaddress import ip_interface
from typing import Any

import pytest
from support.topology import Host, Pod, ip, until

from base.kernel import addresses, budget, links, netns, rtnl


def flags(pod: Pod, address: str) -> set[str]:
    """The address's flags by iproute2's names."""
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    (found,) = [a for a in link["addr_info"] if a["local"] == address]
    return {k for k, v in found.items() if v is True}


def routes(pod: Pod, family: str, *words: str) -> list[dict[str, Any]]:
    """The static routes of one family over the interface."""
    shown = pod.ip("-d", family, "route", "show", *words, "dev", "hpn0")
    return [r for r in shown if r["protocol"] == "static"]


def delivered(pod: Pod, address: str) -> bool:
    """Report whether the pod receives packets to the address."""
    return address in {r["dst"] for r in pod.ip("-6", "route", "show", "table", "local")}


def devices(pod: Pod, family: str) -> list[str]:
    """The interfaces of the default routes in order.  IPv6 merges two routes into one with two next hops."""
    shown = pod.ip(family, "route", "show", "default")
    return [hop["dev"] for route in shown for hop in route.get("nexthops", [route])]


@pytest.mark.parametrize("keys", [{}, {"multiRail": True}])
def test_a_link_local_gateway(host: Host, pod: Pod, keys: dict[str, Any]) -> None:
    """Routers announce such addresses, and the kernel resolves them on the interface itself."""
    ip("addr", "add", "fe80::1/64", "dev", "fabric", "nodad")
    ip("addr", "add", "fd00:60::1/128", "dev", "fabric", "nodad")
    conf = host.conf(**keys)
    conf["ipam"] |= {
        "ranges": [[{"subnet": "fd00:56::/64", "gateway": "fe80::1"}]],
        "routes": [{"dst": "fd00:60::/64"}],
    }
    result = host.ok("ADD", pod, conf)
    assert [one["gateway"] for one in result["ips"]] == ["fe80::1"]
    ip("-6", "route", "replace", "fd00:56::/64", "dev", "fabric")
    (address,) = result["ips"]
    assert pod.ping("fd00:60::1", "-I", address["address"].partition("/")[0])
    assert host.checked(pod, conf, result).exit_code == 0


@pytest.mark.parametrize(
    ("route", "selector", "expected"),
    [
        ({"mtu": 1400}, (), {"metrics": [{"mtu": 1400}]}),
        ({"advmss": 1360}, (), {"metrics": [{"advmss": 1360}]}),
        ({"mtu": 1400, "advmss": 1360}, (), {"metrics": [{"mtu": 1400, "advmss": 1360}]}),  # two in one attribute
        ({"priority": 7}, (), {"metric": 7}),
        ({"table": 100}, ("table", "100"), {"gateway": "10.56.0.1"}),
        ({"table": 4_000_000}, ("table", "4000000"), {"gateway": "10.56.0.1"}),  # more than the byte in the header
        ({"scope": 253}, (), {"scope": "link", "gateway": None}),  # on-link, so ADD adds no gateway
        ({"scope": 0}, (), {"scope": "global", "gateway": "10.56.0.1"}),  # the default
        ({"gw": "10.56.0.9"}, (), {"gateway": "10.56.0.9"}),  # the route's own gateway has precedence
        ({}, (), {"gateway": "10.56.0.1"}),  # the range's gateway is the default
    ],
)
def test_route_attribute(
    host: Host, pod: Pod, route: dict[str, Any], selector: tuple[str, ...], expected: dict[str, Any]
) -> None:
    conf = host.conf()
    conf["ipam"]["routes"] = [{"dst": "10.60.0.0/16"} | route]
    result = host.ok("ADD", pod, conf)
    (shown,) = routes(pod, "-4", *selector)
    assert shown["dst"] == "10.60.0.0/16"
    assert {k: shown.get(k) for k in expected} == expected
    assert result["routes"] == conf["ipam"]["routes"]
    assert host.checked(pod, conf, result).exit_code == 0


@pytest.mark.parametrize(
    ("route", "selector", "expected"),
    [
        ({"mtu": 1400, "advmss": 1360}, (), {"metrics": [{"mtu": 1400, "advmss": 1360}]}),
        ({"priority": 7}, (), {"metric": 7}),
        ({"table": 100}, ("table", "100"), {"gateway": "fd00:56::1"}),
        ({"scope": 253}, (), {"gateway": None}),  # IPv6 has no scope, but a route without gateway is on-link
        ({}, (), {"gateway": "fd00:56::1"}),
    ],
)
def test_ipv6_route_attribute(
    host: Host, pod: Pod, route: dict[str, Any], selector: tuple[str, ...], expected: dict[str, Any]
) -> None:
    conf = host.conf()
    conf["ipam"]["routes"] = [{"dst": "fd00:60::/48"} | route]
    result = host.ok("ADD", pod, conf)
    (shown,) = routes(pod, "-6", *selector)
    assert shown["dst"] == "fd00:60::/48"
    assert {k: shown.get(k) for k in expected} == expected
    assert host.checked(pod, conf, result).exit_code == 0


def test_default_routes_of_both_families(host: Host, pod: Pod) -> None:
    conf = host.conf()
    conf["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    result = host.ok("ADD", pod, conf)
    shown = [(r["dst"], r["gateway"]) for family in ("-4", "-6") for r in routes(pod, family)]
    assert shown == [("default", "10.56.0.1"), ("default", "fd00:56::1")]
    assert host.checked(pod, conf, result).exit_code == 0


def test_default_route_beside_another_interfaces(host: Host, pod: Pod) -> None:
    """ADD adds a default route beside the cluster network's one, which stays."""
    pod.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    pod.ip("link", "set", "eth0", "up")
    for address, gateway in (("10.1.0.2/24", "10.1.0.1"), ("fd01::2/64", "fd01::1")):
        pod.ip("addr", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []))
        pod.ip("route", "add", "default", "via", gateway, "dev", "eth0")
    conf = host.conf()
    conf["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    result = host.ok("ADD", pod, conf)
    assert devices(pod, "-4") == ["hpn0", "eth0"]
    assert set(devices(pod, "-6")) == {"hpn0", "eth0"}
    assert host.checked(pod, conf, result).exit_code == 0


def test_a_route_that_cannot_be_undoes_everything(host: Host, pod: Pod) -> None:
    """ADD undoes everything if the kernel refuses a route, its last step but one: the gateway is unreachable."""
    before = host.picture(pod)
    conf = host.conf()
    conf["ipam"]["routes"] = [{"dst": "10.60.0.0/16", "gw": "192.0.2.1"}]
    error = host.refused("ADD", pod, conf)
    assert error["code"] == 105
    assert "10.60.0.0/16 via 192.0.2.1" in error["details"]
    assert host.picture(pod) == before


@pytest.mark.parametrize(
    ("address", "broadcast"),
    [
        ("10.56.0.2/24", "10.56.0.255"),
        ("10.56.0.2/31", None),  # a link of two addresses has no broadcast (RFC 3021)
        ("10.56.0.2/32", None),
        ("fd00:56::2/127", None),
        ("fd00:56::2/128", None),
    ],
)
def test_address_of_any_length(host: Host, pod: Pod, address: str, broadcast: str | None) -> None:
    conf = host.conf(ipam={"type": "script"})
    path = host.giving(ips=[{"address": address}])
    result = host.ok("ADD", pod, conf, CNI_PATH=path)
    assert pod.addresses() == {address}
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    assert link["addr_info"][0].get("broadcast") == broadcast
    assert host.checked(pod, conf, result, CNI_PATH=path).exit_code == 0


def test_ipv6_where_the_pod_had_it_disabled(host: Host, pod: Pod) -> None:
    pod.sysctl("ipv6/conf/default/disable_ipv6", "1")
    result = host.ok("ADD", pod)
    assert "fd00:56::2/64" in pod.addresses()
    assert host.checked(pod, host.conf(), result).exit_code == 0


def test_ipv6_stays_disabled_where_it_is_not_needed(host: Host, pod: Pod) -> None:
    pod.sysctl("ipv6/conf/default/disable_ipv6", "1")
    host.ok("ADD", pod, host.conf(ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24"}))
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    assert [a["local"] for a in link["addr_info"]] == ["10.56.0.2"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ipv4/conf/hpn0/arp_notify", "1"),  # announce again when the link comes back
        ("ipv6/conf/hpn0/ndisc_notify", "1"),
        ("ipv6/conf/hpn0/keep_addr_on_down", "1"),  # nothing else would add the address again
        ("ipv6/conf/hpn0/optimistic_dad", "1"),
        ("ipv6/conf/hpn0/use_optimistic", "1"),
    ],
)
def test_sysctl(host: Host, pod: Pod, key: str, value: str) -> None:
    assert pod.sysctl(key.replace("hpn0", "default")) != value
    host.ok("ADD", pod, host.conf(dad="optimistic"))
    assert pod.sysctl(key) == value


def test_addresses_survive_down_and_up(host: Host, pod: Pod) -> None:
    pod.quick_dad()
    host.ok("ADD", pod)
    until(lambda: "tentative" not in flags(pod, "fd00:56::2"))
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "up")
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}


@pytest.mark.parametrize(
    ("dad", "expected"),
    [
        ("optimistic", {"optimistic", "tentative"}),  # in use during its test
        ("off", {"nodad"}),  # never tested
        ("wait", set()),  # tested and unique
        ("quick", set()),
        (..., set()),  # which is quick
    ],
)
def test_dad_when_add_returns(host: Host, pod: Pod, dad: Any, expected: set[str]) -> None:
    host.ok("ADD", pod, host.conf(dad=dad))
    assert flags(pod, "fd00:56::2") == expected


@pytest.mark.parametrize("dad", ["quick", "optimistic", "off", "wait"])
def test_address_can_be_used_at_once(host: Host, pod: Pod, dad: str) -> None:
    """The address works from the first packet on.  The far end speaks first, so that the pod learns its MAC: the kernel
    sends no solicitation from an address under test (RFC 4429, section 3.2)."""
    if dad == "wait":
        pod.quick_dad()
    if dad == "optimistic":
        pod.sysctl("ipv6/conf/default/dad_transmits", "240")  # detection lasts minutes, longer than the pings
    ip("addr", "add", "fd00:56::1/64", "dev", "fabric", "nodad")
    host.ok("ADD", pod, host.conf(dad=dad))
    # time: shorter than the detection
    assert host.ping("fd00:56::2", "-W", "30")
    # time: shorter than the detection
    assert pod.ping("fd00:56::1", "-I", "fd00:56::2", "-W", "30")


def test_an_optimistic_address_is_local_at_once(host: Host, pod: Pod) -> None:
    """An address works at once, every time.  If the kernel gets it before the link is up, delivery depends on the
    moment of the kernel's own worker (addrconf_dad_begin)."""
    pod.sysctl("ipv6/conf/default/dad_transmits", "1000")  # the address stays optimistic throughout
    for n in range(20):
        result = host.ok("ADD", pod, host.conf(dad="optimistic"), CNI_IFNAME=f"hpn{n}")
        until(partial(delivered, pod, result["ips"][1]["address"].partition("/")[0]))


def test_an_address_in_use_is_found_by_check(host: Host, pod: Pod) -> None:
    ip("addr", "add", "fd00:56::2/64", "dev", "fabric", "nodad")
    conf = host.conf(dad="optimistic")
    result = host.ok("ADD", pod, conf)
    until(lambda: "dadfailed" in flags(pod, "fd00:56::2"))
    reply = host.checked(pod, conf, result)
    assert reply.exit_code
    assert '"code":107' in reply.stdout
    assert "fd00:56::2" in reply.stdout


@pytest.mark.parametrize("dad", ["quick", "optimistic", "wait"])
def test_master_without_carrier(host: Host, pod: Pod, dad: str) -> None:
    """ADD neither fails nor waits without a cable; the addresses work once there is one."""
    pod.quick_dad()
    ip("link", "set", "fabric", "down")
    result = host.ok("ADD", pod, host.conf(dad=dad))
    assert budget.left() > 0, "it has waited for as long as it may"
    link = pod.link()
    assert link
    assert "UP" in link["flags"]
    assert "LOWER_UP" not in link["flags"]
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert host.checked(pod, host.conf(dad=dad), result).exit_code == 0
    ip("link", "set", "fabric", "up")
    ip("addr", "add", "10.56.0.1/24", "dev", "fabric")
    ip("addr", "add", "fd00:56::1/64", "dev", "fabric", "nodad")
    assert host.ping("10.56.0.2")
    assert until(lambda: host.ping("fd00:56::2", "-W", "0.5"))


def test_of_several_changes_the_first_failure_is_told_and_the_others_were_tried(pod: Pod) -> None:
    one, two, three = (ip_interface(f"10.57.0.{n}/24") for n in (1, 2, 3))
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as inside:
        lo = inside.link("lo")
        assert lo
        wanted = [one, two, two, three, three]
        with pytest.raises(FileExistsError) as e:
            inside.change_all([addresses.adding_address(lo.index, address) for address in wanted])
        assert e.value.__notes__ == ["while adding address 10.57.0.2/24"]
        assert pod.addresses("lo") == {str(address) for address in (one, two, three)}
        # No answer is left over that the next request could mistake for its own.
        assert inside.link("lo") == lo
        inside.change_all([links.setting_up(lo)])
