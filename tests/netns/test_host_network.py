"""A device that takes the host's addresses, routes and rules into the pod, and brings them back."""

import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import drawn
import pytest
from netns.test_host_device import without_numbers
from support.killing import killed_at
from support.recovery import Recovery, by_a_new_add, by_del, by_gc
from support.topology import Host, Pod, ip

from base.state import durable

NAME, MAC = "eth9", "02:00:00:00:09:01"


def shown(*words: str, netns: str = "") -> list[str]:
    """The lines of ``ip``, without the seconds that a lifetime has left and the kernel's own link-local addresses."""
    where = ["-n", netns] if netns else []
    done = subprocess.run(["ip", *where, *words], capture_output=True, text=True, check=True)
    return [re.sub(r" expires \d+sec", "", line).strip() for line in done.stdout.splitlines()]


def network(name: str = NAME) -> dict[str, Any]:
    """The network of the interface on the host, in the kernel's order, as ``ip`` shows it."""
    (link,) = ip("-d", "address", "show", "dev", name)
    addresses = [a for a in link["addr_info"] if a["scope"] != "link" or a["family"] == "inet"]
    all_routes = {family: shown(family, "route", "show", "table", "all") for family in ("-4", "-6")}
    routes = {family: [line for line in lines if f" dev {name}" in line] for family, lines in all_routes.items()}
    return {
        "addresses": [{k: v for k, v in a.items() if "life_time" not in k} for a in addresses],
        "forever": [a["valid_life_time"] == 2**32 - 1 for a in addresses],
        "-4": routes["-4"],
        # The kernel makes the routes to IPv6 addresses (table local) later than the addresses.
        "-6": sorted(r for r in routes["-6"] if "fe80::" not in r and "table local" not in r),
        "rules": shown("-4", "rule") + shown("-6", "rule"),
    }


def own_rules(pod: Pod) -> list[str]:
    rules = shown("-4", "rule", netns=pod.name) + shown("-6", "rule", netns=pod.name)
    return [rule for rule in rules if "lookup 10" in rule]


def is_here(name: str = NAME) -> bool:
    return name in {link["ifname"] for link in ip("link")}


def run(text: str) -> None:
    for line in filter(None, map(str.strip, text.splitlines())):
        ip(*line.split())


@pytest.fixture
def eth9(host: Host) -> dict[str, Any]:
    """A NIC as a cloud's agent leaves it: several addresses, tables, rules and metrics."""
    run(f"""
        link add {NAME} address {MAC} type veth peer name far9
        link set far9 up
        link set {NAME} up
        address add 10.1.0.5/24 dev {NAME} broadcast 10.1.0.255 label {NAME}:1
        address add 10.1.0.6/24 dev {NAME}
        address add 10.2.0.5/31 dev {NAME} noprefixroute metric 77
        address add 10.3.0.1 peer 10.3.0.2 dev {NAME}
        address add 10.4.0.9/24 dev {NAME} valid_lft 5000 preferred_lft 4000
        address add fd00:1::5/64 dev {NAME} nodad
        address add fd00:2::5/64 dev {NAME} nodad noprefixroute
        address add fd00:3::5/64 dev {NAME} nodad valid_lft 5000 preferred_lft 4000
        route add 10.2.0.4/31 dev {NAME} proto kernel scope link src 10.2.0.5 metric 77
        route add 10.8.0.0/16 via 10.1.0.1 dev {NAME} metric 5 src 10.1.0.6 mtu 1400
        route append 10.8.0.0/16 via 10.1.0.2 dev {NAME} metric 5
        route append 10.8.0.0/16 via 10.1.0.3 dev {NAME} metric 5
        route add default via 10.1.0.1 dev {NAME} table 101
        route add 10.1.0.0/24 dev {NAME} table 101 scope link
        route add 10.9.0.0/16 table 1000 nexthop via 10.1.0.1 dev {NAME} weight 2 nexthop via 10.1.0.2 dev {NAME}
        route add 10.7.0.0/16 via inet6 fe80::1 dev {NAME} onlink
        -6 route add default via fd00:1::1 dev {NAME} table 101 metric 9
        -6 route add fd00:8::/32 via fd00:1::1 dev {NAME} src fd00:1::5
        rule add from 10.1.0.5 lookup 101 priority 1001
        rule add from 10.1.0.6 lookup 101 priority 1001
        rule add from 10.9.9.9 lookup 101 priority 1002
        rule add from 10.1.0.0/24 lookup 1000 priority 1003 iif {NAME}
        -6 rule add from fd00:1::5 lookup 101 priority 1001
    """)
    return network()


