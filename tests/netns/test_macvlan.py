"""macvlan in a pod: every key of the reference plugin, and hpn's own."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.namespaces import with_both
from support.topology import Host, Pod, ip, until

from base.kernel import rtnl
from base.kernel.rules import RTM_GETROUTE
from base.state import durable

MAC = "02:00:00:00:00:0%d"


def attached(host: Host, pod: Pod, conf: dict[str, Any] | None = None, **environ: str) -> dict[str, Any]:
    """Run ADD, compare its result with ``ip``, and return the interface from there."""
    result = host.ok("ADD", pod, conf, **environ)
    link = pod.link(environ.get("CNI_IFNAME", "hpn0"))
    assert link
    assert result["interfaces"][-1] == {
        "name": link["ifname"],
        "mac": link["address"],
        "mtu": link["mtu"],
        "sandbox": pod.path,
    }
    assert {"UP", "LOWER_UP"} <= set(link["flags"])
    return link


@with_both
def test_attaches_and_detaches(host: Host, pod: Pod) -> None:
    result = host.ok("ADD", pod)
    link = pod.link()
    assert link
    assert result == {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "hpn0", "mac": link["address"], "mtu": 1500, "sandbox": pod.path}],
        "ips": [
            {"interface": 0, "address": "10.56.0.2/24", "gateway": "10.56.0.1"},
            {"interface": 0, "address": "fd00:56::2/64", "gateway": "fd00:56::1"},
        ],
    }
    assert link["linkinfo"]["info_kind"] == "macvlan"
    assert link["linkinfo"]["info_data"]["mode"] == "bridge"
    assert {"UP", "LOWER_UP"} <= set(link["flags"])
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert host.checked(pod, host.conf(), result).exit_code == 0

    assert host.ok("DEL", pod) == {}
    assert pod.links() == set()
    assert host.state_files() == set()
    assert {i["ifname"] for i in ip("link")} == {"lo", "rail0", "fabric"}


@with_both
@pytest.mark.parametrize("mode", ["bridge", "private", "vepa", "passthru"])
def test_mode(host: Host, pod: Pod, mode: str) -> None:
    result = host.ok("ADD", pod, host.conf(mode=mode))
    link = pod.link()
    assert link
    assert link["linkinfo"]["info_data"]["mode"] == mode
    assert result["interfaces"][0]["mac"] == link["address"]
    assert host.checked(pod, host.conf(mode=mode), result).exit_code == 0
    host.ok("DEL", pod)
    assert pod.links() == set()


def test_passthru_has_the_masters_mac(host: Host, pod: Pod) -> None:
    (master,) = ip("link", "show", "rail0")
    assert attached(host, pod, host.conf(mode="passthru"))["address"] == master["address"]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ((1, 2, 3, 4), 1),  # runtimeConfig precedes all others
        ((0, 2, 3, 4), 2),  # args.cni precedes CNI_ARGS, as CONVENTIONS.md demands
        ((0, 0, 3, 4), 3),  # CNI_ARGS, deprecated, still applies to this attachment only
        ((0, 0, 0, 4), 4),  # the network's own MAC comes last
    ],
)
def test_mac_comes_from_the_most_specific_place(
    host: Host, pod: Pod, sources: tuple[int, int, int, int], expected: int
) -> None:
    runtime, args, environ, conf = (MAC % n if n else "" for n in sources)
    link = attached(
        host,
        pod,
        host.conf(runtimeConfig={"mac": runtime}, args={"cni": {"mac": args}}, mac=conf or ...),
        CNI_ARGS=f"IgnoreUnknown=1;MAC={environ}",
    )
    assert link["address"] == MAC % expected


def test_a_random_mac_is_locally_administered_unicast(host: Host, pod: Pod) -> None:
    macs = {attached(host, pod, CNI_IFNAME=f"hpn{n}")["address"] for n in range(5)}
    assert len(macs) == 5
    assert {int(mac[:2], 16) & 0b11 for mac in macs} == {0b10}


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("02-00-00-00-00-AB", "02:00:00:00:00:ab"),  # the IEEE's form
        ("0200.0000.00ab", "02:00:00:00:00:ab"),  # the form of switches
        ("02:00:00:00:00:AB", "02:00:00:00:00:ab"),  # capitals
    ],
)
def test_any_spelling_of_a_mac(host: Host, pod: Pod, text: str, mac: str) -> None:
    conf = host.conf(mac=text)
    assert attached(host, pod, conf)["address"] == mac
    assert host.checked(pod, conf, host.ok("DEL", pod) or host.ok("ADD", pod, conf)).exit_code == 0


@pytest.mark.parametrize(
    ("master", "asked", "mtu"),
    [
        (9000, ..., 9000),  # by default the master's
        (9000, 0, 9000),  # 0 is the default, too, as in the reference plugin
        (9000, 4200, 4200),  # any smaller one
        (9000, 9000, 9000),  # the highest possible one
        (1500, 1280, 1280),  # the lowest that carries IPv6
    ],
)
def test_mtu(host: Host, pod: Pod, master: int, asked: Any, mtu: int) -> None:
    ip("link", "set", "rail0", "mtu", str(master))
    assert attached(host, pod, host.conf(mtu=asked))["mtu"] == mtu


def test_an_mtu_below_ipv6s(host: Host, pod: Pod) -> None:
    """The kernel makes no IPv6 device, whose settings ADD would write."""
    conf = host.conf(mtu=1200)
    error = host.refused("ADD", pod, conf)
    assert (error["code"], error["msg"][:54]) == (7, "mtu 1200: the addresses include IPv6, which needs 1280")
    conf = host.conf(mtu=1200, ipam={"type": "hpn-ipam", "subnet": "10.57.0.0/24"})
    result = host.ok("ADD", pod, conf)
    assert (pod.link() or {})["mtu"] == 1200
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)


def test_bcqueuelen(host: Host, pod: Pod) -> None:
    assert attached(host, pod, host.conf(bcqueuelen=2345))["linkinfo"]["info_data"]["bcqueuelen"] == 2345


def test_master_inside_the_pod(host: Host, pod: Pod) -> None:
    pod.ip("link", "add", "inner0", "type", "veth", "peer", "name", "inner1")
    for name in ("inner0", "inner1"):
        pod.ip("link", "set", name, "up")
    conf = host.conf(master="inner0", linkInContainer=True)
    result = host.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    assert link["link"] == "inner0"
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert pod.links() == {"inner0", "inner1"}


def test_the_host_has_an_interface_of_that_name(host: Host, pod: Pod) -> None:
    """ADD succeeds although the host has an interface of that name, which older kernels compared with the link's new
    name."""
    ip("link", "add", "hpn0", "type", "bridge")
    before = ip("-d", "link", "show", "hpn0")
    result = host.ok("ADD", pod)
    assert pod.links() == {"hpn0"}
    assert host.checked(pod, host.conf(), result).exit_code == 0
    host.ok("DEL", pod)
    assert pod.links() == set()
    assert ip("-d", "link", "show", "hpn0") == before


def test_the_default_route_is_asked_for_once(
    host: Host, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    ip("route", "replace", "default", "dev", "rail0")
    dump, asked = rtnl.Rtnl.dump, list[int]()

    def counting(self: rtnl.Rtnl, kind: int, body: bytes) -> Iterator[bytes]:
        asked.append(kind)
        return dump(self, kind, body)

    monkeypatch.setattr(rtnl.Rtnl, "dump", counting)

    def questions(**keys: Any) -> int:
        asked.clear()
        host.ok("ADD", make_pod(), host.conf(**keys))
        return asked.count(RTM_GETROUTE)

    assert questions(kind="macvlan", master=...) == questions(kind="macvlan") + 1


@with_both
@pytest.mark.parametrize("mode", ["bridge", "private"])
def test_two_pods_on_one_master(host: Host, make_pod: Callable[[], Pod], mode: str) -> None:
    """In mode bridge the pods reach each other, and in mode private the kernel separates them.  A successful ping
    therefore went through the macvlans."""
    one, two = make_pod(), make_pod()
    # Without duplicate detection, which would fail the pings of the first second.
    host.ok("ADD", one, host.conf(mode=mode, dad="off"))
    host.ok("ADD", two, host.conf(mode=mode, dad="off"))
    assert two.addresses() == {"10.56.0.3/24", "fd00:56::3/64"}
    patience = "60" if mode == "bridge" else "0.5"  # nothing comes in mode private
    reach = [one.ping(address, "-W", patience) for address in ("10.56.0.3", "fd00:56::3")]
    assert reach == [mode == "bridge"] * 2


def test_mac_in_use_on_the_master(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD fails and undoes everything if the MAC is in use, which the kernel notices only when the second link goes
    up."""
    one, two = make_pod(), make_pod()
    host.ok("ADD", one, host.conf(mac=MAC % 7))
    before = host.picture(one, two)
    error = host.refused("ADD", two, host.conf(mac=MAC % 7))
    assert error["code"] == 105
    assert MAC % 7 in json.dumps(error)
    assert host.picture(one, two) == before


