"""Attachments without a VF's netdev: a PF, a VF by number, a VF that the pod drives; and the names and flags that a
device keeps."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest.drivers import driven_by
from guest.node import MAC, NAME, PF, RDMA, Node, macvlan, netdev, pci, rdma_devs, renamed, vf
from guest.programs import attach, attached
from support.topology import Pod, ip, until

OTHER_PF = "rail1"


def test_a_vf_that_the_pod_drives(node: Node, pod: Pod) -> None:
    """The VF has attributes and addresses, but no netdev to configure."""
    keys = {"mac": MAC, "vlan": 7, "trust": "on"}
    with driven_by("vfio-pci", node.device, netdev()["address"]):
        result = node.ok("ADD", pod, node.conf(**keys))
        ours = {"name": "hpn0", "mac": MAC, "mtu": 1500, "sandbox": pod.path, "pciID": node.device}
        assert result["interfaces"][0] == ours
        assert [i["address"] for i in result["ips"]] == ["10.56.0.2/24", "fd00:56::2/64"]
        assert pod.links() == set()
        assert (vf()["address"], vf()["trust"], vf()["vlan_list"]) == (MAC, True, [{"vlan": 7}])
        assert node.checked(pod, node.conf(**keys), result).exit_code == 0
        error = node.refused("ADD", pod, node.conf(**keys))
        assert error["code"] == 100
        node.ok("DEL", pod, node.conf(**keys))
        assert (vf()["trust"], vf()["vlan_list"]) == (False, [{}])
        error = node.refused("ADD", pod, node.conf(mtu=1400))
        assert (error["code"], "mtu 1400" in error["msg"]) == (7, True)
        for key, value in (("sysctl", {"net.core.somaxconn": "77"}), ("policyRouting", True), ("multiRail", True)):
            error = node.refused("ADD", pod, node.conf(**{key: value}))
            assert (error["code"], "vfio-pci leaves" in error["msg"] and error["msg"].startswith(key)) == (7, True)
        error = node.refused("ADD", pod, node.conf(rdma={"required": True}))
        assert (error["code"], "rdma.required" in error["msg"]) == (101, True)


@pytest.mark.parametrize("driver", ["", "vfio-pci"], ids=["none", "vfio-pci"])
def test_the_driver_changed_while_it_was_in_a_pod(node: Node, pod: Pod, driver: str) -> None:
    """The netdev no longer exists; DEL restores the PF's settings."""
    mac = netdev()["address"]
    node.ok("ADD", pod, node.conf(vlan=7, spoofchk="off"))
    with driven_by(driver, node.device, mac):
        assert pod.links() == set()
        node.ok("DEL", pod)
        assert (vf()["spoofchk"], vf()["vlan_list"]) == (True, [{}])
        assert node.state_files() == set()


def test_no_driver(node: Node, pod: Pod) -> None:
    with driven_by("", node.device, netdev()["address"]):
        error = node.refused("ADD", pod)
    assert (error["code"], "drivers_probe" in error["msg"]) == (101, True)


@pytest.mark.parametrize(
    ("keys", "args"),
    [({"vf": 2}, ""), ({}, "VF=2;VLAN=9"), ({"vlan": 9, "vf": 3}, "VF=2"), ({"args": {"cni": {"vf": 2}}}, "")],
    ids=repr,
)
def test_a_vf_by_its_number(node: Node, pod: Pod, node_file: Path, keys: dict[str, Any], args: str) -> None:
    conf = node.conf(deviceID=..., pf=PF, **keys)
    if "args" in keys:
        assert "podMayChoose" in node.refused("ADD", pod, conf)["msg"]
        node_file.write_text('{"podMayChoose": ["vf"]}')
    node.ok("ADD", pod, conf, CNI_ARGS=args)
    assert (pod.link() or {})["parentdev"] == pci(f"{PF}v1").replace(".2", ".4")
    assert vf(2)["vlan_list"] == ([{"vlan": 9}] if "VLAN" in args or "vlan" in keys else [{}])
    error = node.refused("ADD", pod, conf, CNI_ARGS=args, CNI_IFNAME="hpn1")
    assert error["code"] == 109
    node.ok("DEL", pod, conf, CNI_ARGS=args)


