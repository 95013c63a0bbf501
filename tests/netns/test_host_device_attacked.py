"""Kind host-device with software interfaces that others mistake for their own, or present as the host's."""

from collections.abc import Callable
from typing import Any

import pytest
from netns.test_host_device import MAC, NAME, conf, is_here, state
from support.topology import Host, Pod, ip


@pytest.fixture
def eth9(host: Host) -> dict[str, Any]:
    ip("link", "add", NAME, "address", MAC, "type", "veth", "peer", "name", "far9")
    return state()


def test_its_index_is_taken_by_another_of_its_kind(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    host.ok("ADD", pod, conf(host))
    ip("link", "add", "other9", "index", str(eth9["ifindex"]), "type", "veth", "peer", "name", "far8")
    other = state("other9")
    host.ok("DEL", pod, conf(host))
    assert state("other9") == other
    assert state() | {"ifindex": 0} == eth9 | {"ifindex": 0}


def test_both_ends_of_a_pair_in_one_pod(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """Both interfaces come home: the peer of one that is home does not count as a link over it."""
    far = state("far9")
    second = conf(host, name="second", device="far9", ipam=...)
    host.ok("ADD", pod, conf(host))
    host.ok("ADD", pod, second, CNI_IFNAME="hpn1")
    host.ok("DEL", pod, conf(host))
    assert pod.links() == {"hpn1"}
    host.ok("DEL", pod, second, CNI_IFNAME="hpn1")
    assert (state(), state("far9")) == (eth9, far)


def test_a_link_of_the_pods_with_our_index(host: Host, make_pod: Callable[[], Pod], eth9: dict[str, Any]) -> None:
    """DEL distinguishes veths by their peers: the host's own comes home, and the pod's decoy stays."""
    pod, friend = make_pod(), make_pod()
    host.ok("ADD", pod, conf(host))
    link = pod.link()
    assert link
    pod.ip("link", "set", "hpn0", "netns", friend.name)
    decoy = ("hpn0", "index", str(link["ifindex"]), "address", MAC)
    pod.ip("link", "add", *decoy, "type", "veth", "peer", "name", "decoy0")
    host.ok("DEL", pod, conf(host))
    assert state() == eth9
    assert (pod.links(), friend.links()) == ({"hpn0", "decoy0"}, set())


def test_hidden_in_another_pod_by_one_that_is_gone(
    host: Host, make_pod: Callable[[], Pod], eth9: dict[str, Any]
) -> None:
    pod, friend = make_pod(), make_pod()
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "set", "hpn0", "netns", friend.name)
    pod.gone()
    host.ok("DEL", pod, conf(host), CNI_NETNS="")
    assert friend.links() == set()
    assert state() == eth9
    assert host.state_files() == set()


@pytest.mark.parametrize("kind", ["veth", "macvlan"])
def test_its_record_is_damaged(host: Host, pod: Pod, kind: str) -> None:
    """After damage to the record the interface comes home, although a link of that kind would otherwise be removed."""
    over, peer = ((), ("peer", "name", "far9")) if kind == "veth" else (("link", "rail0"), ())
    ip("link", "add", *over, "name", NAME, "address", MAC, "type", kind, *peer)
    host.ok("ADD", pod, conf(host))
    (record,) = host.state.glob("attachments/*/*.json")
    record.write_bytes(record.read_bytes()[:-40])
    assert host.refused("DEL", pod, conf(host))["code"] == 108
    host.ok("DEL", pod, conf(host))
    assert pod.links() == set()
    assert MAC in {link.get("address") for link in ip("link")}


def test_name_and_altname_are_taken_on_the_host_meanwhile(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """The name and the altname stay with their new owner.  The interface comes home under another name, which DEL and
    the next ADD report."""
    ip("link", "property", "add", "dev", NAME, "altname", "storage9")
    host.ok("ADD", pod, conf(host))
    ip("link", "add", NAME, "type", "bridge")
    ip("link", "property", "add", "dev", NAME, "altname", "storage9")
    deleted = host.call("DEL", pod, conf(host))
    assert deleted.exit_code == 0
    rename = f"ip link set was-{NAME} name {NAME}"
    assert rename in "".join(deleted.log)
    (home,) = (link for link in ip("-d", "link") if link.get("address") == MAC)
    assert home["ifindex"] == eth9["ifindex"]
    assert (home["mtu"], home["ifname"]) == (eth9["mtu"], f"was-{NAME}")
    assert host.state_files() == set()
    ip("link", "delete", NAME)
    refused = host.refused("ADD", pod, conf(host))
    assert (refused["code"], rename in refused["msg"]) == (101, True)
    ip(*rename.split()[1:])
    host.ok("ADD", pod, conf(host))
    host.ok("DEL", pod, conf(host))
    assert state() == eth9


def test_another_interfaces_name_is_not_kept(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """DEL does not keep the pod's name for the interface: it may belong to another one that comes home later."""
    host.ok("ADD", pod, conf(host))
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "eth8")
    ip("link", "add", NAME, "type", "bridge")
    host.ok("DEL", pod, conf(host))
    assert not is_here("eth8")
    assert state(f"was-{NAME}")["address"] == MAC