def test_usable_after_the_masters_carrier_comes_back(host: Host, pod: Pod) -> None:
    ip("addr", "add", "10.56.0.1/24", "dev", "fabric")
    ip("addr", "add", "fd00:56::1/64", "dev", "fabric", "nodad")
    host.ok("ADD", pod)
    ip("link", "set", "fabric", "down")
    ip("link", "set", "fabric", "up")
    ip("addr", "replace", "fd00:56::1/64", "dev", "fabric", "nodad")
    assert until(lambda: pod.ping("10.56.0.1", "-W", "1"))
    assert until(lambda: pod.ping("fd00:56::1", "-W", "1"))


@pytest.mark.parametrize("value", ["1", "true", "TRUE"])
def test_our_own_namespace_if_the_operator_says_so(host: Host, pod: Pod, value: str) -> None:
    """ADD accepts the host's own namespace on request, as libcni's plugins do for a pod with the host's network."""
    own = {"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": value}
    before = {i["ifname"] for i in ip("link")}
    host.ok("ADD", pod, **own)
    assert {i["ifname"] for i in ip("link")} == before | {"hpn0"}
    host.ok("DEL", pod, **own)
    assert {i["ifname"] for i in ip("link")} == before


def strange_macvlan(pod: Pod) -> dict[str, Any]:
    """A macvlan over rail0 that someone else created, as ``ip -d link`` shows it."""
    ip("link", "add", "link", "rail0", "name", "hpn0", "netns", pod.name, "type", "macvlan", "mode", "bridge")
    link = pod.link()
    assert link
    return link


def test_a_macvlan_that_took_the_name_meanwhile(host: Host, pod: Pod) -> None:
    """ADD fails and leaves another macvlan under its name alone, which differs from its own only by the MAC."""
    with host.meanwhile(pod, host.conf()) as reply:
        stranger = strange_macvlan(pod)
    assert json.loads(reply.result().stdout)["code"] == 100
    assert pod.link() == stranger
    assert host.state_files() == set()


@pytest.mark.parametrize(("command", "code"), [("ADD", 100), ("DEL", 0), ("GC", 0)])
def test_a_macvlan_of_the_name_that_an_interrupted_add_wanted(host: Host, pod: Pod, command: str, code: int) -> None:
    """Recovery leaves a macvlan under the name alone, because the record of the killed ADD has no index yet."""
    with host.meanwhile(pod, host.conf()) as reply:
        record = durable.read(host.record(pod))
        stranger = strange_macvlan(pod)
    assert reply.result().exit_code
    assert record
    durable.write(host.record(pod), record)  # the state after a kill of ADD here
    answer = host.call(command, pod, host.conf() | {"cni.dev/valid-attachments": []}).stdout
    assert (json.loads(answer)["code"] if answer else 0) == code
    assert pod.link() == stranger
    assert host.state_files() == set()
