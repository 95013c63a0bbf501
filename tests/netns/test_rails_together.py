"""One ADD attaches all rails that the configuration lists, or none; DEL, CHECK, GC and STATUS know them all."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drawn
import pytest
from netns.test_claimed_otherwise import lost
from support import chained
from support.killing import killed_at
from support.listed_rails import ATTACHED, RAILS, SUBNETS, addresses, conf, gc
from support.topology import PROGRAMS, Host, Pod, ip

from cni import collect


@pytest.fixture(autouse=True)
def second_rail(host: Host) -> None:
    chained.add_rails()


def test_attaches_and_detaches(host: Host, pod: Pod) -> None:
    before = host.picture(pod)
    result = host.ok("ADD", pod, conf(host))
    assert addresses(pod) == ATTACHED
    masters = {i["ifname"]: i["ifindex"] for i in ip("link")}
    links = [pod.link(name) or {} for name in ("hpn0", "hpn1")]
    assert [link["link_index"] for link in links] == [masters[name] for name in RAILS]
    assert [(one["name"], one["mac"], one["sandbox"]) for one in result["interfaces"]] == [
        (link["ifname"], link["address"], pod.path) for link in links
    ]
    assert [(one["interface"], one["address"], one["gateway"]) for one in result["ips"]] == [
        (0, "10.56.0.2/24", "10.56.0.1"),
        (0, "fd00:56::2/64", "fd00:56::1"),
        (1, "10.57.0.2/24", "10.57.0.1"),
        (1, "fd00:57::2/64", "fd00:57::1"),
    ]
    assert host.checked(pod, conf(host), result).exit_code == 0
    assert host.ok("STATUS", None, conf(host), CNI_IFNAME="") == {}
    host.ok("DEL", pod, conf(host))
    assert host.picture(pod) == before
    host.ok("DEL", pod, conf(host))


def test_one_range_for_all(host: Host, pod: Pod) -> None:
    """A range that all rails share gives each an address of its own.  They may have the same routes."""
    flat = conf(host)
    flat["ipam"] = {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "routes": [{"dst": "10.0.0.0/8"}]}
    result = host.ok("ADD", pod, flat | {"multiRail": True})
    assert addresses(pod) == {"hpn0": {"10.56.0.2/24"}, "hpn1": {"10.56.0.3/24"}}
    assert result["routes"] == [{"dst": "10.0.0.0/8"}]
    assert host.checked(pod, flat | {"multiRail": True}, result).exit_code == 0
    host.ok("DEL", pod, flat)
    assert (pod.links(), host.state_files()) == (set(), set())


@pytest.mark.parametrize(
    ("ifname", "names"), [("net1", {"net1", "net2"}), ("rdma", {"rdma", "rdma1"}), ("hpn9", {"hpn9", "hpn10"})]
)
def test_names_count_on(host: Host, pod: Pod, ifname: str, names: set[str]) -> None:
    result = host.ok("ADD", pod, conf(host), CNI_IFNAME=ifname)
    assert pod.links() == names
    assert host.checked(pod, conf(host), result, CNI_IFNAME=ifname).exit_code == 0
    host.ok("DEL", pod, conf(host), CNI_IFNAME=ifname)
    assert (pod.links(), host.state_files()) == (set(), set())


def test_after_another_plugin(host: Host, pod: Pod) -> None:
    """In a chain, the earlier plugin's result stays, and the indexes of our addresses follow it."""
    result = host.ok("ADD", pod, conf(host, prevResult=chained.PREVIOUS))
    assert [one["name"] for one in result["interfaces"]] == ["eth0", "hpn0", "hpn1"]
    assert [one["interface"] for one in result["ips"]] == [0, 1, 1, 2, 2]
    assert host.checked(pod, conf(host), result).exit_code == 0


