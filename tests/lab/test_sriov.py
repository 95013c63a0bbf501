"""Real VFs and their RDMA devices in pods."""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest.node import MAC, NAME, PF, RDMA, Node, pci, vf
from support.offloads import offloads, switch_in
from support.topology import Pod, ip, until

from base.state import journal

# What sriov-network-operator writes for a SriovNetwork, with our type.  igb has no link state.
OPERATORS = {
    "vlan": 0,
    "vlanQoS": 0,
    "vlanProto": "802.1q",
    "spoofchk": "on",
    "trust": "off",
    "logLevel": "info",
    "ipam": {},
}


def test_attaches_and_detaches(node: Node, pod: Pod) -> None:
    result = node.ok("ADD", pod)
    link = pod.link()
    assert link
    assert link["parentdev"] == node.device
    assert {"UP", "LOWER_UP"} <= set(link["flags"])
    (pf,) = ip("link", "show", "dev", PF)
    assert result["interfaces"] == [
        {"name": "hpn0", "mac": link["address"], "mtu": 1500, "sandbox": pod.path, "pciID": node.device},
        {"name": PF, "mac": pf["address"], "mtu": 1500, "pciID": pci(PF)},
    ]
    node.detaches(pod, result)


def test_an_address_of_its_mac_that_nobody_has(node: Node, pod: Pod) -> None:
    """igb returns a VF's own multicast, which must not count as another host's answer."""
    ranges = [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64", "eui64": True}]]
    conf = node.conf(mac="02:00:00:00:00:77", ipam={"type": "hpn-ipam", "ranges": ranges, "probe": True})
    result = node.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::ff:fe00:77/64"}
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert node.state_files() == set()


def test_sysctls_and_rules(node: Node, pod: Pod) -> None:
    """DEL resets the interface's sysctls, those of the namespace and the rules."""

    def ours() -> tuple[list[str], list[dict[str, Any]], str]:
        rules = [r["src"] for family in ("-4", "-6") for r in pod.ip(family, "rule", "show") if r["src"] != "all"]
        shown = pod.ip("-4", "route", "show", "table", "all")
        routes = [{k: r.get(k) for k in ("dst", "gateway", "dev")} for r in shown if r.get("table") == "100"]
        return rules, routes, pod.sysctl("core/somaxconn")

    before, at_home = ours(), Path(f"/proc/sys/net/ipv4/conf/{NAME}/arp_announce").read_text()
    conf = node.conf(policyRouting=True, sysctl={"net.ipv4.conf.IFNAME.arp_announce": "2", "net.core.somaxconn": "77"})
    result = node.ok("ADD", pod, conf)
    routes = [
        {"dst": "default", "gateway": "10.56.0.1", "dev": "hpn0"},
        {"dst": "10.56.0.0/24", "gateway": None, "dev": "hpn0"},
    ]
    assert ours() == (["10.56.0.2", "fd00:56::2"], routes, "77")
    assert pod.sysctl("ipv4/conf/hpn0/arp_announce") == "2"
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert ours() == before
    assert Path(f"/proc/sys/net/ipv4/conf/{NAME}/arp_announce").read_text() == at_home != "2\n"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"vlan": 100}, {"vlan_list": [{"vlan": 100}]}),
        ({"vlan": 100, "vlanQoS": 3}, {"vlan_list": [{"vlan": 100, "qos": 3}]}),
        ({"spoofchk": "off"}, {"spoofchk": False}),
        ({"trust": "on"}, {"trust": True}),
        ({"max_tx_rate": 50}, {"rate": {"max_tx": 50, "min_tx": 0}}),
        ({"mac": MAC}, {"address": MAC}),
        (OPERATORS, {"vlan_list": [{}], "spoofchk": True, "trust": False}),
        ({"mac": MAC, "vlan": 7, "trust": "on", "spoofchk": "off", "max_tx_rate": 10}, {"address": MAC, "trust": True}),
    ],
    ids=repr,
)
def test_attributes_are_set_and_put_back(node: Node, pod: Pod, keys: dict[str, Any], said: dict[str, Any]) -> None:
    result = node.ok("ADD", pod, node.conf(**keys))
    assert {k: vf()[k] for k in said} == said
    if "mac" in keys:
        link = pod.link()
        assert link
        assert link["address"] == MAC
    assert node.checked(pod, node.conf(**keys), result).exit_code == 0
    node.ok("DEL", pod, node.conf(**keys))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"link_state": "disable"}, "link_state disable: "),  # igb: Operation not supported
        ({"vlan": 5, "vlanProto": "802.1ad"}, "vlanProto 5, 0, 802.1ad: "),
        ({"min_tx_rate": 5}, "min_tx_rate, max_tx_rate 5, 0: "),
    ],
    ids=repr,
)
def test_what_the_driver_refuses_is_undone(node: Node, pod: Pod, keys: dict[str, Any], says: str) -> None:
    """DEL also resets the attributes that were set before the refusal: the host fixture compares."""
    error = node.refused("ADD", pod, node.conf(spoofchk="off", trust="on", **keys))
    assert error["code"] == 105
    assert says in error["msg"]
    assert pod.links() == set()
    assert node.state_files() == set()