@pytest.mark.parametrize(
    ("keys", "args", "code", "says"),
    [
        ({"vf": 4}, "", 7, "vf 4"),
        ({}, "VF=one", 7, "vf 'one'"),
        ({}, "VLAN=4095", 7, "vlan 4095"),
        ({"pf": "lo"}, "", 101, "pf 'lo'"),
        ({"pf": NAME}, "", 101, f"pf '{NAME}' has no VFs"),
        ({"pf": ..., "vf": 1, "deviceID": "0000:01:10.0"}, "", 7, "set pf"),
        ({"pfOnly": True, "vlan": 5}, "", 7, "vlan"),
        ({"pfOnly": True, "pf": NAME}, "", 7, "is a VF"),
        ({"mac": "52:54:00:00:00:01"}, "", 7, "the PF itself"),
        ({"max_tx_rate": 2000}, "", 7, "max_tx_rate 2000"),
        ({"mtu": 9000}, "", 7, "mtu 9000"),
        ({"pf": ..., "deviceID": "0000:ff:00.0"}, "", 101, "0000:ff:00.0"),
        ({"pf": ..., "deviceID": pci(PF) if Path(f"/sys/class/net/{PF}").exists() else ""}, "", 7, "is a PF"),
    ],
    ids=repr,
)
def test_what_cannot_be(node: Node, pod: Pod, keys: dict[str, Any], args: str, code: int, says: str) -> None:
    error = node.refused("ADD", pod, node.conf(**{"deviceID": ..., "pf": PF} | keys), CNI_ARGS=args)
    assert (error["code"], says in error["msg"]) == (code, True), error
    assert pod.links() == set()
    assert node.state_files() == set()


def test_the_mac_of_another_vf(node: Node, pod: Pod) -> None:
    ip("link", "set", PF, "vf", "3", "mac", MAC)
    try:
        error = node.refused("ADD", pod, node.conf(mac=MAC))
        assert (error["code"], "VF 3" in error["msg"]) == (7, True)
    finally:
        ip("link", "set", PF, "vf", "3", "mac", "00:00:00:00:00:00")


@pytest.mark.parametrize("by", ["pf", "deviceID"])
def test_a_pf_itself(node: Node, make_pod: Callable[[], Pod], by: str) -> None:
    named = {"deviceID": ..., "pf": OTHER_PF} if by == "pf" else {"deviceID": pci(OTHER_PF)}
    conf = node.conf(**named, pfOnly=True, mtu=2000, mac=MAC)
    before, pod = netdev(OTHER_PF), make_pod()
    result = node.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    assert (link["address"], link["mtu"]) == (MAC, 2000)
    assert [i["name"] for i in result["interfaces"]] == ["hpn0"]
    assert node.checked(pod, conf, result).exit_code == 0
    # The PF's VFs cannot be attached while their PF is in the pod.
    error = node.refused("ADD", make_pod(), node.conf(deviceID=pci(f"{OTHER_PF}v0")), CNI_IFNAME="hpn1")
    assert (error["code"], "which it is a part of" in error["msg"]) == (109, True)
    assert node.refused("ADD", make_pod(), conf)["code"] in (101, 109)
    node.ok("DEL", pod, conf)
    # The kernel changes the flags of a carrier after the state.
    until(lambda: netdev(OTHER_PF) == before, 120)


NAMED: dict[str, Callable[[], dict[str, Any]]] = {
    "pf": lambda: {"pf": OTHER_PF, "pfOnly": True},
    "pciBusID": lambda: {"kind": "host-device", "pciBusID": pci(OTHER_PF)},
    "kernelpath": lambda: {"kind": "host-device", "kernelpath": os.path.realpath(f"/sys/class/net/{OTHER_PF}/device")},
    "hwaddr": lambda: {"kind": "host-device", "hwaddr": netdev(OTHER_PF)["address"]},
}