def test_a_repeated_add(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, conf(host))
    error = host.refused("ADD", pod, conf(host))
    assert (error["code"], "its rails are attached already; send DEL first" in error["msg"]) == (100, True)
    # The rails are numbered on, so these two requests of one network meet at hpn1.
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host), CNI_IFNAME="hpn1")
    assert (
        error["code"],
        "hpn1: attached already; send DEL first, or choose names that do not meet" in error["msg"],
    ) == (100, True)
    assert host.picture(pod) == before
    pod.ip("link", "delete", "hpn1")
    host.ok("ADD", pod, conf(host))
    assert pod.links() == set(ATTACHED)
    host.ok("DEL", pod, conf(host))
    assert host.state_files() == set()


def test_requested_addresses(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """Each goes to the rail that has its range; with align, one decides for all rails."""
    for asked in (["10.57.0.9"], ["10.56.0.9", "10.57.0.9/24", "fd00:56:0::9"], ["10.56.0.9,10.57.0.9", ""]):
        host.ok("ADD", pod, conf(host, runtimeConfig={"ips": asked}))
        assert {a for found in addresses(pod).values() for a in found} >= {"10.56.0.9/24", "10.57.0.9/24"}
        host.ok("DEL", pod, conf(host))
    free = conf(host, ipam={"align": False})
    host.ok("ADD", pod, free, CNI_ARGS="IP=10.57.0.9")
    assert "10.56.0.9/24" not in pod.addresses("hpn0")
    assert "10.57.0.9/24" in pod.addresses("hpn1")
    other = make_pod()
    for asked, code, part in (
        (["10.99.0.9"], 102, "10.99.0.9 is of no rail"),
        (["10.57.0.9"], 102, "10.57.0.9 is held by hpn1"),
        (["10.56.0.1"], 102, "10.56.0.1"),
    ):
        error = host.refused("ADD", other, free | {"runtimeConfig": {"ips": asked}})
        assert (error["code"], part in error["msg"]) == (code, True), error
        assert other.links() == set()
    error = host.refused("ADD", other, conf(host, runtimeConfig={"ips": ["10.56.0.9", "10.57.0.8"]}))
    assert error["code"] == 102
    host.ok("DEL", pod, free)
    assert host.state_files() == set()


def test_the_device_that_multus_adds(host: Host, pod: Pod) -> None:
    """Multus hands on one device of the network's resource, and copies its file to all interfaces of the result."""
    file = host.tmp_path / "devinfo"
    multus = {"deviceID": "0000:01:10.0", "pciBusID": "0000:01:10.0"}
    runtime = {"deviceID": "0000:01:10.0", "CNIDeviceInfoFile": str(file)}
    host.ok("ADD", pod, conf(host, **multus, runtimeConfig=runtime))
    assert addresses(pod) == ATTACHED
    assert not file.exists()


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (
        {"rails": []},
        7,
        'rails [] is not a list of interfaces or resources; list one for each rail, as in ["rail0", "rail1"]',
    ),
    ({"rails": "rail0"}, 7, 'rails "rail0" is not a list of interfaces'),
    ({"rails": ["rail0", 1]}, 7, "is not a list of interfaces"),
    ({"rails": ["rail0", "rail1", "rail0"]}, 7, "rails: 'rail0' and 'rail0' are the same master, 'rail0'"),
    ({"rails": ["rail0", "r:l"]}, 7, 'master "r:l": cannot name an interface'),
    ({"rails": ["rail0", "absent"]}, 101, "absent"),
    ({"rails": ["rail0", "rail1", "rail2"]}, 101, "rail2"),
    ({"master": "rail0"}, 7, 'master "rail0" beside rails'),
    ({"pf": "rail0"}, 7, 'pf "rail0" beside rails'),
    ({"linkInContainer": True}, 7, "linkInContainer true beside rails"),
    ({"mac": "02:00:00:00:00:07"}, 7, 'mac "02:00:00:00:00:07" beside rails: 2 interfaces cannot have one mac'),
    ({"runtimeConfig": {"mac": "02:00:00:00:00:07"}}, 7, "2 interfaces cannot have one mac"),
    ({"policyRouting": {"table": 7}}, 7, "policyRouting.table 7 beside rails"),
    ({"rdma": {"name": "mlx5_0"}}, 7, 'rdma.name "mlx5_0" beside rails'),
    ({"ipam": {"rails": SUBNETS[:1], "align": False}}, 7, "has master rail1, and the rails are master rail0"),
    (
        {"ipam": {"rails": [SUBNETS[0], SUBNETS[1] | {"subnet": "10.57.0.0/32"}]}},
        103,
        "no host number is free on all of",
    ),
    ({"mtuu": 1}, 2, "mtuu"),
]