def conf(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(
        **{"kind": "host-device", "master": ..., "device": NAME, "useInterfaceNetwork": True, "ipam": ...} | keys
    )


def test_into_the_pod_and_back(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    result = host.ok("ADD", pod, conf(host))
    (link,) = pod.ip("-d", "address", "show", "dev", "hpn0")
    of_pod = {f"{a['local']}/{a['prefixlen']}": a for a in link["addr_info"] if a["scope"] == "global"}
    assert list(of_pod) == [
        "10.1.0.5/24", "10.2.0.5/31", "10.3.0.1/32", "10.4.0.9/24", "10.1.0.6/24", "fd00:2::5/64", "fd00:1::5/64",
    ]  # fmt: skip
    assert {i["address"] for i in result["ips"]} == set(of_pod)
    assert {a["valid_life_time"] for a in of_pod.values()} == {2**32 - 1}
    assert (of_pod["10.1.0.5/24"]["label"], of_pod["10.1.0.5/24"]["broadcast"]) == ("hpn0:1", "10.1.0.255")
    assert of_pod["10.2.0.5/31"]["noprefixroute"]
    assert of_pod["10.3.0.1/32"]["address"] == "10.3.0.2"
    assert not any(a.get("tentative") for a in of_pod.values())
    routes = shown("-4", "route", "show", "table", "all", netns=pod.name)
    assert [r for r in routes if "10.8.0.0" in r] == [
        "10.8.0.0/16 via 10.1.0.1 dev hpn0 src 10.1.0.6 metric 5 mtu 1400",
        "10.8.0.0/16 via 10.1.0.2 dev hpn0 metric 5",
        "10.8.0.0/16 via 10.1.0.3 dev hpn0 metric 5",
    ]
    assert "default via 10.1.0.1 dev hpn0 table 101" in routes
    assert "10.7.0.0/16 via inet6 fe80::1 dev hpn0 onlink" in routes
    routes = shown("-6", "route", "show", "table", "all", netns=pod.name)
    assert "default via fd00:1::1 dev hpn0 table 101 metric 9 pref medium" in routes
    assert "fd00:8::/32 via fd00:1::1 dev hpn0 src fd00:1::5 metric 1024 pref medium" in routes
    rules = shown("-4", "rule", netns=pod.name)
    assert [r for r in rules if "lookup 10" in r] == [
        "1001:\tfrom 10.1.0.5 lookup 101", "1001:\tfrom 10.1.0.6 lookup 101",
        "1003:\tfrom 10.1.0.0/24 iif hpn0 lookup 1000",
    ]  # fmt: skip
    reply = host.checked(pod, conf(host), result)
    assert reply.exit_code == 0, reply.stdout
    reply = host.call("DEL", pod, conf(host))
    assert (reply.exit_code, reply.log) == (0, ())
    assert network() == eth9
    assert not own_rules(pod)
    assert host.state_files() == set()


def test_the_lifetimes_go_on(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """Of an hour in the pod, a lease of 5000 s has 1400 left; one of half an hour has ended."""
    ip("address", "add", "10.5.0.1/24", "dev", NAME, "valid_lft", "1800", "preferred_lft", "1800")
    host.ok("ADD", pod, conf(host))
    link = durable.read(host.record(pod))["link"]
    link["home"]["network"]["at"] -= 3600
    host.rewrite(host.record(pod), link=link)
    reply = host.call("DEL", pod, conf(host))
    assert "the lifetime of 10.5.0.1/24 has ended" in "".join(reply.log)
    (shown_,) = ip("address", "show", "dev", NAME)
    left = {a["local"]: (a["preferred_life_time"], a["valid_life_time"]) for a in shown_["addr_info"]}
    for address in ("10.4.0.9", "fd00:3::5"):
        preferred, valid = left[address]
        assert 0 < preferred <= 400 < valid <= 1400
    assert left["10.1.0.5"] == (2**32 - 1, 2**32 - 1)
    assert network() == eth9


@pytest.mark.parametrize("recover", [by_del, by_gc, by_a_new_add])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_every_step(host: Host, pod: Pod, eth9: dict[str, Any], command: str, recover: Recovery) -> None:
    for step in drawn.steps():
        if command == "DEL":
            host.ok("ADD", pod, conf(host))
        killed = killed_at(step, host.request(command, pod, conf(host)))
        recover(host, pod, conf(host))
        assert pod.links() == set(), f"it is in the pod after step {step}"
        assert network() == eth9, f"it is not as it was after step {step}"
        assert not own_rules(pod), f"rules are left in the pod after step {step}"
        assert host.state_files() == set(), f"left after step {step}"
        if not killed:
            break
    assert step > 30


@pytest.mark.parametrize("is_old", [False, True])
def test_an_add_that_was_killed_before_the_move_does_not_touch_it(
    host: Host, pod: Pod, eth9: dict[str, Any], is_old: bool
) -> None:
    """The undo must not set the interface down: the host would lose a router's routes, which the journal has not."""
    ip("-6", "route", "add", "fd00:99::/32", "dev", NAME, "proto", "ra")
    before = network()
    for step in range(100):
        killed_at(step, host.request("ADD", pod, conf(host)))
        if host.record(pod).exists() or not is_here():
            break
        host.ok("DEL", pod, conf(host))
    assert is_here()
    if is_old:
        without_numbers(host, pod)
    host.ok("DEL", pod, conf(host))
    assert network() == before


def test_whatever_the_pod_made_of_it(host: Host, pod: Pod, make_pod: Callable[[], Pod], eth9: dict[str, Any]) -> None:
    """The pod flushed all, added its own, renamed the interface, and hid it in a namespace of its own."""
    inner = make_pod()
    host.ok("ADD", pod, conf(host))
    pod.ip("address", "flush", "dev", "hpn0")
    pod.ip("address", "add", "192.0.2.7/24", "dev", "hpn0")
    pod.ip("route", "add", "198.51.100.0/24", "via", "192.0.2.1", "table", "101")
    pod.ip("rule", "delete", "priority", "1003")
    pod.ip("link", "set", "hpn0", "name", "mine0", "netns", inner.name)
    host.ok("DEL", pod, conf(host))
    assert network() == eth9
    assert not own_rules(pod)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("address", "delete", "10.2.0.5/31", "dev", "hpn0"), "has lost address 10.2.0.5/31"),
        (("route", "delete", "default", "table", "101"), "route 0.0.0.0/0 in table 101 is lost"),
        (("route", "delete", "10.9.0.0/16", "table", "1000"), "route 10.9.0.0/16 in table 1000 is lost"),
        (("rule", "delete", "priority", "1003"), "has lost the rule from 10.1.0.0/24 lookup 1000"),
        (("-6", "rule", "delete", "priority", "1001"), "has lost the rule from fd00:1::5/128 lookup 101"),
    ],
)
def test_check(host: Host, pod: Pod, eth9: dict[str, Any], change: tuple[str, ...], says: str) -> None:
    result = host.ok("ADD", pod, conf(host))
    pod.ip(*change)
    reply = host.checked(pod, conf(host), result)
    assert (reply.code, says in reply.stdout) == (107, True), reply.stdout