@pytest.mark.parametrize(
    ("key", "lost"), [*((key, False) for key in NAMED), ("pf", True)], ids=[*NAMED, "its pod's namespace is lost"]
)
def test_a_pf_with_the_hosts_network(node: Node, make_pod: Callable[[], Pod], key: str, lost: bool) -> None:
    """The host gets addresses and routes again, also if the kernel brings the PF home, down and without them."""

    def network() -> tuple[Any, ...]:
        (link,) = ip("address", "show", "dev", OTHER_PF)
        shown = [(a["local"], a["prefixlen"]) for a in link["addr_info"] if a["scope"] == "global"]
        routes = ip("-4", "route", "show", "table", "all", "dev", OTHER_PF)  # the flags follow the carrier, later
        return shown, [{**route, "flags": []} for route in routes], ip("rule")

    conf = node.conf(deviceID=..., useInterfaceNetwork=True, ipam=..., **NAMED[key]())
    flags = netdev(OTHER_PF)["flags"]
    try:
        ip("link", "set", OTHER_PF, "up")
        for address in ("10.1.0.5/31", "10.1.0.7/31", "fd00:1::5/64"):
            ip("address", "add", address, "dev", OTHER_PF)
        ip("route", "add", "default", "via", "10.1.0.4", "table", "101")
        ip("rule", "add", "from", "10.1.0.5", "lookup", "101")
        before, pod = network(), make_pod()
        result = node.ok("ADD", pod, conf)
        assert {i["address"] for i in result["ips"]} == {"10.1.0.5/31", "10.1.0.7/31", "fd00:1::5/64"}
        assert node.checked(pod, conf, result).exit_code == 0
        if lost:
            pod.gone()
        node.ok("DEL", pod, conf, **({"CNI_NETNS": ""} if lost else {}))
        assert network() == before
    finally:
        ip("rule", "delete", "from", "10.1.0.5", "lookup", "101")
        ip("address", "flush", "dev", OTHER_PF)
        if "UP" not in flags:
            ip("link", "set", OTHER_PF, "down")


def test_a_pf_that_others_depend_on(node: Node, make_pod: Callable[[], Pod]) -> None:
    conf, pod = node.conf(deviceID=..., pf=PF, pfOnly=True), make_pod()
    ip("address", "add", "192.0.2.1/24", "dev", PF)
    try:
        error = node.refused("ADD", pod, conf)
        assert (error["code"], "192.0.2.1/24" in error["msg"]) == (7, True)
        ip("route", "add", "default", "via", "192.0.2.254")
        error = node.refused("ADD", pod, conf)
        assert (error["code"], "default route" in error["msg"]) == (7, True)
    finally:
        ip("address", "del", "192.0.2.1/24", "dev", PF)
    owner = make_pod()
    node.ok("ADD", owner)
    error = node.refused("ADD", pod, conf)
    assert (error["code"], node.device in error["msg"]) == (109, True)
    node.ok("DEL", owner)


def test_a_vf_that_others_depend_on(node: Node, make_pod: Callable[[], Pod]) -> None:
    """ADD refuses the VF, by its address and by its number, and leaves it unchanged."""
    name = f"{PF}v1"
    pod, other, over = make_pod(), make_pod(), node.conf(deviceID=..., master=name, name="over")

    def refused(code: int, reason: str) -> None:
        for keys in ({"deviceID": pci(name)}, {"deviceID": ..., "pf": PF, "vf": 1}):
            error = node.refused("ADD", pod, node.conf(vlan=7, **keys))
            assert (error["code"], f"{name!r}" in error["msg"], reason in error["msg"]) == (code, True, True), error
        assert (pod.links(), vf(1)["vlan_list"]) == (set(), [{}])

    try:
        ip("address", "add", "192.0.2.1/24", "dev", name)
        refused(7, "has 192.0.2.1/24 on the host")
        ip("link", "set", name, "up")
        ip("route", "add", "default", "via", "192.0.2.2")
        refused(7, "the host's default route uses")
        ip("address", "flush", "dev", name)
        ip("link", "add", "link", name, "name", "over9", "type", "macvlan")
        refused(7, "carries over9 of the host")
        ip("link", "delete", "over9")
        ip("link", "add", "over9", "type", "bridge")
        ip("link", "set", name, "master", "over9")
        refused(101, "is a port of the host's 'over9'")
        ip("link", "delete", "over9")
        ip("link", "set", name, "up")
        node.ok("ADD", other, over)
        refused(101, "is the master of")
        node.ok("DEL", other, over)
    finally:
        ip("address", "flush", "dev", name)
        ip("link", "set", name, "down")


