"""CHECK of the interface and its master: MTU, MAC, mode, ARP and state up; and what the pod may do with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netns.tampering import caught, in_pod, passes
from support.topology import Host, Pod, ip

OTHER_MAC = "02:00:00:00:00:aa"
TUNED = Path("/run/cni/tuning")
# The routes of an interface's own table: to its networks, and by its gateways.
TABLES = {
    "10.56.0.0/24": "scope link",
    "default": "via 10.56.0.1",
    "fd00:56::/64": "",
    "fe80::/64": "",
    "::/0": "via fd00:56::1",
}


def master(*words: str) -> Any:
    """A change to the master."""
    return lambda _host, _pod, _result: ip("link", "set", "rail0", *words)


def test_mtu(host: Host, pod: Pod, kind: str) -> None:
    conf = host.conf(kind=kind, mtu=1400)
    result = host.ok("ADD", pod, conf)
    for mtu in ("1300", "1450"):
        pod.ip("link", "set", "hpn0", "mtu", mtu)
        error = host.refused("CHECK", pod, conf | {"prevResult": result})
        assert (error["code"], error["msg"]) == (107, f"hpn0 has MTU {mtu}, expected 1400")
    pod.ip("link", "set", "hpn0", "mtu", "1400")
    assert host.checked(pod, conf, result).exit_code == 0


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_mtu_of_the_master(host: Host, pod: Pod, version: str) -> None:
    """The kernel lowers the MTU with the master's.  CHECK takes the expected MTU from the record if the result's
    version has none."""
    caught(host, pod, host.conf(cniVersion=version), master("mtu", "1400"), "hpn0 has MTU 1400, expected 1500")


def test_mtu_in_prevresult(host: Host, pod: Pod) -> None:
    """CHECK expects the MTU that another plugin writes into prevResult."""
    result = host.ok("ADD", pod)
    result["interfaces"][0]["mtu"] = 1300
    error = host.refused("CHECK", pod, host.conf(prevResult=result))
    assert (error["code"], error["msg"]) == (107, "hpn0 has MTU 1500, expected 1300")
    pod.ip("link", "set", "hpn0", "mtu", "1300")
    assert host.checked(pod, host.conf(), result).exit_code == 0


@pytest.fixture
def tuned(pod: Pod) -> Iterator[Path]:
    """The file in which tuning lists its changes to hpn0."""
    there = TUNED.exists()
    TUNED.mkdir(parents=True, exist_ok=True)
    file = TUNED / f"{pod.name}_hpn0.json"
    yield file
    file.unlink(missing_ok=True)
    if not there:
        TUNED.rmdir()


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        (json.dumps({"mtu": 1500}), True),
        (json.dumps({"mac": OTHER_MAC}), False),  # it changed another setting
        (json.dumps([]), False),
        ("{", False),
        (None, False),
    ],
)
def test_mtu_of_tuning(host: Host, pod: Pod, tuned: Path, said: str | None, passes: bool) -> None:
    """CHECK accepts another MTU if tuning's own file lists it: tuning leaves the result alone and compares the MTU
    itself."""
    result = host.ok("ADD", pod)
    if said is not None:
        tuned.write_text(said)
    pod.ip("link", "set", "hpn0", "mtu", "1300")
    assert (host.checked(pod, host.conf(), result).exit_code == 0) is passes


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        (("link set hpn0 down",), "hpn0 is down"),
        ((f"link set hpn0 address {OTHER_MAC}",), f"MAC {OTHER_MAC}"),
        (("link set hpn0 arp off",), "hpn0 has ARP off; run in the pod: ip link set hpn0 arp on"),
        (("link set hpn0 type macvlan mode private",), "mode"),
    ],
)
def test_caught(host: Host, pod: Pod, commands: tuple[str, ...], says: str) -> None:
    caught(host, pod, host.conf(), in_pod(*commands), says)


def test_a_mac_that_prevresult_does_not_have(host: Host, pod: Pod) -> None:
    result = host.ok("ADD", pod)
    del result["interfaces"][0]["mac"]
    assert host.checked(pod, host.conf(), result).exit_code == 0
    pod.ip("link", "set", "hpn0", "address", OTHER_MAC)
    assert f"MAC {OTHER_MAC}" in host.refused("CHECK", pod, host.conf(prevResult=result))["msg"]


def test_master_down(host: Host, pod: Pod) -> None:
    caught(host, pod, host.conf(), master("down"), "master 'rail0' of hpn0 is down; run: ip link set rail0 up")


@pytest.mark.parametrize("is_made_again", [False, True])
def test_the_interface_went_with_its_master(host: Host, pod: Pod, is_made_again: bool) -> None:
    """Linux removes it, for example when a network service makes the host's VLAN interfaces again."""
    result = host.ok("ADD", pod)
    ip("link", "delete", "rail0")
    if is_made_again:
        ip("link", "add", "rail0", "up", "type", "veth")
    error = json.loads(host.checked(pod, host.conf(), result).stdout)
    assert (error["code"], error["msg"]) == (107, "master 'rail0' of hpn0 is gone or is another interface now")


