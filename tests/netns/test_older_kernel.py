"""hpn refuses what an older kernel cannot do, with the kernel's version and a remedy.

The tests replace a number with one that no kernel knows: the running kernel then answers as an older one would.
"""

import os

import pytest
from support.topology import Host, Pod

from base.kernel import netlink, netns
from cni.kinds import macvlan


def test_below_the_minimum(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD creates nothing that DEL could not remove."""
    monkeypatch.setattr(netlink, "NETLINK_GET_STRICT_CHK", 0x7FFF)
    error = host.refused("ADD", pod)
    assert error["code"] == 105
    assert f"Linux {os.uname().release}" in error["msg"]
    assert "use a kernel from 5.10 on" in error["msg"]
    assert host.refused("STATUS", None)["code"] == 50
    assert (pod.links(), host.state_files(), host.leases()) == (set(), set(), set())


def test_the_dead_without_cookies(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """GC without cookies undoes the attachments of dead pods once their namespace's number is not in use."""
    monkeypatch.setattr(netns, "SO_NETNS_COOKIE", 0x7FFF)
    host.replace(pod)
    host.ok("GC", None)
    assert host.record(pod).exists()
    pod.gone()
    host.ok("GC", None)
    assert (host.state_files(), host.leases()) == (set(), set())


def test_a_queue_length_that_the_kernel_passes_over(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macvlan, "IFLA_MACVLAN_BC_QUEUE_LEN", 0x3F)
    error = host.refused("ADD", pod, host.conf(bcqueuelen=2345))
    assert (error["code"], error["msg"].partition(";")[2]) == (
        105, " use a kernel from 5.11 on, or remove bcqueuelen"
    )  # fmt: skip
    assert error["msg"].startswith(f"bcqueuelen 2345: Linux {os.uname().release} ")
    assert (pod.links(), host.state_files(), host.leases()) == (set(), set(), set())