@pytest.mark.parametrize(
    ("link", "code", "reason"),
    [
        (
            ("link", PF, "name", "over9", "type", "vlan", "id", "9"),
            7,
            f"{PF!r} carries over9 of the host; remove them first",
        ),
        (("over9", "type", "bridge"), 101, f"{PF!r} is a port of the host's 'over9'"),
    ],
    ids=["VLAN", "bridge"],
)
def test_a_pf_that_another_link_of_the_host_needs(
    node: Node, pod: Pod, link: tuple[str, ...], code: int, reason: str
) -> None:
    ip("link", "add", *link)
    try:
        if "bridge" in link:
            ip("link", "set", PF, "master", "over9")
        error = node.refused("ADD", pod, node.conf(deviceID=..., pf=PF, pfOnly=True))
        assert (error["code"], error["msg"].startswith(f"pfOnly: {reason}")) == (code, True), error
    finally:
        ip("link", "delete", "over9")


def test_a_pf_that_is_the_master_of_another_attachment(node: Node, make_pod: Callable[[], Pod]) -> None:
    other, pod = make_pod(), make_pod()
    node.ok("ADD", other, macvlan(node))
    error = node.refused("ADD", pod, node.conf(deviceID=..., pf=PF, pfOnly=True))
    assert (error["code"], f"pfOnly: {PF!r} is the master of" in error["msg"]) == (101, True), error
    node.ok("DEL", other, macvlan(node))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (NAME, "xdpgeneric by netlink"),
        (NAME, "tcx by link"),
        (OTHER_PF, "xdpdrv by netlink"),
    ],
)
def test_bpf_programs_stay_behind(node: Node, pod: Pod, name: str, way: str) -> None:
    """After DEL the device has no BPF program from the pod: a VF, and a NIC with a driver that runs such programs."""
    conf = node.conf() if name == NAME else node.conf(deviceID=..., pf=name, pfOnly=True)
    before = netdev(name)
    node.ok("ADD", pod, conf)
    holder = attach(pod.path, (pod.link() or {})["ifindex"], way)
    try:
        node.ok("DEL", pod, conf)
        assert attached(name) == []
    finally:
        os.close(holder)
    until(lambda: netdev(name) == before, 120)


@pytest.mark.parametrize("altname", ["before", "hpn0", "enP60932p0s2f0np0v3"])
def test_altnames_and_flags_come_back(node: Node, pod: Pod, altname: str) -> None:
    """DEL restores them, also an altname that equals the pod's name for the device, or is longer than a name can be."""
    ip("link", "property", "add", "dev", NAME, "altname", altname)
    ip("link", "set", NAME, "promisc", "on", "up")
    until(lambda: netdev()["operstate"] == "UP", 120)
    before = netdev()
    try:
        node.ok("ADD", pod)
        pod.ip("link", "set", "hpn0", "promisc", "off")
        node.ok("DEL", pod)
        until(lambda: netdev()["operstate"] == before["operstate"], 120)
        assert netdev() == before
    finally:
        ip("link", "set", NAME, "promisc", "off", "down")
        ip("link", "property", "del", "dev", NAME, "altname", altname)


def test_an_altname_taken_in_the_pod(node: Node, pod: Pod) -> None:
    ip("link", "property", "add", "dev", NAME, "altname", "taken")
    pod.ip("link", "add", "taken", "type", "dummy")
    try:
        error = node.refused("ADD", pod)
        assert (error["code"], "taken" in error["msg"]) == (100, True)
    finally:
        ip("link", "property", "del", "dev", NAME, "altname", "taken")


def test_an_altname_taken_on_the_host_meanwhile(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod)
    pod.ip("link", "property", "add", "dev", "hpn0", "altname", "meanwhile")
    ip("link", "add", "meanwhile", "type", "dummy")
    try:
        node.ok("DEL", pod)
    finally:
        ip("link", "delete", "meanwhile")
    assert pod.links() == set()


@pytest.mark.parametrize("altname", ["enp1s0np0", "enP60932p0s2f0np0"])
def test_a_pf_by_its_altname(node: Node, pod: Pod, altname: str) -> None:
    rails = {"type": "hpn-ipam", "rails": [{"pf": altname, "subnet": "10.56.0.0/24"}]}
    ip("link", "property", "add", "dev", PF, "altname", altname)
    try:
        for conf in (node.conf(deviceID=..., pf=altname, ipam=rails), node.conf(ipam=rails), macvlan(node, ipam=rails)):
            assert node.ok("ADD", pod, conf)["ips"][0]["address"].startswith("10.56.0.")
            node.ok("DEL", pod, conf)
    finally:
        ip("link", "property", "del", "dev", PF, "altname", altname)