def test_mtu(node: Node, pod: Pod) -> None:
    ip("link", "set", PF, "mtu", "4000")
    try:
        node.ok("ADD", pod, node.conf(mtu=3000))
        link = pod.link()
        assert link
        assert link["mtu"] == 3000
        node.ok("DEL", pod)
        error = node.refused("ADD", pod, node.conf(mtu=4001))
        assert (error["code"], "mtu 4001" in error["msg"]) == (7, True)
    finally:
        ip("link", "set", PF, "mtu", "1500")


def test_everything_the_pod_changed_is_put_back(node: Node, pod: Pod) -> None:
    before = offloads(NAME)
    # A VF that once had its MAC from the PF may change it only if it is trusted.
    node.ok("ADD", pod, node.conf(trust="on"))
    pod.ip("link", "set", "hpn0", "mtu", "1300", "txqueuelen", "77", "alias", "mine")
    pod.ip("link", "set", "hpn0", "promisc", "on", "allmulticast", "on", "arp", "off")
    pod.ip("link", "property", "add", "dev", "hpn0", "altname", "in-the-pod")
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "address", MAC)
    switch_in(pod, "hpn0", "tx-tcp-segmentation", "rx-checksum")
    node.ok("DEL", pod)
    assert offloads(NAME) == before


def test_any_free_vf_of_a_pf(node: Node, make_pod: Callable[[], Pod]) -> None:
    conf = node.conf(deviceID=..., pf=PF)
    pods = [make_pod() for _ in range(4)]
    for pod in pods:
        node.ok("ADD", pod, conf)
    devices = [(pod.link() or {})["parentdev"] for pod in pods]
    assert len(set(devices)) == 4
    error = node.refused("ADD", make_pod(), conf)
    assert (error["code"], "no free VF" in error["msg"]) == (101, True)
    for pod in pods:
        node.ok("DEL", pod, conf)


def test_one_owner(node: Node, make_pod: Callable[[], Pod]) -> None:
    owner, other = make_pod(), make_pod()
    node.ok("ADD", owner)
    error = node.refused("ADD", other)
    assert error["code"] == 109
    assert node.device in error["msg"]
    # A DEL by another pod touches nothing.
    node.ok("DEL", other)
    assert owner.link()
    node.ok("DEL", owner)


def test_a_name_taken_in_the_pod(node: Node, pod: Pod) -> None:
    pod.stranger()
    error = node.refused("ADD", pod)
    assert error["code"] == 100
    assert pod.link()