def test_an_agent_has_configured_it_meanwhile(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """An agent of the host configured the interface between an undo that was killed and the next."""
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", NAME, "netns", str(os.getpid()))
    run(f"""
        link set {NAME} up
        address add 10.1.0.5/16 dev {NAME}
        address add 10.66.0.1/24 dev {NAME}
        address add 10.2.0.5/32 dev lo
        route add default via 10.66.0.2 dev {NAME} table 101
        route add 10.8.0.0/16 via 10.66.0.3 dev {NAME}
    """)
    reply = host.call("DEL", pod, conf(host))
    log = "".join(reply.log)
    assert reply.exit_code == 0
    for part in ("the host has 10.1.0.5/16 on eth9 already", "10.2.0.5/32 on lo already"):
        assert part in log
    now = network()
    assert "the host has another route 10.8.0.0/16" not in log  # its metric is another
    assert "default via 10.66.0.2 dev eth9 table 101" in now["-4"]
    assert not [r for r in now["-4"] if "default via 10.1.0.1" in r]
    assert [a["local"] for a in now["addresses"] if a["family"] == "inet"] == [
        "10.1.0.5", "10.66.0.1", "10.3.0.1", "10.4.0.9", "10.1.0.6",
    ]  # fmt: skip


def test_addresses_that_other_interfaces_have_too(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """A link-local address is each link's own, and the host may have had another one on two interfaces before."""
    for address in ("fe80::9/64", "10.77.0.1/32"):
        for device in (NAME, "rail0"):
            ip("address", "add", address, "dev", device)
    before = network()
    host.ok("ADD", pod, conf(host))
    assert "10.77.0.1/32" in pod.addresses()
    reply = host.call("DEL", pod, conf(host))
    assert (reply.exit_code, reply.log) == (0, ())
    assert network() == before
    (link,) = ip("address", "show", "dev", NAME)
    assert "fe80::9" in [a["local"] for a in link["addr_info"]]


def test_routes_by_another_interface_meanwhile(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """A route of IPv4 goes behind that of another interface; one of IPv6 would share its packets."""
    host.ok("ADD", pod, conf(host))
    run("""
        address add 10.66.0.1/24 dev rail0
        route add 10.8.0.0/16 via 10.66.0.3 metric 5
        -6 address add fd00:66::1/64 dev rail0 nodad
        -6 route add fd00:8::/32 via fd00:66::3
    """)
    reply = host.call("DEL", pod, conf(host))
    assert "the host has another route fd00:8::/32 in table 254 already" in "".join(reply.log)
    routes = [line.split()[2] for line in shown("-4", "route", "show", "10.8.0.0/16")]
    assert routes == ["10.66.0.3", "10.1.0.1", "10.1.0.2", "10.1.0.3"]
    assert [line.split()[2:5] for line in shown("-6", "route", "show", "fd00:8::/32")] == [
        ["fd00:66::3", "dev", "rail0"]
    ]


def test_beside_ipam(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """As in the reference plugin, ipam adds to what comes from the host."""
    keys = conf(host, ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24", "routes": [{"dst": "10.57.0.0/16"}]})
    result = host.ok("ADD", pod, keys)
    assert pod.addresses() > {"10.56.0.2/24", "10.1.0.5/24", "fd00:1::5/64"}
    assert {i["address"] for i in result["ips"]} == pod.addresses()
    reply = host.checked(pod, keys, result)
    assert reply.exit_code == 0, reply.stdout
    host.ok("DEL", pod, keys)
    assert network() == eth9


def test_two_devices_of_one_rule(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """A rule that selects the addresses of both stays in the pod as long as one of them does."""
    run("""
        link add eth8 type veth peer name far8
        link set far8 up
        link set eth8 up
        address add 10.1.8.5/24 dev eth8
        route add 10.8.8.0/24 dev eth8 table 101
        rule add from 10.1.0.0/16 lookup 101 priority 900
    """)
    before = network(), network("eth8")
    host.ok("ADD", pod, conf(host))
    other = conf(host, name="rail8", device="eth8")
    host.ok("ADD", pod, other, CNI_IFNAME="hpn1")
    host.ok("DEL", pod, conf(host))
    assert own_rules(pod) == ["900:\tfrom 10.1.0.0/16 lookup 101"]
    host.ok("DEL", pod, other, CNI_IFNAME="hpn1")
    assert not own_rules(pod)
    assert (network(), network("eth8")) == before


def no_key(host: Host) -> dict[str, Any]:
    return conf(host, useInterfaceNetwork=...)


def by_a_nexthop_object(host: Host) -> dict[str, Any]:
    run(f"nexthop add id 7 via 10.1.0.9 dev {NAME}\n route add 10.70.0.0/16 nhid 7")
    return conf(host)


def by_another_device_too(host: Host) -> dict[str, Any]:
    ip("address", "add", "10.80.0.1/24", "dev", "rail0")
    run(f"route add 10.81.0.0/16 nexthop via 10.1.0.9 dev {NAME} nexthop via 10.80.0.2")
    return conf(host)


def by_many_routes(host: Host) -> dict[str, Any]:
    lines = "".join(f"route add 10.{90 + n // 250}.{n % 250}.0/24 via 10.1.0.1 dev {NAME}\n" for n in range(600))
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
    return conf(host)


def with_the_hosts_default_route(host: Host) -> dict[str, Any]:
    run(f"route add default via 10.1.0.1 dev {NAME}")
    return conf(host)


def with_multi_rail(host: Host) -> dict[str, Any]:
    return conf(host, multiRail=True, ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24"})


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (no_key, "which a move would lose; remove them first, or set useInterfaceNetwork to take them along"),
        (by_a_nexthop_object, "route to 10.70.0.0/16 in table 254 is by the nexthop object 7, so it cannot move"),
        (by_another_device_too, "route to 10.81.0.0/16 in table 254 is by several interfaces, so it cannot move"),
        (by_many_routes, "routes on the host, above 500"),
        (with_the_hosts_default_route, "the host's default route uses 'eth9'"),
        (with_multi_rail, "useInterfaceNetwork takes the host's rules, and multiRail makes others; remove one"),
    ],
)
def test_refused(host: Host, pod: Pod, eth9: dict[str, Any], case: Callable[[Host], dict[str, Any]], says: str) -> None:
    keys = case(host)
    before = host.picture(pod)
    error = host.refused("ADD", pod, keys)
    assert (error["code"], says in error["msg"]) == (7, True), error
    assert host.picture(pod) == before


@pytest.mark.parametrize(
    ("route", "says"),
    [
        ("route add 10.60.0.0/16 via 10.1.0.1 src 10.255.0.1", "adding route 10.60.0.0/16 in table 254 of eth9"),
        ("-6 route add fd00:60::/32 via fd00:3::1", "adding route fd00:60::/32 in table 254 of eth9"),
    ],
    ids=["a source on another interface", "a gateway by an address with a lifetime"],
)
def test_a_route_that_the_pod_cannot_have(host: Host, pod: Pod, eth9: dict[str, Any], route: str, says: str) -> None:
    """ADD fails, because a pod with some of the routes would send by wrong ways; and the host has all again."""
    run(f"address add 10.255.0.1/32 dev lo\n {route}")
    before = network()
    error = host.refused("ADD", pod, conf(host))
    assert (error["code"], says in error["details"]) == (105, True), error
    assert network() == before
    assert not own_rules(pod)
    assert host.state_files() == set()


@pytest.mark.parametrize("key", [{"device": ..., "hwaddr": MAC}, {"device": "storage9"}], ids=["hwaddr", "altname"])
def test_named_otherwise(host: Host, pod: Pod, eth9: dict[str, Any], key: dict[str, Any]) -> None:
    ip("link", "property", "add", "dev", NAME, "altname", "storage9")
    assert host.ok("STATUS", None, conf(host, **key), CNI_IFNAME="") == {}
    host.ok("ADD", pod, conf(host, **key))
    assert "10.1.0.5/24" in pod.addresses()
    host.ok("DEL", pod, conf(host, **key))
    assert network() == eth9


def test_a_plain_interface(host: Host, pod: Pod) -> None:
    """With the key, an interface without addresses attaches as without it."""
    run(f"link add {NAME} type veth peer name far9")
    result = host.ok("ADD", pod, conf(host))
    assert "ips" not in result
    assert host.checked(pod, conf(host), result).exit_code == 0
    host.ok("DEL", pod, conf(host))
    assert is_here()
