"""The kinds over a PF and a wire; tests/netns tests them over a veth."""

import subprocess
from collections.abc import Callable

import pytest
from guest.machine import Guest
from support.topology import Pod, ip, until


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_pods_of_two_pfs_reach_each_other(guest: Guest, make_pod: Callable[[], Pod], kind: str) -> None:
    one, two = make_pod(), make_pod()
    before = {link["ifname"] for link in ip("link")}
    for pod, master in ((one, "rail0"), (two, "rail1")):
        conf = guest.conf(kind=kind, master=master)
        result = guest.ok("ADD", pod, conf)
        link = pod.link()
        assert link
        assert link["linkinfo"]["info_kind"] == kind
        assert guest.checked(pod, conf, result).exit_code == 0
    assert until(lambda: one.ping("10.56.0.3", "-W", "1"))
    assert until(lambda: one.ping("fd00:56::3", "-W", "1"))
    for pod, master in ((one, "rail0"), (two, "rail1")):
        guest.ok("DEL", pod, guest.conf(kind=kind, master=master))
        assert pod.links() == set()
    assert {link["ifname"] for link in ip("link")} == before
    assert guest.state_files() == set()


def test_a_name_that_the_host_has(guest: Guest, pod: Pod) -> None:
    """On this kernel the link starts under another name; the host's link of the wanted name stays unchanged."""
    before = ip("-d", "link", "show", "rail1")
    conf = guest.conf(kind="ipvlan")
    result = guest.ok("ADD", pod, conf, CNI_IFNAME="rail1")
    assert pod.links() == {"rail1"}
    assert guest.checked(pod, conf, result, CNI_IFNAME="rail1").exit_code == 0
    guest.ok("DEL", pod, conf, CNI_IFNAME="rail1")
    assert pod.links() == set()
    assert ip("-d", "link", "show", "rail1") == before


@pytest.mark.parametrize("mode", ["balance-alb", "balance-tlb", "active-backup"])
def test_a_macvlan_over_a_bond(guest: Guest, make_pod: Callable[[], Pod], mode: str) -> None:
    """Some modes answer ARP by a port's own MAC, but not for the MAC of a macvlan."""
    subprocess.run(["modprobe", "bonding"], check=True)
    ip("link", "add", "fab9", "type", "bridge")
    ip("link", "add", "bond9", "type", "bond", "mode", mode, "miimon", "100")
    try:
        for number in range(2):
            ip("link", "add", f"port{number}", "type", "veth", "peer", "name", f"leaf{number}")
            ip("link", "set", f"leaf{number}", "master", "fab9", "up")
            ip("link", "set", f"port{number}", "master", "bond9")
        for name in ("fab9", "bond9"):
            ip("link", "set", name, "up")
        pods, masters = (make_pod(), make_pod()), ("bond9", "fab9")
        for pod, master in zip(pods, masters, strict=True):
            guest.ok("ADD", pod, guest.conf(master=master))
        mac = (pods[0].link() or {})["address"]
        for _ in range(5):
            assert until(lambda: pods[0].ping("10.56.0.3", "-W", "1") and pods[1].ping("10.56.0.2", "-W", "1"))
        (neighbour,) = pods[1].ip("neighbour", "show", "to", "10.56.0.2")
        assert neighbour["lladdr"] == mac
        for pod, master in zip(pods, masters, strict=True):
            guest.ok("DEL", pod, guest.conf(master=master))
    finally:
        for name in ("bond9", "port0", "port1", "fab9"):
            subprocess.run(["ip", "link", "delete", name], check=False)
