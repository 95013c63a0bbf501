"""BPF programs that a pod attached to a device do not come home with it."""

import os
import subprocess
from typing import Any

import pytest
from guest.programs import attach, attached
from netns.test_host_device import NAME, conf, state
from support.topology import Host, Pod, ip

WAYS = ["xdpgeneric by netlink", "xdpdrv by netlink", "xdpgeneric by link", "tcx by attachment", "tcx by link"]


@pytest.fixture
def eth9(host: Host) -> dict[str, Any]:
    ip("link", "add", NAME, "mtu", "1400", "type", "veth", "peer", "name", "far9")
    ip("link", "set", NAME, "up")
    return state()


@pytest.mark.parametrize("way", WAYS)
def test_they_stay_behind(host: Host, pod: Pod, eth9: dict[str, Any], way: str) -> None:
    """The programs are detached although something else still holds them."""
    host.ok("ADD", pod, conf(host))
    holder = attach(pod.path, (pod.link() or {})["ifindex"], way)
    try:
        host.ok("DEL", pod, conf(host))
        assert (attached(NAME), state()) == ([], eth9)
    finally:
        os.close(holder)


@pytest.mark.parametrize("way", WAYS)
def test_the_hosts_own_come_back(host: Host, pod: Pod, eth9: dict[str, Any], way: str) -> None:
    holder = attach("/proc/self/ns/net", eth9["ifindex"], way)
    try:
        before = state(), attached(NAME)
        assert before[1]
        host.ok("ADD", pod, conf(host))
        host.ok("DEL", pod, conf(host))
        assert (state(), attached(NAME)) == before
    finally:
        os.close(holder)


def test_neither_do_filters(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """The filters do not come home either: the kernel removes them with their queueing disciplines."""
    host.ok("ADD", pod, conf(host))
    pod.run("tc", "qdisc", "add", "dev", "hpn0", "clsact")
    pod.run("tc", "filter", "add", "dev", "hpn0", "ingress", "matchall", "action", "drop")
    assert b"clsact" in subprocess.check_output(["tc", "-n", pod.name, "qdisc", "show", "dev", "hpn0"])
    host.ok("DEL", pod, conf(host))
    assert b"clsact" not in subprocess.check_output(["tc", "qdisc", "show", "dev", NAME])
