"""policyRouting: packets from an interface's addresses leave by that interface, with ``ip`` and pings as witnesses."""

from collections.abc import Callable
from typing import Any

import pytest
from support.namespaces import with_both
from support.topology import Host, Pod, ip

FAR = "192.0.2.1"  # only a default route leads there
FAR6 = "2001:db8::1"
V4, V6 = {"subnet": "10.56.0.0/24"}, {"subnet": "fd00:56::/64"}


def rules(pod: Pod) -> set[tuple[str, str]]:
    """The (source, table) of each rule except the kernel's own."""
    shown = [*pod.ip("-4", "rule", "show"), *pod.ip("-6", "rule", "show")]
    return {(r["src"], r["table"]) for r in shown if r["src"] != "all"}


def table(pod: Pod, number: int | str = "main") -> set[tuple[str, str, str]]:
    """The (destination, gateway, interface) of a table's routes without link-local ones."""
    shown = [r for f in ("-4", "-6") for r in pod.ip(f, "route", "show", "table", "all")]
    own = [r for r in shown if str(r.get("table", "main")) == str(number) and r.get("type", "unicast") == "unicast"]
    return {(r["dst"], r.get("gateway", ""), r["dev"]) for r in own if not r["dst"].startswith(("fe80", "ff00"))}


def routed(host: Host, *sets: dict[str, Any], routing: Any = True, routes: Any = (), **keys: Any) -> dict[str, Any]:
    ipam = {"type": "hpn-ipam", "ranges": [[s] for s in sets or (V4, V6)], "routes": list(routes)}
    return host.conf(policyRouting=routing, ipam=ipam, **keys)


@with_both
def test_two_rails_to_the_same_place(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """Each rail has a gateway with the same far address, and each gateway can answer only through its own rail."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    ip("link", "set", "rail1", "up")
    gateways = [make_pod(), make_pod()]
    for n, (gateway, wire) in enumerate(zip(gateways, ("fabric", "fabric1"), strict=True)):
        ip("link", "set", wire, "netns", gateway.name)
        gateway.ip("link", "set", wire, "up")
        gateway.ip("addr", "add", f"10.{n}.0.1/24", "dev", wire)
        gateway.ip("addr", "add", f"fd00:{n}::1/64", "dev", wire, "nodad")
        gateway.ip("addr", "add", FAR, "dev", "lo")
        gateway.ip("addr", "add", FAR6, "dev", "lo", "nodad")
    subnets = [({"subnet": f"10.{n}.0.0/24"}, {"subnet": f"fd00:{n}::/64"}) for n in (0, 1)]
    confs = [routed(host, *subnets[n], name=f"rail{n}", master=f"rail{n}", dad="off") for n in (0, 1)]
    results = [host.ok("ADD", pod, conf, CNI_IFNAME=f"hpn{n}") for n, conf in enumerate(confs)]
    assert rules(pod) == {("10.0.0.2", "100"), ("fd00::2", "100"), ("10.1.0.2", "101"), ("fd00:1::2", "101")}
    assert table(pod, 100) == {
        ("10.0.0.0/24", "", "hpn0"), ("default", "10.0.0.1", "hpn0"),
        ("fd00::/64", "", "hpn0"), ("default", "fd00::1", "hpn0"),
    }  # fmt: skip
    # The connected routes stay for sockets without a bound address, and no rail takes over the default route.
    assert table(pod) == {
        ("10.0.0.0/24", "", "hpn0"), ("fd00::/64", "", "hpn0"),
        ("10.1.0.0/24", "", "hpn1"), ("fd00:1::/64", "", "hpn1"),
    }  # fmt: skip
    # time: nothing is to come
    assert not pod.ping(FAR, "-W", "1")
    assert pod.ping("10.1.0.1")
    for address in ("10.0.0.2", "10.1.0.2"):
        assert pod.ping(FAR, "-I", address)
    for address in ("fd00::2", "fd00:1::2"):
        assert pod.ping(FAR6, "-I", address)
    # The default route does not apply to a neighbor's link-local address.
    [way] = pod.ip("-6", "route", "get", "fe80::9", "from", "fd00:1::2", "oif", "hpn1")
    assert (way["dev"], way.get("gateway")) == ("hpn1", None)
    gateways[0].ip("addr", "del", FAR, "dev", "lo")
    # time: nothing is to come
    assert not pod.ping(FAR, "-I", "10.0.0.2", "-W", "1")
    assert pod.ping(FAR, "-I", "10.1.0.2")
    for n, conf in enumerate(confs):
        assert host.checked(pod, conf, results[n], CNI_IFNAME=f"hpn{n}").exit_code == 0
    host.ok("DEL", pod, confs[0], CNI_IFNAME="hpn0")
    assert rules(pod) == {("10.1.0.2", "101"), ("fd00:1::2", "101")}
    assert pod.ping(FAR, "-I", "10.1.0.2")
    host.ok("DEL", pod, confs[1], CNI_IFNAME="hpn1")
    assert (rules(pod), table(pod), table(pod, 101)) == (set(), set(), set())


@with_both
def test_kinds(host: Host, pod: Pod, kind: str) -> None:
    conf = routed(host, kind=kind)
    host.ok("ADD", pod, conf)
    assert rules(pod) == {("10.56.0.2", "100"), ("fd00:56::2", "100")}
    host.ok("DEL", pod, conf)
    assert rules(pod) == set()


def test_routes_go_to_the_table(host: Host, pod: Pod) -> None:
    """Routes go to the attachment's table with all their attributes, except one with its own table."""
    given = [
        {"dst": "10.60.0.0/16", "mtu": 1400},
        {"dst": "10.61.0.0/16", "scope": 253},
        {"dst": "10.62.0.0/16", "table": 200},
        {"dst": "fd00:60::/48", "gw": "fe80::1"},
    ]
    conf = routed(host, routes=given)
    result = host.ok("ADD", pod, conf)
    assert result["routes"] == given
    assert table(pod, 100) == {
        ("10.56.0.0/24", "", "hpn0"), ("default", "10.56.0.1", "hpn0"), ("10.60.0.0/16", "10.56.0.1", "hpn0"),
        ("10.61.0.0/16", "", "hpn0"), ("fd00:56::/64", "", "hpn0"), ("default", "fd00:56::1", "hpn0"),
        ("fd00:60::/48", "fe80::1", "hpn0"),
    }  # fmt: skip
    assert table(pod, 200) == {("10.62.0.0/16", "10.56.0.1", "hpn0")}
    assert table(pod) == {("10.56.0.0/24", "", "hpn0"), ("fd00:56::/64", "", "hpn0")}
    [shown] = pod.ip("-d", "route", "show", "10.60.0.0/16", "table", "100")
    assert shown["metrics"] == [{"mtu": 1400}]
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)


