"""ADD probes an address before its first use if the block's leases are unknown.

The other host is the far end of the master, as in test_probe.py.  It stands for the pod of a node that was suspected,
and is alive.
"""

import json
from pathlib import Path
from typing import Any

import drawn
import pytest
from netns.test_probe import given, heard_on_the_wire, other_has
from support.cluster_nodes import Cluster
from support.killing import killed_at
from support.topology import Host, Pod

from base.protocol.spec import Reply, Request
from base.state.pod import open_netns
from cni.features.delegate import Ipam
from ipam.cluster import BLOCK, Machine, node_blocks
from ipam.cluster.node_blocks import NodeBlocks
from ipam.cluster.rules.documents import Block
from ipam.main import ask
from ipam.main import run as hpn_ipam

BOTH = [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]
_ARP = b"\x08\x06"


def earlier_claim(host: Host) -> str:
    """An earlier claim from that directory: the prefix of the directory's claims, and another suffix."""
    return f"{node_blocks.place_of(host.state / 'ipam' / 'net')}-earlier"


@pytest.fixture
def forgotten(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A store that assigns block 2 to this node, which does not know about it."""
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.node("node1").enter()
    block = Block("net", 2, 16, "node1", "uid of node1", earlier_claim(host))
    cluster.store.create(BLOCK, block.name, "net", block.to_json())
    return cluster


def conf(host: Host, **ipam: Any) -> dict[str, Any]:
    return host.conf(name="net", ipam={"type": "hpn-ipam", "ranges": BOTH, "cluster": {"backend": "etcd"}} | ipam)


def mine(host: Host) -> NodeBlocks:
    found = node_blocks.read(host.state / "ipam" / "net")
    assert found
    return found


def asked_for(frames: list[bytes], address: str) -> bool:
    wanted = bytes(map(int, address.split(".")))
    return any(frame[12:14] == _ARP and frame[38:42] == wanted for frame in frames)


def test_another_pod_has_the_address_still(host: Host, pod: Pod, forgotten: Cluster) -> None:
    mac = other_has("10.56.0.32/24")
    reply = host.call("ADD", pod, conf(host))
    assert reply.exit_code == 0, reply.stdout
    assert given(json.loads(reply.stdout)) == ["10.56.0.33/24", "fd00:56::20/64"]
    assert any(mac in line for line in reply.log)
    (block,) = mine(host).blocks
    assert (block.taken, block.tried) == (True, {"10.56.0.33", "fd00:56::20"})
    assert forgotten.owners() == {2: "node1"}


def test_only_the_first_use_is_probed_for(host: Host, pod: Pod, forgotten: Cluster) -> None:
    one = conf(host, ranges=[[{"subnet": "10.56.0.0/24"}]], cluster={"backend": "etcd", "blockSize": 1})
    block = Block("net", 50, 1, "node1", "uid of node1", earlier_claim(host))
    forgotten.store.create(BLOCK, block.name, "net", block.to_json())
    for document in list(forgotten.store.listed(BLOCK, "net")):
        if document.name == "net.2":
            assert forgotten.store.remove(document)
    with heard_on_the_wire() as frames:
        assert given(host.ok("ADD", pod, one)) == ["10.56.0.50/24"]
    assert asked_for(frames, "10.56.0.50")
    host.ok("DEL", pod, one)
    with heard_on_the_wire() as frames:
        assert given(host.ok("ADD", pod, one)) == ["10.56.0.50/24"]
    assert not asked_for([frame for frame in frames if frame[28:32] == bytes(4)], "10.56.0.50"), "no probe"
    assert forgotten.owners() == {50: "node1"}


def asked_early(host: Host, pod: Pod, **more: Any) -> Reply:
    """Ask the IPAM as another main plugin does that has no interface yet."""
    environ = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "net1", "CNI_NETNS": pod.path, "CNI_PATH": "/none",
    }  # fmt: skip
    return hpn_ipam(Request(environ, json.dumps(conf(host) | more).encode()))


def full(cluster: Cluster) -> None:
    """Assign all other blocks to another node, which is alive."""
    cluster.store.machines["node2"] = Machine("node2", "uid of node2", cluster.store.clock)
    for index in {*range(16)} - {2}:
        block = Block("net", index, 16, "node2", "uid of node2", "theirs")
        cluster.store.create(BLOCK, block.name, "net", block.to_json())


def test_where_nobody_can_be_asked_another_block_is_given_from(host: Host, pod: Pod, forgotten: Cluster) -> None:
    reply = asked_early(host, pod)
    assert reply.exit_code == 0, reply.stdout
    assert int(given(json.loads(reply.stdout))[0].split(".")[3].partition("/")[0]) // 16 != 2
    assert not any("were not probed for" in line for line in reply.log)
    assert {block.taken for block in mine(host).blocks} == {True, False}
    assert len(forgotten.owners()) == 2


def test_where_nobody_can_be_asked_and_there_is_no_other_block(host: Host, pod: Pod, forgotten: Cluster) -> None:
    full(forgotten)
    reply = asked_early(host, pod)
    assert reply.exit_code == 0, reply.stdout
    assert given(json.loads(reply.stdout)) == ["10.56.0.32/24", "fd00:56::20/64"]
    assert any("net1 is not there, so the addresses were not probed for" in line for line in reply.log)
    (block,) = mine(host).blocks
    assert block.tried == set()


def test_a_requested_address_of_such_a_block(host: Host, pod: Pod, forgotten: Cluster) -> None:
    """A requested address of such a block is allocated even without an interface for the probe."""
    reply = asked_early(host, pod, runtimeConfig={"ips": ["10.56.0.35"]})
    assert reply.exit_code == 0, reply.stdout
    assert given(json.loads(reply.stdout))[0] == "10.56.0.35/24"


@pytest.mark.parametrize("is_full", [False, True])
def test_a_device_of_a_userspace_driver(host: Host, pod: Pod, forgotten: Cluster, *, is_full: bool) -> None:
    """A device of a userspace driver never has an interface, but its pod still gets an address."""
    if is_full:
        full(forgotten)
    environ = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "net1", "CNI_NETNS": pod.path, "CNI_PATH": "/none",
    }  # fmt: skip
    log = list[str]()
    one = Ipam("hpn-ipam", Request(environ, json.dumps(conf(host)).encode()), {"hpn-ipam": ask}, log)
    with open_netns(Request(environ)) as inside:
        one.ask_early(inside)
        result = one.ask()
    (address,) = (ip.address.ip for ip in result.ips if ip.address.version == 4)
    assert (int(address) % 256 // 16 == 2) == is_full
    assert any("so the addresses were not probed for" in line for line in log) == is_full


def test_where_the_link_cannot_be_asked(host: Host, pod: Pod, forgotten: Cluster, ipvlan: str) -> None:
    reply = host.call("ADD", pod, conf(host) | {"kind": ipvlan})
    assert reply.exit_code == 0, reply.stdout
    assert int(given(json.loads(reply.stdout))[0].split(".")[3].partition("/")[0]) // 16 != 2


def test_killed_while_it_claims(host: Host, pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ADD of a network works after a kill at any step of its claims of the pool layout and of a block."""
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.store.file = tmp_path / "store"
    cluster.node("node1").enter()
    for step in drawn.steps():
        name = f"net{step}"
        shared = conf(host, overlaps=True) | {"name": name}
        was_killed = killed_at(step, host.request("ADD", pod, shared))
        host.ok("DEL", pod, shared)
        assert pod.links() == set()
        assert len(given(host.ok("ADD", pod, shared))) == 2
        host.ok("DEL", pod, shared)
        found = node_blocks.read(host.state / "ipam" / name)
        assert found
        owned = [body["index"] for body in cluster.store.bodies(BLOCK).values() if body["network"] == name]
        assert [block.index for block in found.blocks if not block.taken] == owned
        assert len(owned) == 1
        if not was_killed:
            assert step > 60
            return


def test_without_room_there_an_own_block_is_claimed(host: Host, pod: Pod, forgotten: Cluster) -> None:
    """If a host answers for the whole block, ADD claims another block after a few tries."""
    host.ok("ADD", pod, conf(host, ranges=[[{"subnet": "10.56.0.0/24", "exclude": ["10.56.0.32/28"]}]]))
    assert set(forgotten.owners()) > {2}
    assert {block.taken for block in mine(host).blocks} == {True, False}