@pytest.mark.parametrize(("keys", "code", "part"), REFUSED, ids=[json.dumps(keys)[:60] for keys, *_ in REFUSED])
def test_refused_without_a_trace(host: Host, pod: Pod, keys: dict[str, Any], code: int, part: str) -> None:
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host, **keys))
    assert (error["code"], part in error["msg"]) == (code, True), error
    assert host.picture(pod) == before


def test_one_interface_by_two_names(host: Host, pod: Pod) -> None:
    ip("link", "property", "add", "dev", "rail0", "altname", "enp59s0f0np0")
    error = host.refused("ADD", pod, conf(host, rails=["rail0", "enp59s0f0np0"]))
    assert (error["code"], "'rail0' and 'enp59s0f0np0' are the same master" in error["msg"]) == (7, True), error


def test_ips_without_a_rail(host: Host, pod: Pod) -> None:
    flat = conf(host, runtimeConfig={"ips": ["10.56.0.9"]})
    flat["ipam"] = {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}
    error = host.refused("ADD", pod, flat)
    assert (error["code"], "no range decides which rail an address is for; write ipam.rails" in error["msg"]) == (
        7,
        True,
    )


def test_a_name_that_is_too_long_or_taken(host: Host, pod: Pod) -> None:
    error = host.refused("ADD", pod, conf(host), CNI_IFNAME="a-long-name-999")
    assert (error["code"], "'a-long-name-1000', of rail rail1, 1 to 15 bytes" in error["msg"]) == (4, True), error
    pod.stranger("hpn1")
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host))
    assert (error["code"], error["details"]) == (100, "for rail rail1 as hpn1"), error
    assert host.picture(pod) == before


def test_a_rail_without_a_range(host: Host, pod: Pod) -> None:
    """The others give back what they were given."""
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host, ipam={"rails": SUBNETS[:1]}))
    assert (error["code"], "master rail1" in error["msg"], error["details"]) == (7, True, "for rail rail1 as hpn1")
    assert host.picture(pod) == before


def test_the_rail_that_is_down(host: Host, pod: Pod) -> None:
    """The error names the rail, and the others are undone."""
    ip("link", "set", "rail1", "down")
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host))
    assert (error["code"], "rail1" in error["msg"], "for rail rail1 as hpn1" in error["details"]) == (101, True, True)
    assert host.picture(pod) == before
    assert host.refused("STATUS", None, conf(host), CNI_IFNAME="")["code"] == 50


def test_check_finds_any_rail(host: Host, pod: Pod) -> None:
    result = host.ok("ADD", pod, conf(host))
    pod.ip("addr", "del", "10.57.0.2/24", "dev", "hpn1")
    assert "hpn1" in json.loads(host.checked(pod, conf(host), result).stdout)["msg"]
    host.ok("DEL", pod, conf(host))
    error = json.loads(host.checked(pod, conf(host), result).stdout)
    assert "its rails are not attached" in error["msg"], error


@pytest.mark.parametrize("present", [{}, {"rails": ["rail1", "gone"]}, {"rails": ..., "master": "rail0"}])
def test_gc_and_del_by_the_first_name(
    host: Host, pod: Pod, make_pod: Callable[[], Pod], present: dict[str, Any]
) -> None:
    """The runtime's list has the first interface only, and the configuration may have changed."""
    other = make_pod()
    for one in (pod, other):
        host.ok("ADD", one, conf(host))
    for one in (other, pod):
        host.ok("GC", None, gc(host, pod, other, **present), CNI_IFNAME="")
        assert len(one.links()) == 2
    host.ok("GC", None, gc(host, pod, **present), CNI_IFNAME="")
    assert (len(pod.links()), other.links()) == (2, set())
    host.ok("DEL", pod, conf(host, **present))
    assert (pod.links(), host.state_files()) == (set(), set())


