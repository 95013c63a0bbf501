"""Kind host-device with software interfaces; tests/lab/test_host_device.py covers hardware."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drawn
import pytest
from support.killing import killed_at
from support.offloads import offloads, switch, switch_in
from support.recovery import Recovery, by_a_new_add, by_del, by_gc
from support.shipped import CONF, requests
from support.topology import Host, Pod, ip, until

from base.state import durable

IFF_MULTICAST = 0x1000
NAME, MAC = "eth9", "02:00:00:00:09:01"


def state(name: str = NAME) -> dict[str, Any]:
    """The interface as ``ip -d link`` and ``ethtool -k`` show it on the host, with its ifindex."""
    (link,) = ip("-d", "link", "show", "dev", name)
    return {key: value for key, value in link.items() if key not in ("operstate", "flags")} | {
        "flags": set(link["flags"]) - {"LOWER_UP", "NO-CARRIER"},
        "offloads": offloads(name),
    }


def without_numbers(host: Host, pod: Pod) -> None:
    """Make the record one of an earlier version: without a link's numbers, offloads, and flag MULTICAST."""
    body = durable.read(host.record(pod))
    assert body is not None
    home = body["link"]["home"]
    old = {key: home[key] for key in home.keys() - {"numbers", "offloads"}}
    old["flags"] &= ~IFF_MULTICAST
    assert len(old) == len(home) - 2
    host.rewrite(host.record(pod), link=body["link"] | {"home": old})


def is_here(name: str = NAME) -> bool:
    return name in {link["ifname"] for link in ip("link")}


@pytest.fixture(params=["veth", "macvlan"])
def eth9(request: pytest.FixtureRequest, host: Host) -> dict[str, Any]:
    """An interface of the host with every setting that a person may change."""
    over, peer = ((), ("peer", "name", "far9")) if request.param == "veth" else (("link", "rail0"), ())
    ip("link", "add", *over, "name", NAME, "address", MAC, "type", request.param, *peer)
    ip("link", "set", NAME, "mtu", "1400", "txqlen", "77", "alias", "rail nine", "promisc", "on", "up")
    ip("link", "property", "add", "dev", NAME, "altname", "storage9")
    if request.param == "veth":  # a macvlan's offloads are its master's
        switch(NAME, "rx-udp-gro-forwarding")
    return state()