def test_a_name_taken_meanwhile(node: Node, pod: Pod) -> None:
    """The kernel notices the name only after it has moved the VF."""
    with node.meanwhile(pod, node.conf(vlan=7)) as reply:
        stranger = pod.stranger()
    error = json.loads(reply.result().stdout)
    assert (error["code"], "CNI_IFNAME=hpn0" in error["msg"]) == (100, True)
    assert pod.links() == {"hpn0"}
    assert pod.link() == stranger
    assert node.state_files() == set()


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_the_namespace_died(node: Node, pod: Pod, *, taken: bool) -> None:
    """The kernel brings everything home, as hpn0 or, if that is taken, under a name of its own."""
    node.ok("ADD", pod, node.conf(vlan=7))
    if taken:
        ip("link", "add", "hpn0", "type", "dummy")
    try:
        pod.gone()
        node.ok("DEL", pod, node.conf(vlan=7))
        assert node.state_files() == set()
    finally:
        if taken:
            ip("link", "delete", "hpn0")


@pytest.mark.parametrize("files", [1, 64])
def test_a_dead_owner_gives_way(
    node: Node, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Without a DEL for the dead owner, the next pod gets the VF, clean; also if both keys' locks are in one file."""
    monkeypatch.setattr(journal, "_LOCKS", files)
    owner, other = make_pod(), make_pod()
    node.ok("ADD", owner, node.conf(vlan=7))
    owner.gone()
    node.ok("ADD", other)
    assert vf()["vlan_list"] == [{}]
    node.ok("DEL", other)
    node.ok("DEL", owner)
    assert node.state_files() == set()


def test_gc_brings_it_home(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod, node.conf(vlan=7))
    node.ok("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    assert pod.links() == set()


def test_the_hosts_name_is_taken(node: Node, pod: Pod) -> None:
    """The VF comes home all the same, and hpn finds it by its address."""
    node.ok("ADD", pod)
    ip("link", "add", NAME, "type", "dummy")
    try:
        node.ok("DEL", pod)
        (name,) = (p.name for p in Path(f"/sys/bus/pci/devices/{node.device}/net").iterdir())
        assert name != NAME
    finally:
        ip("link", "delete", NAME)
    ip("link", "set", name, "name", NAME)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _pod: ip("link", "set", PF, "vf", "0", "vlan", "9"), "vlan"),
        (lambda pod: pod.run("rdma", "dev", "set", RDMA, "netns", "lab-init").check_returncode(), "RDMA"),
        (lambda pod: pod.ip("link", "set", "hpn0", "down"), "down"),
        (lambda pod: pod.ip("link", "set", "hpn0", "mtu", "1400"), "MTU 1400, expected 1500"),
        (lambda pod: pod.ip("link", "set", "hpn0", "arp", "off"), "ARP off"),
    ],
    ids=["vlan", "rdma", "down", "mtu", "arp"],
)
def test_check_sees(node: Node, pod: Pod, change: Callable[[Pod], Any], says: str) -> None:
    conf = node.conf(vlan=7)
    result = node.ok("ADD", pod, conf)
    # A name for the guest's own namespace, which the rdma tool needs to move a device there.
    subprocess.run(["ip", "netns", "attach", "lab-init", str(os.getpid())], check=True)
    try:
        change(pod)
        reply = node.checked(pod, conf, result)
        assert reply.exit_code
        assert '"code":107' in reply.stdout
        assert says in reply.stdout
    finally:
        subprocess.run(["ip", "netns", "delete", "lab-init"], check=True)
    node.ok("DEL", pod, conf)


def test_two_pods_reach_each_other(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The traffic goes over two PFs and the wire between them."""
    one, other = make_pod(), make_pod()
    node.ok("ADD", one)
    node.ok("ADD", other, node.conf(deviceID=pci("rail1v0")))
    until(lambda: one.ping("10.56.0.3"), 120)
    node.ok("DEL", one)
    node.ok("DEL", other, node.conf(deviceID=pci("rail1v0")))


def test_rounds(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Repeated attachments leave nothing behind."""
    pod = make_pod()
    started = time.monotonic()
    for _ in itertools.repeat(None, 10):
        node.ok("ADD", pod)
        node.ok("DEL", pod)
    assert node.state_files() == set()
    print(f"10 attachments and detachments in {time.monotonic() - started:.1f} s")