def test_a_pulled_cable_is_not_ours_to_tell(host: Host, pod: Pod) -> None:
    passes(host, pod, host.conf(), lambda *_: ip("link", "set", "fabric", "down"))


@pytest.mark.parametrize(
    "commands",
    [
        ("link set hpn0 promisc on", "link set hpn0 allmulticast on", "link set hpn0 txqueuelen 77"),  # tuning
        ("link set hpn0 alias mine", "link property add dev hpn0 altname mine0"),
        # The master sets MAC, MTU and addresses of its ports: bond-cni, and KubeVirt's bridge, which renames it too.
        ("link add br9 type bridge", "link set hpn0 mtu 1400 master br9", "address flush dev hpn0"),
        (
            "address flush dev hpn0",
            "link set hpn0 down",
            f"link set hpn0 name hpn0-nic address {OTHER_MAC}",
            "link add k6t-hpn0 type bridge",
            "link set hpn0-nic up master k6t-hpn0",
            "link add hpn0 type bridge",
        ),
    ],
)
def test_what_others_may_do(host: Host, pod: Pod, commands: tuple[str, ...]) -> None:
    passes(host, pod, host.conf(), in_pod(*commands))


def test_a_port_of_the_pods_bridge(host: Host, pod: Pod) -> None:
    """CHECK still reports a port that carries nothing, and one that another interface only has the name of."""
    bridged = in_pod("link add br9 type bridge", "link set hpn0 master br9", "link set hpn0 down")
    caught(host, pod, host.conf(), bridged, "hpn0 is down")


def test_another_name_outside_a_bridge(host: Host, pod: Pod) -> None:
    renamed = in_pod("link set hpn0 down", "link set hpn0 name other0", "link set other0 up")
    caught(host, pod, host.conf(), renamed, "is not the macvlan that ADD made")


@pytest.mark.parametrize("mode", ["l2", "l3", "l3s"])
def test_arp_of_an_ipvlan(host: Host, pod: Pod, ipvlan: str, mode: str) -> None:
    """A routing ipvlan has no ARP."""
    conf = host.conf(kind=ipvlan, mode=mode)
    change = in_pod(f"link set hpn0 arp {'off' if mode == 'l2' else 'on'}")
    caught(host, pod, conf, change, "hpn0 has ARP " + ("off" if mode == "l2" else "on"))


def test_vrf(host: Host, pod: Pod) -> None:
    """CHECK passes after the chained plugin vrf moved the interface into a VRF, and its routes into the VRF's table."""
    if pod.run("ip", "link", "add", "blue", "type", "vrf", "table", "10").returncode:
        pytest.skip("this kernel has no vrf; runs in the lab")
    conf = host.conf()
    conf["ipam"]["routes"] = [{"dst": "10.60.0.0/16"}]
    commands = (
        "link set blue up",
        "link set hpn0 master blue",
        "route add 10.60.0.0/16 via 10.56.0.1 dev hpn0 vrf blue",
    )
    passes(host, pod, conf, in_pod(*commands))


@pytest.mark.parametrize("key", ["policyRouting", "multiRail"])
def test_tables_in_a_vrf(host: Host, pod: Pod, key: str) -> None:
    """Linux removes the routes of all tables when the interface enters a VRF, and CHECK names the VRF.  CHECK passes,
    and packets leave by the interface, if the pod adds the routes again."""
    if pod.run("ip", "link", "add", "blue", "type", "vrf", "table", "10").returncode:
        pytest.skip("this kernel has no vrf; runs in the lab")
    conf = host.conf(**{key: True})
    result = host.ok("ADD", pod, conf)
    in_pod("link set blue up", "link set hpn0 master blue")(host, pod, result)
    error = host.refused("CHECK", pod, conf | {"prevResult": result})
    assert error["code"] == 107
    assert "in table 100 is lost, since hpn0 is in the VRF blue; add it again in the pod" in error["msg"]
    for family in "-4", "-6":
        assert pod.ip(family, "route", "show", "table", "100") == []
    for network, way in TABLES.items():
        pod.ip("route", "add", network, *way.split(), "dev", "hpn0", "table", "100")
    assert host.checked(pod, conf, result).exit_code == 0
    (way,) = pod.ip("route", "get", "203.0.113.9", "from", "10.56.0.2")
    assert (way["dev"], way["gateway"], way["table"]) == ("hpn0", "10.56.0.1", "100")


def test_a_record_that_does_not_know_the_mtu(host: Host, pod: Pod) -> None:
    """CHECK compares no MTU if neither the record of an older version nor the result before 1.1.0 has one."""
    conf = host.conf(cniVersion="1.0.0")
    result = host.ok("ADD", pod, conf)
    host.rewrite(host.record(pod), result=result)
    pod.ip("link", "set", "hpn0", "mtu", "1300")
    assert host.checked(pod, conf, result).exit_code == 0
