"""CHECK of routes and rules: every attribute from ADD, anything before them, and permitted changes."""

from typing import Any

import pytest
from netns.tampering import caught, in_pod, passes, routed
from support.topology import Host, Pod, ip

V4 = {"dst": "10.60.0.0/16", "gw": "10.56.0.9"}
V6 = {"dst": "fd00:60::/48", "gw": "fd00:56::9"}
REPLACE4 = "route replace 10.60.0.0/16 via 10.56.0.9 dev hpn0"
REPLACE6 = "-6 route replace fd00:60::/48 via fd00:56::9 dev hpn0"


@pytest.mark.parametrize(
    ("route", "command", "says"),
    [
        ({}, "route replace 10.60.0.0/16 via 10.56.0.99 dev hpn0", "gw is 10.56.0.99, expected 10.56.0.9"),
        ({}, "route replace 10.60.0.0/16 dev hpn0", "gw is none, expected 10.56.0.9"),
        ({"mtu": 1400}, f"{REPLACE4} mtu 1300", "mtu is 1300, expected 1400"),
        ({"mtu": 1400}, REPLACE4, "mtu is none, expected 1400"),
        ({}, f"{REPLACE4} mtu 600", "mtu is 600, expected none"),
        ({"advmss": 1300}, f"{REPLACE4} advmss 500", "advmss is 500, expected 1300"),
        ({"priority": 50}, "route change 10.60.0.0/16 via 10.56.0.98 dev hpn0 metric 50", "gw is 10.56.0.98"),
        ({}, "route del 10.60.0.0/16", "route 10.60.0.0/16 is lost"),
    ],
)
def test_ipv4_attributes(host: Host, pod: Pod, route: dict[str, Any], command: str, says: str) -> None:
    caught(host, pod, routed(host, V4 | route), in_pod(command), "hpn0", "10.60.0.0/16", says)


@pytest.mark.parametrize(
    ("route", "command", "says"),
    [
        ({}, "-6 route replace fd00:60::/48 via fd00:56::99 dev hpn0", "gw is fd00:56::99, expected fd00:56::9"),
        ({"mtu": 1400}, f"{REPLACE6} mtu 1300", "mtu is 1300, expected 1400"),
        ({"advmss": 1300}, f"{REPLACE6} advmss 500", "advmss is 500, expected 1300"),
        ({}, "-6 route del fd00:60::/48", "route fd00:60::/48 is lost"),
    ],
)
def test_ipv6_attributes(host: Host, pod: Pod, route: dict[str, Any], command: str, says: str) -> None:
    caught(host, pod, routed(host, V6 | route), in_pod(command), "hpn0", "fd00:60::/48", says)


@pytest.mark.parametrize(
    ("route", "commands", "says"),
    [
        (V4 | {"priority": 50}, (f"{REPLACE4} metric 60", "route del 10.60.0.0/16 metric 50"), "is 60, expected 50"),
        (V4, (f"{REPLACE4} metric 60", "route del 10.60.0.0/16 metric 0"), "priority is 60, expected 0"),
        (V6, (f"{REPLACE6} metric 60", "-6 route del fd00:60::/48 metric 1024"), "is 60, expected 1024"),
    ],
)
def test_metric(host: Host, pod: Pod, route: dict[str, Any], commands: tuple[str, ...], says: str) -> None:
    caught(host, pod, routed(host, route), in_pod(*commands), says)


def test_scope(host: Host, pod: Pod) -> None:
    route = {"dst": "10.60.0.0/16", "scope": 253}
    caught(
        host, pod, routed(host, route),
        in_pod("route del 10.60.0.0/16", "route add 10.60.0.0/16 dev hpn0 scope host"), "scope is 254, expected 253",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("route", "table", "says"),
    [
        (V4, "77", "table is 77, where no rule leads"),
        (V4 | {"table": 200}, "main", "route 10.60.0.0/16 in table 200 is lost"),
    ],
)
def test_table(host: Host, pod: Pod, route: dict[str, Any], table: str, says: str) -> None:
    place = str(route.get("table", "main"))
    move = in_pod(
        f"route del 10.60.0.0/16 table {place}", f"route add 10.60.0.0/16 via 10.56.0.9 dev hpn0 table {table}"
    )
    caught(host, pod, routed(host, route), move, says)