def conf(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(**{"kind": "host-device", "master": ..., "device": NAME} | keys)


def test_attach_check_detach(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    before = host.picture(pod)
    result = host.ok("ADD", pod, conf(host))
    assert not is_here()
    link = pod.link()
    assert link
    assert (link["address"], link["mtu"], "UP" in link["flags"]) == (MAC, 1400, True)
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert result["interfaces"] == [{"name": "hpn0", "mac": MAC, "mtu": 1400, "sandbox": pod.path}]
    assert host.checked(pod, conf(host), result).exit_code == 0
    host.ok("DEL", pod, conf(host))
    assert state() == eth9
    assert host.picture(pod) == before


@pytest.mark.parametrize("altname", ["storage9", "enP60932p0s2f0np0v3", "a" * 127])
@pytest.mark.parametrize("by", ["name", "altname"])
@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_an_altname(host: Host, pod: Pod, eth9: dict[str, Any], altname: str, by: str) -> None:
    """systemd gives altnames that are longer than a name can be."""
    if altname != "storage9":
        ip("link", "property", "add", "dev", NAME, "altname", altname)
    before = state()
    keys = conf(host, device=NAME if by == "name" else altname)
    assert host.ok("STATUS", None, keys, CNI_IFNAME="") == {}
    result = host.ok("ADD", pod, keys)
    assert pod.link()["altnames"] == before["altnames"]
    assert host.checked(pod, keys, result).exit_code == 0
    host.ok("DEL", pod, keys)
    assert state() == before


@pytest.mark.parametrize("key", [{"hwaddr": MAC.upper(), "device": ...}, {"device": NAME, "mtu": 1300}], ids=repr)
def test_keys(host: Host, pod: Pod, eth9: dict[str, Any], key: dict[str, Any]) -> None:
    host.ok("ADD", pod, conf(host, **key))
    link = pod.link()
    assert link
    assert (link["address"], link["mtu"]) == (MAC, key.get("mtu", 1400))
    host.ok("DEL", pod, conf(host, **key))
    assert state() == eth9


def test_whatever_the_pod_made_of_it(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "set", "hpn0", "down")
    for change in (("name", "mine0"), ("mtu", "900"), ("txqlen", "5"), ("alias", "x"), ("promisc", "off")):
        pod.ip("link", "set", "hpn0" if change[0] == "name" else "mine0", *change)
    pod.ip("link", "set", "mine0", "address", "02:00:00:00:09:99")
    pod.ip("link", "set", "mine0", "allmulticast", "on", "multicast", "off", "group", "7")
    pod.ip("link", "set", "mine0", "gso_max_size", "30000", "gso_max_segs", "100", "gro_max_size", "20000")
    pod.ip("link", "property", "add", "dev", "mine0", "altname", "alt0")
    if eth9["linkinfo"]["info_kind"] == "veth":
        switch_in(pod, "mine0", "tx-generic-segmentation", "rx-gro", "rx-udp-gro-forwarding")
    host.ok("DEL", pod, conf(host))
    assert state() == eth9
    assert host.state_files() == set()


@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
@pytest.mark.parametrize("multicast", ["on", "off"])
def test_a_record_that_does_not_know_the_numbers(host: Host, pod: Pod, eth9: dict[str, Any], multicast: str) -> None:
    """DEL leaves what an earlier version did not record as it is."""
    ip("link", "set", NAME, "multicast", multicast, "group", "7", "gso_max_segs", "100")
    before = state()
    host.ok("ADD", pod, conf(host))
    without_numbers(host, pod)
    pod.ip("link", "set", "hpn0", "mtu", "900", "allmulticast", "on")
    host.ok("DEL", pod, conf(host))
    assert state() == before


def test_hidden_in_a_namespace_of_the_pods_own(host: Host, make_pod: Callable[[], Pod], eth9: dict[str, Any]) -> None:
    pod, inner = make_pod(), make_pod()
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "set", "hpn0", "name", "mine0", "netns", inner.name)
    assert host.refused("CHECK", pod, conf(host, prevResult={"cniVersion": "1.1.0"}))["code"] == 107
    host.ok("DEL", pod, conf(host))
    assert inner.links() == set()
    assert state() == eth9


def test_a_stranger_under_our_name_and_mac(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """An interface that the pod created stays in the pod."""
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "mine0")
    pod.ip("link", "add", "hpn0", "address", MAC, "type", "bridge")
    host.ok("DEL", pod, conf(host))
    assert pod.links() == {"hpn0"}
    assert state() == eth9


def test_its_index_is_taken_on_the_host_meanwhile(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    host.ok("ADD", pod, conf(host))
    ip("link", "add", "other9", "index", str(eth9["ifindex"]), "type", "bridge")
    host.ok("DEL", pod, conf(host))
    assert state() | {"ifindex": 0} == eth9 | {"ifindex": 0}


def test_the_namespace_is_gone(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """DEL reports that the kernel removed the interface with its namespace, and releases everything else."""
    host.ok("ADD", pod, conf(host))
    pod.gone()
    until(lambda: not pod.path or not Path(pod.path).exists())
    reply = host.call("DEL", pod, conf(host), CNI_NETNS="")
    assert (reply.exit_code, host.state_files(), host.leases()) == (0, set(), set())
    assert "the host's interface eth9" in "".join(reply.log)
    assert not is_here()


def test_the_pod_has_deleted_the_hosts_interface(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """If the pod deleted the host's interface, or hid it completely, its addresses stay reserved."""
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "delete", "hpn0")
    reply = host.call("DEL", pod, conf(host))
    assert (reply.exit_code, host.state_files()) == (0, set())
    assert "was not found: the host's eth9 is neither in the pod" in "".join(reply.log)
    ip("link", "add", NAME, "type", "veth", "peer", "name", "far9")
    host.ok("ADD", pod, conf(host))
    assert pod.addresses() == {"10.56.0.3/24", "fd00:56::3/64"}


@pytest.mark.parametrize("recover", [by_del, by_gc, by_a_new_add])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_killed_at_every_step(host: Host, pod: Pod, eth9: dict[str, Any], command: str, recover: Recovery) -> None:
    for step in drawn.steps():
        if command == "DEL":
            host.ok("ADD", pod, conf(host))
        killed = killed_at(step, host.request(command, pod, conf(host)))
        recover(host, pod, conf(host))
        assert pod.links() == set(), f"it is in the pod after step {step}"
        assert state() == eth9, f"it is not as it was after step {step}"
        assert (host.state_files(), host.leases()) == (set(), set()), f"left after step {step}"
        if not killed:
            break
    assert step > 10


def test_another_attachment_has_it(host: Host, make_pod: Callable[[], Pod], eth9: dict[str, Any]) -> None:
    one, two = make_pod(), make_pod()
    host.ok("ADD", one, conf(host))
    before = host.picture(one, two)
    for keys in ({}, {"device": "storage9"}, {"device": ..., "hwaddr": MAC}):
        error = host.refused("ADD", two, conf(host, **keys))
        assert (error["code"], "belongs to" in error["msg"]) == (109, True)
    assert host.picture(one, two) == before
    assert host.refused("STATUS", None, conf(host))["code"] == 50
    host.ok("DEL", one, conf(host))
    host.ok("STATUS", None, conf(host))


def in_a_bridge() -> None:
    ip("link", "add", "br9", "type", "bridge")
    ip("link", "set", NAME, "master", "br9")


def with_an_address() -> None:
    ip("address", "add", "192.0.2.1/24", "dev", NAME)


def with_the_default_route() -> None:
    ip("route", "add", "default", "nexthop", "dev", "rail0", "nexthop", "dev", NAME)


def with_a_link_of_the_host_over_it() -> None:
    ip("link", "add", "over9", "link", NAME, "type", "macvlan")


@pytest.mark.parametrize(
    ("use", "device", "refusal"),
    [
        (None, "lo", (7, "belongs to its namespace")),
        (None, "eth99", (101, "is not an interface of the host")),
        (in_a_bridge, NAME, (101, "'eth9' is a port of the host's 'br9'; name another interface")),
        (with_an_address, NAME, (7, "has 192.0.2.1/24 on the host")),
        (with_the_default_route, NAME, (7, "the host's default route uses 'eth9'")),
        (with_a_link_of_the_host_over_it, NAME, (7, "carries over9 of the host")),
    ],
)
@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_what_the_host_cannot_spare(
    host: Host, pod: Pod, eth9: dict[str, Any], use: Callable[[], None] | None, device: str, refusal: tuple[int, str]
) -> None:
    if use:
        use()
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host, device=device))
    code, says = refusal
    assert (error["code"], says in error["msg"]) == (code, True), error
    error = host.refused("STATUS", None, conf(host, device=device))
    assert (error["code"], says in error["msg"]) == (50, True), error
    assert host.picture(pod) == before


@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_several_interfaces_of_one_mac(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    ip("link", "add", "eth8", "address", MAC, "type", "bridge")
    error = host.refused("ADD", pod, conf(host, device=..., hwaddr=MAC))
    assert (error["code"], "eth8, eth9; set device" in error["msg"]) == (7, True)


@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_the_master_of_another_attachment(host: Host, make_pod: Callable[[], Pod], eth9: dict[str, Any]) -> None:
    one, two = make_pod(), make_pod()
    host.ok("ADD", one, host.conf(master=NAME, mtu=1300))
    error = host.refused("ADD", two, conf(host))
    assert (error["code"], "is the master of" in error["msg"]) == (101, True)
    host.ok("DEL", one, host.conf(master=NAME, mtu=1300))
    host.ok("ADD", two, conf(host))


@pytest.mark.parametrize("altname", ["storage9", "enP60932p0s2f0np0v3"])
@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_an_altname_that_the_pod_has(host: Host, pod: Pod, eth9: dict[str, Any], altname: str) -> None:
    pod.ip("link", "add", "other", "type", "bridge")
    pod.ip("link", "property", "add", "dev", "other", "altname", altname)
    if altname != "storage9":
        ip("link", "property", "add", "dev", NAME, "altname", altname)
    before = state()
    error = host.refused("ADD", pod, conf(host))
    assert (error["code"], altname in error["msg"]) == (100, True)
    assert state() == before


@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_names_that_are_no_text(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """The interface comes home with altnames that are not text and a name that is not text, set by the pod."""
    host.ok("ADD", pod, conf(host))
    for words in (b"property add dev hpn0 altname \xff", b"property add dev hpn0 altname \xfe", b"set hpn0 name \xfd"):
        pod.ip("link", "set", "hpn0", "down")
        subprocess.run(["ip", "-netns", pod.name, "link", *words.split()], check=True)
    host.ok("DEL", pod, conf(host))
    assert state() == eth9


@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_add_that_fails(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """If the IPAM program fails, which runs after the move, ADD moves the interface home."""
    refusal = '{"code": 133, "msg": "no"}'
    path = host.program("script", f"cat >/dev/null; [ $CNI_COMMAND = DEL ] || {{ echo '{refusal}'; exit 1; }}")
    assert host.refused("ADD", pod, conf(host, ipam={"type": "script"}), CNI_PATH=path)["code"] == 133
    assert state() == eth9
    assert host.state_files() == set()


@pytest.mark.parametrize("eth9", ["veth"], indirect=True)
def test_inspect(host: Host, pod: Pod, eth9: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    from ctl.main import main  # noqa: PLC0415

    host.ok("ADD", pod, conf(host))
    main(["hpn", "inspect", "--json", "--state-dir", str(host.state)])
    (shown,) = json.loads(capsys.readouterr().out)["attachments"]
    assert (shown["kind"], shown["device"], shown["netdev"], shown["mac"]) == ("host-device", NAME, NAME, MAC)
    main(["hpn", "inspect", "--state-dir", str(host.state)])
    assert " host-device  eth9 " in capsys.readouterr().out


def test_the_example(host: Host, pod: Pod) -> None:
    """The unchanged example of conf/ works."""
    ip("link", "add", "storage0", "type", "veth", "peer", "name", "far0")
    (example,) = requests(CONF / "host-device.conflist")
    host.ok("ADD", pod, example)
    assert pod.addresses() == {"10.58.0.2/24", "fd00:58::2/64"}
    host.ok("DEL", pod, example)
    assert is_here("storage0")