def test_a_pf_that_is_renamed(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The record identifies the PF by its address."""
    one, other = make_pod(), make_pod()
    conf = node.conf(vlan=100)
    result = node.ok("ADD", one, conf)
    with renamed(PF, "ens1f0np0"):
        assert node.checked(one, conf, result).exit_code == 0
        by_name = node.conf(name="other", deviceID=..., pf="ens1f0np0", ipam=...)
        node.ok("ADD", other, by_name)
        assert (other.link() or {})["parentdev"] != node.device
        node.ok("DEL", other, by_name)
        node.ok("DEL", one, conf)
    assert vf()["vlan_list"] == [{}]


@pytest.mark.parametrize(("fail_over_mac", "order"), [("none", (1, 0)), ("active", (0, 1))])
def test_two_in_the_pods_bond(node: Node, pod: Pod, fail_over_mac: str, order: tuple[int, int]) -> None:
    """A bond sets the MACs and MTUs of its ports, as bond-cni's does.  CHECK lets it, and DEL undoes it."""
    subprocess.run(["modprobe", "bonding"], check=True)
    names = (NAME, f"{OTHER_PF}v0")
    before = [netdev(name) for name in names]
    confs = [node.conf(name=name, deviceID=pci(name), ipam=...) for name in names]
    results = [node.ok("ADD", pod, one, CNI_IFNAME=f"net{n}") for n, one in enumerate(confs)]
    bond = ("type", "bond", "mode", "active-backup", "miimon", "100", "fail_over_mac", fail_over_mac)
    pod.ip("link", "add", "bond9", *bond)
    for number in range(2):
        pod.ip("link", "set", f"net{number}", "down")
        pod.ip("link", "set", f"net{number}", "master", "bond9")
    pod.ip("link", "set", "bond9", "mtu", "1400", "up")
    until(lambda: all("UP" in (pod.link(f"net{number}") or {})["flags"] for number in range(2)))
    for number, (conf, result) in enumerate(zip(confs, results, strict=True)):
        assert node.checked(pod, conf, result, CNI_IFNAME=f"net{number}").exit_code == 0
    for number in order:
        node.ok("DEL", pod, confs[number], CNI_IFNAME=f"net{number}")
    assert pod.links() == {"bond9"}
    until(lambda: [netdev(name) for name in names] == before, 120)


def test_all_vfs_in_one_pod(node: Node, pod: Pod) -> None:
    """Each shares the subnet and the pod's own sysctls with the others.  The last one that goes restores these."""
    asked = {"arp_announce": "2", "arp_filter": "1", "arp_ignore": "1", "accept_local": "1"}
    sysctls = {f"net.ipv4.conf.all.{key}": value for key, value in asked.items()}
    devices = [pci(f"{pf}v{number}") for pf in (PF, OTHER_PF) for number in range(4)]
    confs = [node.conf(deviceID=device, multiRail=True, sysctl=sysctls, spoofchk="off") for device in devices]

    def now() -> dict[str, str]:
        return {key: pod.sysctl(f"ipv4/conf/all/{key}") for key in asked}

    before, results = now(), list[Any]()
    for number, conf in enumerate(confs):
        results.append(node.ok("ADD", pod, conf, CNI_IFNAME=f"net{number}"))
    assert now() == asked != before
    assert len({result["ips"][0]["address"] for result in results}) == len(devices)
    for number, (conf, result) in enumerate(zip(confs, results, strict=True)):
        assert node.checked(pod, conf, result, CNI_IFNAME=f"net{number}").exit_code == 0
    for number in (3, 0, 7, 1, 6, 2, 5, 4):
        assert now() == asked
        node.ok("DEL", pod, confs[number], CNI_IFNAME=f"net{number}")
    assert now() == before


@pytest.mark.usefixtures("node_file")
def test_the_log(node: Node, pod: Pod) -> None:
    log = node.tmp_path / "hpn.log"
    conf = node.conf(logFile=str(log), logLevel="debug")
    node.ok("ADD", pod, conf)
    node.ok("DEL", pod, conf)
    error = node.refused("ADD", pod, conf | {"vlan": 9999})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    # A command may warn before it ends, for example about a link without carrier on a busy machine.
    assert [(line["level"], line["command"]) for line in lines if "duration_ms" in line] == [
        ("info", "ADD"), ("info", "DEL"), ("error", "ADD"),
    ]  # fmt: skip
    assert "vlan 9999" in error["msg"]
    assert "vlan 9999" in lines[-1]["message"]
    assert rdma_devs() >= {RDMA}