def test_del_by_the_keys_that_multus_leaves(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, conf(host))
    left = {
        "cniVersion": "1.1.0",
        "name": "rail0",
        "type": "hpn",
        "ipam": {"type": "hpn-ipam"},
    }
    host.ok("DEL", pod, left)
    assert (pod.links(), host.state_files()) == (set(), set())


def test_a_lost_chain(host: Host, pod: Pod) -> None:
    """A file that names the rails and cannot be read is made anew from their records.  Without it, GC spares them."""
    host.ok("ADD", pod, conf(host))
    (file,) = host.state.glob("chains/*/*")
    text = file.read_text()
    for damage in (file.unlink, lambda: file.write_text("{")):
        damage()
        host.ok("GC", None, gc(host, pod), CNI_IFNAME="")
        assert len(pod.links()) == 2
        file.write_text(text)
    file.write_text("{")
    host.ok("DEL", pod, conf(host))
    assert pod.links() == set()
    assert {Path(name).parts[0] for name in host.state_files()} == {"quarantine"}


def test_gc_beside_a_chain_that_cannot_be_read(host: Host, make_pod: Callable[[], Pod]) -> None:
    """GC undoes the others, and spares its rails by their records."""
    unread, ended = make_pod(), make_pod()
    for pod in (unread, ended):
        host.ok("ADD", pod, conf(host))
    (file,) = host.state.glob(f"chains/*/{unread.name}*")
    for number in (errno.EIO, errno.EACCES):
        with lost(file, number):
            host.ok("GC", None, gc(host, unread), CNI_IFNAME="")
        assert (len(unread.links()), ended.links()) == (2, set())


def by_del(host: Host, pod: Pod) -> None:
    host.ok("DEL", pod, conf(host))


def by_a_new_add(host: Host, pod: Pod) -> None:
    reply = host.call("ADD", pod, conf(host))
    if reply.exit_code:
        assert '"code":100' in reply.stdout, reply.stdout
        host.ok("DEL", pod, conf(host))
        host.ok("ADD", pod, conf(host))
    assert {name: len(found) for name, found in addresses(pod).items()} == {"hpn0": 2, "hpn1": 2}
    host.ok("DEL", pod, conf(host))


def by_gc(host: Host, _pod: Pod) -> None:
    host.ok("GC", None, gc(host), CNI_IFNAME="")


@pytest.mark.parametrize("recover", [by_del, by_a_new_add, by_gc])
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC"])
def test_killed_at_every_step(host: Host, pod: Pod, command: str, recover: Callable[[Host, Pod], None]) -> None:
    """All rails or none are left after the next command, whenever the one before was killed."""
    for step in drawn.steps():
        if command != "ADD":
            host.ok("ADD", pod, conf(host))
        asked = host.request(command, pod, conf(host))
        if command == "GC":
            asked = host.request(command, None, gc(host), CNI_IFNAME="")
        killed = killed_at(step, asked)
        recover(host, pod)
        assert (pod.links(), host.state_files()) == (set(), set()), f"left after step {step}"
        if not killed:
            break
    assert step > 20


def test_a_dead_pod_is_swept(host: Host, make_pod: Callable[[], Pod]) -> None:
    dead, alive = make_pod(), make_pod()
    for pod in (dead, alive):
        host.ok("ADD", pod, conf(host))
    dead.gone()
    assert all(error is None for _, error in collect.sweep(host.state, PROGRAMS))
    assert {Path(name).name.partition(":")[0] for name in host.state_files()} == {alive.name}
    assert len(alive.links()) == 2


def test_a_damaged_record_of_a_living_pod(host: Host, pod: Pod) -> None:
    """GC spares a rail by its chain, which names it, whatever its record says."""
    host.ok("ADD", pod, conf(host))
    record = host.record(pod, "hpn1")
    for damaged in (record.read_text()[:-3], "{"):
        record.write_text(damaged)
        for _ in range(2):
            host.call("GC", None, gc(host, pod), CNI_IFNAME="")
            assert pod.links() == {"hpn0", "hpn1"}
    host.call("DEL", pod, conf(host))
    host.ok("DEL", pod, conf(host))
    assert pod.links() == set()


