"""CHECK notices changes that cut a pod off while its interface, addresses and routes exist."""

from typing import Any

import pytest
from netns.tampering import caught, in_pod, passes
from support.topology import Host, Pod

from base.kernel import dump


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        (("route del local 10.56.0.2 dev hpn0 table local",), "10.56.0.2/32 is lost from the table local"),
        (("-6 route del local fd00:56::2 dev hpn0 table local",), "fd00:56::2/128 is lost from the table local"),
        (("rule del lookup local",), "no rule leads to the table local"),
        (("-6 rule del lookup local",), "ip -6 rule add lookup local"),
        (("rule del lookup main",), "route 10.56.0.0/24 is in table 254, where no rule leads"),
        (("-6 rule del lookup main",), "route fd00:56::/64 is in table 254, where no rule leads"),
        (("link set hpn0 protodown on",), "hpn0 is held down; run in the pod: ip link set hpn0 protodown off"),
    ],
)
def test_caught(host: Host, pod: Pod, commands: tuple[str, ...], says: str) -> None:
    caught(host, pod, host.conf(), in_pod(*commands), says)


@pytest.mark.parametrize(
    "moved",
    [
        ("rule del from 10.56.0.2", "rule add from 10.56.0.2 lookup 300 pref 40000"),
        ("-6 rule del from fd00:56::2", "-6 rule add from fd00:56::2 lookup 300 pref 40000"),
        ("rule add from 10.56.0.0/24 lookup main pref 10",),
    ],
)
def test_a_rule_behind_the_main_tables(host: Host, pod: Pod, moved: tuple[str, ...]) -> None:
    conf = host.conf(policyRouting={"table": 300})
    caught(host, pod, conf, in_pod(*moved), "a rule behind one that leads to the main table: from ")


@pytest.mark.parametrize(
    "commands",
    [
        # wg-quick's rule, which skips the main table's default route.
        ("rule add lookup main suppress_prefixlength 0 pref 10",),
        # The order for a VRF: the local table after all rules of VRFs.
        ("rule add lookup local pref 32000", "rule del lookup local pref 0"),
        ("rule add from 192.0.2.0/24 lookup main pref 10",),
    ],
)
def test_what_others_may_do(host: Host, pod: Pod, commands: tuple[str, ...]) -> None:
    passes(host, pod, host.conf(policyRouting=True), in_pod(*commands))


def test_the_kernel_makes_an_address_local_later(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel makes an address local in its own time, so CHECK reads the routes again on a busy machine."""
    conf, ask, seen = host.conf(), dump.routes, list[Any]()
    result = host.ok("ADD", pod, conf)
    route = ("local", "fd00:56::2", "dev", "hpn0", "table", "local")
    pod.ip("-6", "route", "del", *route)

    def once_more(ns_fd: int) -> list[Any]:
        seen.append(ask(ns_fd))
        if len(seen) == 1:
            pod.ip("-6", "route", "add", *route, "proto", "kernel")
        return seen[-1]

    monkeypatch.setattr(dump, "routes", once_more)
    reply = host.checked(pod, conf, result)
    assert (reply.exit_code, reply.stdout, len(seen)) == (0, "", 2)
