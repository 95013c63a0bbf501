"""A machine without IPv6, without the time of day, or without /sys for the plugin."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest.node import PF, Node, macvlan
from netns.test_hidden import call
from support.node_process import PROGRAM
from support.topology import Pod

ONE = {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "rangeStart": "10.56.0.2", "rangeEnd": "10.56.0.2"}
# FIRST is after the machine's start: the kernel sets no clock to before that (kernel/time/timekeeping.c).
TODAY, FIRST = 1_800_000_000.0, 86_400.0


def test_the_machine_is_poor() -> None:
    """Otherwise the tests below would prove nothing."""
    assert not Path("/proc/sys/net/ipv6").exists()
    assert time.gmtime().tm_year == 1970


@pytest.mark.parametrize("keys", [{}, {"deviceID": ..., "master": PF}], ids=["VF", "macvlan"])
def test_without_ipv6(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    """ADD refuses an IPv6 range with a remedy; everything else works."""
    before = node.picture(pod)
    error = node.refused("ADD", pod, node.conf(**keys))
    assert (error["code"], "boot it without ipv6.disable=1, or remove that range" in error["msg"]) == (7, True), error
    assert node.picture(pod) == before
    said = node.refused("STATUS", pod, node.conf(**keys))
    assert (said["code"], "this kernel has no IPv6" in said["msg"]) == (50, True), said
    conf = node.conf(**keys, ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24"}, policyRouting=True)
    node.ok("STATUS", pod, conf)
    result = node.ok("ADD", pod, conf)
    assert pod.addresses() == {ip["address"] for ip in result["ips"]}
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert pod.links() == set()


def test_a_clock_that_begins_in_1970(node: Node, make_pod: Callable[[], Pod]) -> None:
    """ADD never allocates an address twice, however the clock is set, and no address cools down for 50 years."""
    one, two, three = (make_pod() for _ in range(3))
    conf = macvlan(node, ipam=ONE | {"releaseCooldown": 3600})
    said = subprocess.run([*PROGRAM, "doctor"], capture_output=True, text=True, check=False).stdout
    assert "clock-wrong" in said
    try:
        node.ok("ADD", one, conf)
        node.ok("DEL", one, conf)
        assert node.refused("ADD", two, conf)["code"] == 103
        at(TODAY)
        result = node.ok("ADD", two, conf)
        for now in (FIRST, TODAY):
            at(now)
            assert node.refused("ADD", three, conf)["code"] == 103
            assert node.checked(two, conf, result).exit_code == 0
        node.ok("DEL", two, conf)
        assert node.refused("ADD", three, conf)["code"] == 103
        at(FIRST)
        node.ok("ADD", three, conf)
        node.ok("DEL", three, conf)
    finally:
        at(FIRST)


def at(seconds: float) -> None:
    """Set the clock, as an NTP client does."""
    time.clock_settime(time.CLOCK_REALTIME, seconds)


def test_a_sys_that_is_hidden(node: Node, pod: Pod) -> None:
    """DEL fails and keeps the record, so the VF stays known."""
    node.ok("ADD", pod, node.conf(ipam=ONE))
    answer = call("no /sys", node, "DEL", pod)
    assert (answer["code"], "/sys shows no devices" in answer["msg"]) == (105, True)
    assert (pod.links(), node.is_home(), node.record(pod).exists()) == ({"hpn0"}, False, True)
    node.ok("DEL", pod)
    assert (pod.links(), node.is_home()) == (set(), True)