def test_requests_whose_names_meet(host: Host, pod: Pod) -> None:
    """DEL of the request that was refused leaves the rails of the other one."""
    single = conf(host, rails=..., master="rail1")
    for other in (conf(host), single):
        host.ok("ADD", pod, conf(host))
        assert host.refused("ADD", pod, other, CNI_IFNAME="hpn1")["code"] == 100
        host.ok("DEL", pod, other, CNI_IFNAME="hpn1")
        assert pod.links() == {"hpn0", "hpn1"}
        host.ok("DEL", pod, conf(host))
        assert (pod.links(), host.state_files()) == (set(), set())


def test_the_loser_of_two_at_once(host: Host, pod: Pod) -> None:
    """Its chain names an interface that the winner's ADD took; its DEL leaves that."""
    host.ok("ADD", pod, conf(host))
    (file,) = host.state.glob("chains/*/*:hpn0.json")
    own = json.loads(file.read_text())
    host.ok("DEL", pod, conf(host))
    host.ok("ADD", pod, conf(host), CNI_IFNAME="hpn1")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(own))
    host.ok("DEL", pod, conf(host))
    assert pod.links() == {"hpn1", "hpn2"}
    host.ok("DEL", pod, conf(host), CNI_IFNAME="hpn1")
    assert (pod.links(), host.state_files()) == (set(), set())


def test_an_address_of_a_rail_that_the_pod_lacks(host: Host, pod: Pod) -> None:
    before = host.picture(pod)
    for align in (False, True):
        one = conf(host, rails=["rail0"], ipam={"align": align}, runtimeConfig={"ips": ["10.57.0.9"]})
        error = host.refused("ADD", pod, one)
        assert (error["code"], "10.57.0.9: none of the pod's rails has its range" in error["msg"]) == (102, True), error
        assert host.picture(pod)[pod.name] == before[pod.name]
        assert host.state_files() == set()


def test_addresses_of_several_sets(host: Host, pod: Pod) -> None:
    """A rail with two sets of a family, and one with two ranges in a set."""
    sets = [[[{"subnet": f"10.{net + i}.0.0/24"}] for net in (50, 60)] for i in range(2)]
    rails = [{"master": rail, "ranges": ranges} for rail, ranges in zip(RAILS, sets, strict=True)]
    for asked in (["10.60.0.9"], ["10.61.0.9"], ["10.50.0.8", "10.60.0.9"]):
        host.ok("ADD", pod, conf(host, ipam={"rails": rails}, runtimeConfig={"ips": asked}))
        there = {address for found in addresses(pod).values() for address in found}
        assert {f"10.{60 + i}.0.9/24" for i in range(2)} <= there, asked
        host.ok("DEL", pod, conf(host))
    ranges = [[{"subnet": "10.51.0.0/30"}, {"subnet": "10.61.0.0/24"}]]
    rails[1]["ranges"] = ranges
    host.ok("ADD", pod, conf(host, ipam={"rails": rails, "align": False}, runtimeConfig={"ips": ["10.61.0.9"]}))
    assert "10.61.0.9/24" in pod.addresses("hpn1")


def test_the_other_arguments(host: Host, make_pod: Callable[[], Pod]) -> None:
    """Each rail has them, such as the sticky name, which keeps its addresses for the next pod."""
    sticky, found = conf(host, ipam={"sticky": 3600}), []
    for name in ("a", "b", "a"):
        pod = make_pod()
        host.ok("ADD", pod, sticky, CNI_ARGS=f"IgnoreUnknown=1;STICKY={name}")
        found.append(pod.addresses("hpn1"))
        host.ok("DEL", pod, sticky)
    assert found[0] == found[2] != found[1]


def test_too_many(host: Host, pod: Pod) -> None:
    error = host.refused("ADD", pod, conf(host, rails=[f"rail{n}" for n in range(65)]))
    assert (error["code"], "rails with 65 entries: a pod has at most 64 rails" in error["msg"]) == (7, True)
