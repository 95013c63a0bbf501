"""DEL in chain mode, of what the pod has changed, and of a damaged chain or record."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from netns.test_chain import add, delete, prepared_claims, refused
from netns.test_claimed_otherwise import lost
from support import chained, listed_rails
from support.chained import conf, variables
from support.topology import Host, Pod

__all__ = ["prepared_claims"]  # a fixture


def test_a_damaged_chain_is_found_by_its_records(host: Host, pod: Pod) -> None:
    chained.prepared(host, pod)
    add(host, pod)
    file = host.state / "chains/cluster" / f"{pod.name}:eth0.json"
    file.write_text(file.read_text()[:-20])
    delete(host, pod)
    assert pod.links() == set()
    assert [Path(name).parts[0] for name in host.state_files()] == ["quarantine"]


def test_a_damaged_record_of_one(host: Host, pod: Pod) -> None:
    """DEL reports it once, and undoes the others and what it finds of the damaged one."""
    chained.prepared(host, pod)
    add(host, pod)
    record = host.state / "attachments/net0" / f"{pod.name}:hpn0.json"
    record.write_text(record.read_text().replace('"mtu":0', '"mtu":1'))
    assert refused(host, "DEL", pod)["code"] == 108
    assert (pod.links(), host.leases()) == (set(), set())
    delete(host, pod)
    assert [Path(name).parts[0] for name in host.state_files()] == ["quarantine"]


def test_del_of_what_the_pod_changed(host: Host, pod: Pod) -> None:
    """DEL undoes a chain whose pod renamed, removed and moved links, with a stranger under a name or index of ours."""
    chained.prepared(host, pod)
    for commands, stay in (
        (["link set hpn0 down", "link set hpn0 name data0", "link add hpn0 type bridge"], {"hpn0"}),
        (["link set hpn1 address 02:00:00:00:00:77"], set[str]()),
        (["link set hpn0 group 7", "link set hpn1 group 7", "link add own group 7 type bridge"], {"own"}),
        (["link delete hpn1", "link add own index {index} type bridge"], {"own"}),
    ):
        add(host, pod)
        index = (pod.link("hpn1") or {})["ifindex"]
        for command in commands:
            pod.ip(*command.format(index=index).split())
        delete(host, pod)
        assert pod.links() == stay, commands
        assert all((pod.link(name) or {})["linkinfo"]["info_kind"] != "macvlan" for name in pod.links()), commands
        assert host.state_files() == set(), commands
        for name in pod.links():
            pod.ip("link", "delete", name)


def test_del_of_what_the_pod_stacked(host: Host, pod: Pod) -> None:
    """The kernel attaches it to the master, so it outlives the link, and may use the address of that link only."""
    chained.prepared(host, pod)
    add(host, pod)
    pod.ip("link", "add", "link", "hpn1", "name", "over1", "type", "macvlan")
    reply = host.call("DEL", pod, conf(host), **variables(pod))
    doubts = [line.partition(" of ")[0] for line in reply.log if "its addresses may be in use" in line]
    assert (reply.exit_code, doubts, pod.links()) == (0, ["hpn1"], {"over1"})


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_beside_a_record_that_cannot_be_read(host: Host, make_pod: Callable[[], Pod], number: int) -> None:
    """Another pod's keeps no pod from its end."""
    pod, other = make_pod(), make_pod()
    chained.prepared(host, pod)
    host.ok("ADD", other, host.conf(ipam={"type": "hpn-ipam", "subnet": "10.58.0.0/24"}))
    add(host, pod)
    with lost(host.record(other), number):
        delete(host, pod)
    assert pod.links() == set()
    assert {Path(name).name.partition(":")[0] for name in host.state_files()} == {other.name}


def test_damaged_rails_take_no_claims(host: Host, pod: Pod) -> None:
    """Rails whose ADD was killed before its first record, and whose file was damaged then, are nothing to undo."""
    chained.prepared(host, pod)
    add(host, pod)
    rails = host.state / "chains/rail0" / f"{pod.name}:net1.json"
    rails.parent.mkdir()
    rails.write_text("{")
    host.ok("DEL", pod, listed_rails.conf(host), CNI_IFNAME="net1")
    assert (pod.links(), rails.exists()) == ({"hpn0", "hpn1"}, False)
    delete(host, pod)
    assert [Path(name).parts[0] for name in host.state_files()] == ["quarantine"]