def test_another_interface(host: Host, pod: Pod) -> None:
    pod.stranger("other0")
    commands = "link set other0 up", "route replace 10.60.0.0/16 dev other0"
    caught(host, pod, routed(host, {"dst": "10.60.0.0/16"}), in_pod(*commands), "route 10.60.0.0/16 is lost")


@pytest.mark.parametrize(
    ("route", "command"),
    [
        (V4 | {"priority": 50}, "route add unreachable 10.60.0.0/16 metric 10"),
        (V4, "route prepend blackhole 10.60.0.0/16"),
        (V4, "route add prohibit 10.60.0.0/16 table local"),
        (V6, "-6 route add unreachable fd00:60::/48 metric 10"),
        (V4, "route prepend throw 10.56.0.0/24"),
        (V6, "-6 route add blackhole fd00:56::/64 metric 10"),
    ],
    ids=["lower metric", "same metric", "table local", "IPv6", "connected", "connected IPv6"],
)
def test_a_route_that_rejects_in_front(host: Host, pod: Pod, route: dict[str, Any], command: str) -> None:
    kind = command.partition(" 10.")[0].partition(" fd")[0].rpartition(" ")[2]
    caught(host, pod, routed(host, route), in_pod(command), f"{kind} ", "before the interface's route")


@pytest.mark.parametrize("kind", ["unreachable", "blackhole"])
def test_the_route_itself_rejects(host: Host, pod: Pod, kind: str) -> None:
    change = in_pod("route del 10.60.0.0/16", f"route add {kind} 10.60.0.0/16")
    caught(host, pod, routed(host, V4), change, "route 10.60.0.0/16 is lost")


@pytest.mark.parametrize("routing", [False, True], ids=["main table", "policyRouting"])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("rule add from 10.56.0.2 blackhole", "from 10.56.0.2/32 blackhole"),
        ("rule add from 10.56.0.2/24 unreachable", "from 10.56.0.0/24 unreachable"),
        ("rule add prohibit pref 5", "from all prohibit"),
        ("rule add to 10.60.1.0/24 blackhole", "from all to 10.60.1.0/24 blackhole"),
        ("-6 rule add from fd00:56::2 blackhole", "from fd00:56::2/128 blackhole"),
    ],
)
def test_a_rule_that_rejects_in_front(host: Host, pod: Pod, routing: bool, command: str, says: str) -> None:
    conf = routed(host, V4, V6, policyRouting=routing)
    caught(host, pod, conf, in_pod(command), "before those that lead to hpn0's routes", says)


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        (("rule del from 10.56.0.2", "rule add from 10.56.0.2 iif lo lookup 100"), "rule: from 10.56.0.2 lookup 100"),
        (("rule del from 10.56.0.2", "rule add from 10.56.0.2 lookup 101"), "rule: from 10.56.0.2 lookup 100"),
        (("route replace 10.60.0.0/16 via 10.56.0.99 dev hpn0 table 100",), "gw is 10.56.0.99, expected 10.56.0.9"),
        (("route replace default via 10.56.0.99 dev hpn0 table 100",), "gw is 10.56.0.99, expected 10.56.0.1"),
        (("route prepend unreachable default table 100",), "unreachable 0.0.0.0/0 (table 100, metric 0)"),
    ],
)
def test_policy_routing(host: Host, pod: Pod, commands: tuple[str, ...], says: str) -> None:
    caught(host, pod, routed(host, V4, policyRouting=True), in_pod(*commands), says)