@with_both
def test_a_default_route_of_its_own(host: Host, pod: Pod) -> None:
    conf = routed(host, V4, routes=[{"dst": "0.0.0.0/0", "gw": "10.56.0.9"}])
    host.ok("ADD", pod, conf)
    assert table(pod, 100) == {("10.56.0.0/24", "", "hpn0"), ("default", "10.56.0.9", "hpn0")}
    host.ok("DEL", pod, conf)


def test_no_gateway(host: Host, pod: Pod) -> None:
    """Without a gateway the table covers the rail only; all other packets use the main table."""
    conf = routed(host, V4 | {"gateway": None})
    host.ok("ADD", pod, conf)
    assert table(pod, 100) == {("10.56.0.0/24", "", "hpn0")}
    host.ok("DEL", pod, conf)


def test_single_addresses(host: Host, pod: Pod) -> None:
    """A /32 belongs to no network, so an on-link route leads to its gateway."""
    path = host.giving(
        ips=[{"address": "10.56.0.7/32", "gateway": "169.254.1.1"}],
        routes=[{"dst": "169.254.1.1/32", "scope": 253}],
    )
    conf = host.conf(policyRouting=True, ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    assert table(pod, 100) == {("169.254.1.1", "", "hpn0"), ("default", "169.254.1.1", "hpn0")}
    host.ok("DEL", pod, conf, CNI_PATH=path)


@pytest.mark.parametrize(("routing", "first"), [(True, 100), ({"table": 5000}, 5000)])
def test_a_table_for_each_gateway(host: Host, pod: Pod, routing: Any, first: int) -> None:
    other = {"subnet": "10.57.0.0/24"}
    same = {"subnet": "10.56.1.0/24", "gateway": None}
    conf = routed(host, V4, other, V6, same, routing=routing, routes=[{"dst": "10.60.0.0/16", "gw": "10.57.0.9"}])
    result = host.ok("ADD", pod, conf)
    assert rules(pod) == {
        ("10.56.0.2", str(first)), ("fd00:56::2", str(first)),
        ("10.57.0.2", str(first + 1)), ("10.56.1.1", str(first + 2)),
    }  # fmt: skip
    assert ("default", "10.56.0.1", "hpn0") in table(pod, first)
    assert table(pod, first + 1) == {
        ("10.57.0.0/24", "", "hpn0"), ("default", "10.57.0.1", "hpn0"), ("10.60.0.0/16", "10.57.0.9", "hpn0")
    }  # fmt: skip
    assert table(pod, first + 2) == {("10.56.1.0/24", "", "hpn0")}
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert rules(pod) == set()


def test_a_free_table(host: Host, pod: Pod) -> None:
    """ADD chooses a table without rules and routes, which no route of the configuration names."""
    pod.ip("rule", "add", "from", "192.0.2.7", "lookup", "100")
    pod.ip("-6", "rule", "add", "from", "2001:db8::7", "lookup", "101")
    pod.ip("route", "add", "192.0.2.0/24", "dev", "lo", "table", "102")
    pod.ip("-6", "route", "add", "2001:db8::/64", "dev", "lo", "table", "103")
    conf = routed(host, V4, routes=[{"dst": "10.60.0.0/16", "table": 104}])
    host.ok("ADD", pod, conf)
    assert ("10.56.0.2", "105") in rules(pod)
    host.ok("DEL", pod, conf)
    assert rules(pod) == {("192.0.2.7", "100"), ("2001:db8::7", "101")}


@pytest.mark.parametrize("how", [("rule", "add", "from", "192.0.2.7", "lookup", "77"),
                                 ("route", "add", "192.0.2.0/24", "dev", "lo", "table", "77")])  # fmt: skip
def test_a_table_that_is_taken(host: Host, pod: Pod, how: tuple[str, ...]) -> None:
    pod.ip(*how)
    before = host.picture(pod), rules(pod)
    error = host.refused("ADD", pod, routed(host, routing={"table": 77}))
    assert error["code"] == 7
    assert error["msg"].startswith("policyRouting.table 77: ")
    assert (host.picture(pod), rules(pod)) == before


def test_a_failed_add_leaves_no_rule(host: Host, pod: Pod) -> None:
    """A failed ADD removes its rules; here the kernel refuses the gateway after them."""
    conf = routed(host, V4, routes=[{"dst": "10.60.0.0/16", "gw": "203.0.113.1"}])
    assert host.refused("ADD", pod, conf)["code"] == 105
    assert (rules(pod), pod.links(), host.state_files()) == (set(), set(), set())


def test_del_when_the_link_is_gone(host: Host, pod: Pod) -> None:
    """DEL without the link keeps a person's rule for the same address and table."""
    conf = routed(host)
    host.ok("ADD", pod, conf)
    pod.ip("link", "delete", "hpn0")
    pod.ip("rule", "add", "from", "10.56.0.2", "lookup", "100", "protocol", "boot", "priority", "9")
    host.ok("DEL", pod, conf)
    [left] = [r for r in pod.ip("-4", "rule", "show") if r["src"] != "all"]
    assert (left["src"], left["priority"]) == ("10.56.0.2", 9)
    assert [r for r in pod.ip("-6", "rule", "show") if r["src"] != "all"] == []
    host.ok("DEL", pod, conf)


@with_both
def test_del_when_the_rules_are_gone(host: Host, pod: Pod) -> None:
    conf = routed(host)
    host.ok("ADD", pod, conf)
    pod.ip("rule", "delete", "from", "10.56.0.2")
    host.ok("DEL", pod, conf)
    assert (rules(pod), host.state_files()) == (set(), set())


@with_both
def test_gc(host: Host, pod: Pod) -> None:
    conf = routed(host)
    host.ok("ADD", pod, conf)
    host.ok("GC", None, conf | {"cni.dev/valid-attachments": []})
    assert (rules(pod), pod.links()) == (set(), set())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("-4", "rule", "delete", "from", "10.56.0.2"), "rule: from 10.56.0.2 lookup 100"),
        (("-6", "rule", "delete", "from", "fd00:56::2"), "rule: from fd00:56::2 lookup 100"),
        (("-4", "route", "delete", "default", "table", "100"), "route 0.0.0.0/0 in table 100"),
        (("-6", "route", "delete", "fd00:56::/64", "table", "100"), "route fd00:56::/64 in table 100"),
    ],
)
def test_check_misses(host: Host, pod: Pod, command: tuple[str, ...], said: str) -> None:
    conf = routed(host)
    result = host.ok("ADD", pod, conf)
    pod.ip(*command)
    error = host.refused("CHECK", pod, conf | {"prevResult": result})
    assert error["code"] == 107
    assert said in error["msg"]
    host.ok("DEL", pod, conf)


def test_two_default_routes(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """ADD notes that its default route comes before the pod's; rules keep both."""
    pod.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    pod.ip("link", "set", "eth0", "up")
    pod.ip("address", "add", "10.244.1.2/24", "dev", "eth0")
    pod.ip("route", "add", "default", "via", "10.244.1.1")
    default, note = [{"dst": "0.0.0.0/0"}], "the pod's default route by eth0 comes after that of hpn0 now"
    for routing, noted in ((True, False), (False, True)):
        conf = routed(host, V4, routes=default, routing=routing)
        reply = host.call("ADD", pod, conf)
        assert (reply.exit_code, note in "\n".join(reply.log)) == (0, noted), reply
        host.ok("DEL", pod, conf)
    assert "default route" not in "\n".join(host.call("ADD", make_pod(), conf).log)
