"""ipvlan's own modes, and its master's MAC.  test_kinds.py covers the common behavior of ipvlan and macvlan."""

from collections.abc import Callable

import pytest
from support.topology import Host, Pod, ip, until

pytestmark = pytest.mark.usefixtures("ipvlan")


@pytest.mark.parametrize("mode", ["l2", "l3", "l3s"])
def test_mode(host: Host, pod: Pod, mode: str) -> None:
    conf = host.conf(kind="ipvlan", mode=mode)
    result = host.ok("ADD", pod, conf)
    link = pod.link()
    assert link
    assert link["linkinfo"]["info_data"]["mode"] == mode
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert pod.links() == set()


def test_mode_is_l2_if_not_given(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, host.conf(kind="ipvlan"))
    link = pod.link()
    assert link
    assert link["linkinfo"]["info_data"]["mode"] == "l2"


def test_has_the_masters_mac(host: Host, pod: Pod) -> None:
    result = host.ok("ADD", pod, host.conf(kind="ipvlan"))
    (master,) = ip("link", "show", "rail0")
    assert result["interfaces"][0]["mac"] == master["address"]


def test_another_mode_than_the_masters_other_children(host: Host, pod: Pod) -> None:
    """ADD refuses a second mode on a master: the kernel would change all children to the latest mode."""
    host.ok("ADD", pod, host.conf(kind="ipvlan", mode="l2"))
    error = host.refused("ADD", pod, host.conf(kind="ipvlan", mode="l3"), CNI_IFNAME="hpn1")
    assert error["code"] == 101, error
    assert pod.links() == {"hpn0"}


def test_check_sees_another_mode(host: Host, pod: Pod) -> None:
    conf = host.conf(kind="ipvlan", mode="l2")
    result = host.ok("ADD", pod, conf)
    pod.ip("link", "set", "hpn0", "type", "ipvlan", "mode", "l3")
    reply = host.checked(pod, conf, result)
    assert reply.exit_code
    assert "mode" in reply.stdout


def test_another_mode_once_the_others_are_gone(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD accepts another mode once the other attachments are gone, by DEL or with their pods and still in the
    journal."""
    one, two, three = make_pod(), make_pod(), make_pod()
    host.ok("ADD", one, host.conf(kind="ipvlan", mode="l2"))
    host.ok("ADD", two, host.conf(kind="ipvlan", mode="l2"))
    assert host.refused("ADD", three, host.conf(kind="ipvlan", mode="l3"))["code"] == 101
    host.ok("DEL", one)
    ip("netns", "delete", two.name)
    host.ok("ADD", three, host.conf(kind="ipvlan", mode="l3"))


@pytest.mark.parametrize("dad", ["quick", "wait", "optimistic", "off"])
def test_two_pods_over_one_master(host: Host, make_pod: Callable[[], Pod], dad: str) -> None:
    """Their link-local addresses differ although they have one MAC, so neither is a duplicate."""
    conf = host.conf(kind="ipvlan", dad=dad, ipam={"type": "hpn-ipam", "subnet": "fd00:56::/64"})
    pods = make_pod(), make_pod()
    results = [host.ok("ADD", pod, conf) for pod in pods]
    assert all(host.checked(pod, conf, result).exit_code == 0 for pod, result in zip(pods, results, strict=True))
    own = [{one["local"] for one in pod.ip("-6", "address", "show", "hpn0")[0]["addr_info"]} for pod in pods]
    assert (len(own[0] | own[1]), own[0] & own[1]) == (4, set())
    assert until(lambda: pods[1].ping("fd00:56::2"))


def test_one_host_number_on_two_rails(host: Host, make_pod: Callable[[], Pod]) -> None:
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    for name in ("rail1", "fabric1"):
        ip("link", "set", name, "up")
    masters = {"rail0": "10.56.0", "rail1": "10.57.0"}
    rails = [{"master": name, "subnet": f"{subnet}.0/24"} for name, subnet in masters.items()]
    ipam = {"type": "hpn-ipam", "rails": rails, "align": True}
    confs = [host.conf(kind="ipvlan", master=name, multiRail=True, ipam=ipam) for name in masters]
    pods = make_pod(), make_pod()
    for number, pod in enumerate(pods):
        for conf, subnet in zip(confs, masters.values(), strict=True):
            result = host.ok("ADD", pod, conf, CNI_IFNAME=conf["master"])
            assert [one["address"] for one in result["ips"]] == [f"{subnet}.{2 + number}/24"]
            assert host.checked(pod, conf, result, CNI_IFNAME=conf["master"]).exit_code == 0
    for subnet in masters.values():
        assert pods[0].ping(f"{subnet}.3", "-I", f"{subnet}.2")