@pytest.mark.parametrize(
    "commands",
    [
        ("route add 192.0.2.0/24 dev hpn0",),
        # Later routes to the same destination; the attachment's route still comes first.
        ("route add 10.60.0.0/16 via 10.56.0.99 dev hpn0 metric 77", "route add blackhole 10.60.0.0/16 metric 78"),
        ("-6 route add unreachable fd00:60::/48 metric 2000",),
        # More specific routes, and rules for other sources.
        ("route add blackhole 10.60.7.0/24", "rule add from 10.56.0.3 blackhole", "rule add fwmark 3 blackhole"),
        ("rule add from 10.56.0.2 to 203.0.113.0/24 blackhole", "rule add not from 10.56.0.0/24 blackhole"),
        # sbr moves the routes from main to another table, including the connected network.
        ("rule add from 10.56.0.2 lookup 100", "-6 rule add from fd00:56::2 lookup 100",
         "route add 10.56.0.0/24 dev hpn0 table 100", "route add 10.60.0.0/16 via 10.56.0.9 dev hpn0 table 100",
         "route del 10.60.0.0/16 table main", "route del 10.56.0.0/24 table main"),
        # A rule after the effective ones.
        ("rule add blackhole pref 32800",),
    ],
)  # fmt: skip
def test_what_others_may_do(host: Host, pod: Pod, commands: tuple[str, ...]) -> None:
    passes(host, pod, routed(host, V4, V6), in_pod(*commands))


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize(
    "route",
    [
        {"dst": "10.60.0.0/16"},
        {"dst": "0.0.0.0/0"},
        {"dst": "::/0", "mtu": 1400},
        V4 | {"mtu": 70000, "advmss": 70000, "priority": 0, "table": 0},
        V6 | {"mtu": 1400, "advmss": 1300, "priority": 0, "table": 1000, "scope": 253},
        {"dst": "10.60.0.0/16", "scope": 253, "priority": 4294967295},
        {"dst": "fd00:60::/48", "scope": 253},
        V4 | {"mtu": 0, "advmss": 0, "scope": 0},
    ],
)
def test_as_the_kernel_keeps_them(host: Host, pod: Pod, version: str, route: dict[str, Any]) -> None:
    """CHECK ignores the kernel's own defaults and bounds, in every result version."""
    conf = routed(host, route, cniVersion=version)
    passes(host, pod, conf, in_pod())


@pytest.mark.parametrize("policy", [False, True], ids=["main table", "policyRouting"])
def test_two_default_routes_that_the_kernel_shows_as_one(host: Host, pod: Pod, policy: bool) -> None:
    """CHECK passes although the kernel merges the IPv6 default routes of two rails into one route with the first one's
    metrics."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    ip("link", "set", "rail1", "up")
    ip("link", "set", "fabric1", "up")
    confs = [routed(host, {"dst": "::/0", "mtu": 1300 + n}, policyRouting=policy, name=f"rail{n}", master=f"rail{n}",
                    ipam={"type": "hpn-ipam", "ranges": [[{"subnet": f"fd00:{n}::/64"}]]}) for n in (0, 1)]  # fmt: skip
    results = [host.ok("ADD", pod, conf, CNI_IFNAME=f"hpn{n}") for n, conf in enumerate(confs)]
    for n, conf in enumerate(confs):
        assert host.checked(pod, conf, results[n], CNI_IFNAME=f"hpn{n}").exit_code == 0
    if not policy:
        pod.ip("-6", "route", "replace", "default", "via", "fd00:1::9", "dev", "hpn1")
        error = host.refused("CHECK", pod, confs[0] | {"prevResult": results[0]}, CNI_IFNAME="hpn0")
        assert "route ::/0 is lost" in error["msg"]


@pytest.mark.parametrize(
    ("said", "commands"),
    [
        ([{"dst": "10.60.0.0/16", "gw": "10.56.0.99"}], ("route replace 10.60.0.0/16 via 10.56.0.99 dev hpn0",)),
        ([V4 | {"mtu": 1300}], (f"{REPLACE4} mtu 1300",)),
        ([], ("route del 10.60.0.0/16",)),
        ([{"dst": "10.61.0.0/16"}], ("route del 10.60.0.0/16",)),
    ],
)
def test_prevresult_says_what_another_plugin_made(
    host: Host, pod: Pod, said: list[dict[str, Any]], commands: tuple[str, ...]
) -> None:
    """CHECK expects the routes in prevResult, as written by route-override, instead of ADD's own."""
    conf = routed(host, V4)
    result = host.ok("ADD", pod, conf)
    assert host.checked(pod, conf, result).exit_code == 0
    changed = result | {"routes": said}
    if said and said[0]["dst"] == "10.60.0.0/16":
        error = host.refused("CHECK", pod, conf | {"prevResult": changed})
        assert "route 10.60.0.0/16 differs" in error["msg"]
    in_pod(*commands)(host, pod, result)
    assert host.checked(pod, conf, changed).exit_code == 0
