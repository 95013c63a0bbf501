"""hpn ipam import into a pool that the cluster shares, with pods running, and export out of it."""

import json
import sys
from collections.abc import Callable
from ipaddress import ip_interface, ip_network
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.documents import Fault, Memory, every, whose
from support.ipam_calls import Net

from base.protocol.errors import BackendRefused
from base.protocol.result import Ip
from base.protocol.spec import Key
from ctl.ipam.command import answer
from ipam.cluster import BLOCK, POOL, Machine, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.rules.documents import Block
from ipam.ranges import assignable
from ipam.stores import Owner, Terms, access

RANGES = [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64", "gateway": None}]]
SHARED = {"ranges": RANGES, "cluster": {"backend": "etcd", "blockSize": 4}}
Hpn = Callable[..., list[str]]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """The backend of all nodes; this node is node1 there."""
    it, module = Memory(machines={"node1": Machine("node1", "uid-1")}), ModuleType("in_memory")
    vars(module)["opened"] = lambda _about, _name: (it, "node1")
    monkeypatch.setitem(sys.modules, "in_memory", module)
    monkeypatch.setitem(backend.KINDS, "etcd", "in_memory")  # type: ignore[index]
    return it


@pytest.fixture
def net(tmp_path: Path) -> Net:
    """A network of this node alone, with six attachments: numbers 2 to 7, in both families."""
    it = Net(tmp_path / "state", {"type": "hpn-ipam", "ranges": RANGES})
    for cid in "abcdef":
        it.add(cid)
    return it


@pytest.fixture
def hpn(net: Net, tmp_path: Path) -> Hpn:
    def run(command: str, *words: str, status: int = 0) -> list[str]:
        said, done = answer([command, "--data-dir", str(net.state / "ipam"), *words])
        assert done == status, said
        return said.splitlines()

    (tmp_path / "conf").write_text(json.dumps(conf()))
    return run


def conf(**more: Any) -> dict[str, Any]:
    plugin = {"type": "hpn", "master": "eth1", "ipam": {"type": "hpn-ipam", **SHARED, **more}}
    return {"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]}


def enter(tmp_path: Path) -> tuple[str, ...]:
    return ("import", "--from", "node", f"{tmp_path}/conf")


def put(store: Memory, index: int, node: str = "node2") -> None:
    block = Block("net", index, 4, node, "uid-2", "nonce")
    assert store.create(BLOCK, block.name, "net", block.to_json())


def test_a_pool_of_this_nodes(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    before = net.leases()
    said = hpn(*enter(tmp_path))
    assert said[-3:] == [
        "this node has block 0: 10.1.0.0-10.1.0.3, fd00:1::-fd00:1::3",
        "this node has block 1: 10.1.0.4-10.1.0.7, fd00:1::4-fd00:1::7",
        "net: imported 0 leases",
    ]
    assert whose(store) == {"net.0": "node1", "net.1": "node1"}
    assert store.bodies(POOL)["net"]["blockSize"] == 4
    assert net.leases() == before
    net.ipam = {"type": "hpn-ipam", **SHARED}
    store.calls.clear()
    assert net.call("DEL", "b") == {}
    assert store.calls == []
    given = net.add("g")
    assert given == before["b:net1"] or set(whose(store).values()) == {"node1"}
    assert not set(given) & {ip for key, ips in before.items() if key != "b:net1" for ip in ips}


def test_no_address_by_the_new_configuration_before_that(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    """Any node could claim the blocks of this node's pods."""
    net.ipam = {"type": "hpn-ipam", **SHARED}
    for _ in range(2):
        answer = net.call("ADD", "g")
        assert answer["code"] == 7
        assert "10.1.0.2 (block 0), 10.1.0.4 (block 1); claim them first" in answer["msg"]
    assert whose(store) == {}
    hpn(*enter(tmp_path))
    assert net.add("g")


def test_again_is_nothing_new(hpn: Hpn, store: Memory, tmp_path: Path) -> None:
    hpn(*enter(tmp_path))
    before = store.bodies(BLOCK)
    hpn(*enter(tmp_path))
    assert store.bodies(BLOCK) == before


def test_dry_run(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    assert hpn(*enter(tmp_path), "--dry-run")[0].startswith("this node would have block 0: 10.1.0.0-10.1.0.3")
    assert store.bodies(BLOCK) == store.bodies(POOL) == {}
    assert node_blocks.read(net.dir) is None


def test_a_block_that_another_node_has(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    put(store, 1)
    assert hpn(*enter(tmp_path), status=1) == [
        "10.1.0.4 is in block 1, which node node2 owns; delete its pod here",
        "net: nothing was imported",
    ]
    assert whose(store) == {"net.1": "node2"}
    assert node_blocks.read(net.dir) is None


@pytest.mark.parametrize("call", ["create", "forbidden"])
def test_what_fails_half_way_is_undone(hpn: Hpn, net: Net, store: Memory, tmp_path: Path, call: str) -> None:
    """Another node claimed the second block first, or a credential expired."""
    if call == "create":
        store.faults = lambda _n, done, name: put_it(store) if (done, name) == ("create", "net.1") else None
        assert "which node node2 owns" in hpn(*enter(tmp_path), status=1)[0]
        assert whose(store) == {"net.1": "node2"}
    else:
        store.faults = lambda _n, done, name: Fault.FORBIDDEN if (done, name) == ("create", "net.1") else None
        with pytest.raises(BackendRefused):
            hpn(*enter(tmp_path))
        assert whose(store) == {}
    mine = node_blocks.read(net.dir)
    assert mine is None or mine.blocks == ()


def put_it(store: Memory) -> None:
    store.faults = lambda *_: None
    put(store, 1)


def test_an_address_of_no_range(hpn: Hpn, store: Memory, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text(json.dumps(conf(ranges=[[{"subnet": "10.1.0.0/24"}]])))
    said = hpn(*enter(tmp_path), status=1)
    assert "fd00:1::1 of a lease that is here is in no subnet of net; add its range" in said
    assert whose(store) == {}


def test_derived_addresses(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    """They need no block, and their subnet is of no block."""
    ranges = [[RANGES[0][0] | {"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64", "embedIPv4": True}]]
    other = Net(net.state, {"type": "hpn-ipam", "ranges": ranges}, {"name": "other"})
    assert other.add("a") == ("10.2.0.2", "fd00:2::a02:2")
    (tmp_path / "conf").write_text(json.dumps(conf(ranges=ranges) | {"name": "other"}))
    assert hpn(*enter(tmp_path))[-2:] == ["this node has block 0: 10.2.0.0-10.2.0.3", "other: imported 0 leases"]
    assert whose(store) == {"other.0": "node1"}


@pytest.mark.parametrize(("key", "ipv6"), [("embedIPv4", "fd00:3::a02:2"), ("eui64", "fd00:3::ff:fe00:1")])
def test_derived_addresses_of_the_parents_subnet(
    hpn: Hpn, net: Net, store: Memory, tmp_path: Path, key: str, ipv6: str
) -> None:
    """The configuration does not have the subnet, and the record of the latest ADD does."""
    subnet = ip_network("fd00:3::/96" if key == "embedIPv4" else "fd00:3::/64")
    ips = tuple(Ip(ip_interface(one), None) for one in ("10.2.0.2/24", f"{ipv6}/64"))
    there = access.open_in(net.state / "ipam", "other", [])
    spans = tuple((assignable(one),) for one in (ip_network("10.2.0.0/24"), subnet))
    owner = Owner(Key("c", "net1"), "ns/pod", "/run/netns/p", None, Terms(0))
    there.reserve(owner, lambda _: ips, spans, ("", "rail0"))
    parent = [{"subnet": "parent-ipv6", key: True}]
    (tmp_path / "conf").write_text(json.dumps(conf(ranges=[[{"subnet": "10.2.0.0/24"}], parent]) | {"name": "other"}))
    assert hpn(*enter(tmp_path))[-1] == "other: imported 0 leases"
    assert whose(store) == {"other.0": "node1"}


def test_a_definition_of_kubernetes(hpn: Hpn, store: Memory, tmp_path: Path) -> None:
    document = {"kind": "NetworkAttachmentDefinition", "spec": {"config": json.dumps(conf())}}
    (tmp_path / "conf").write_text(json.dumps(document))
    hpn(*enter(tmp_path))
    assert len(whose(store)) == 2


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"name": "net", "plugins": [{"type": "hpn"}]}', '{"spec": {"config": "{"}}']
)
def test_no_configuration_of_such_a_network(hpn: Hpn, tmp_path: Path, text: str) -> None:
    (tmp_path / "conf").write_text(text)
    with pytest.raises(Exception, match=r"ipam\.cluster|is not JSON"):
        hpn(*enter(tmp_path))


def whereabouts(tmp_path: Path, **offsets: str) -> tuple[str, ...]:
    allocations = {
        offset.removeprefix("n"): {"id": f"w{pod}", "podref": f"ns/{pod}", "ifname": "net1"}
        for offset, pod in offsets.items()
    }
    pools = {"items": [{"spec": {"range": "10.1.0.0/24", "allocations": allocations}}]}
    (tmp_path / "pools").write_text(json.dumps(pools))
    (tmp_path / "pods").write_text("ns/a\n")
    names = ("--pods", f"{tmp_path}/pods", "--cluster", f"{tmp_path}/conf")
    return ("import", "--from", "whereabouts", f"{tmp_path}/pools", *names)


def test_from_whereabouts(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    said = hpn(*whereabouts(tmp_path, n33="a", n40="b"))
    assert "imported 10.1.0.33 of wa:net1 ns/a" in said
    assert set(whose(store)) == {"net.0", "net.1", "net.8"}
    assert net.leases()["wa:net1"] == ("10.1.0.33",)
    assert "wb:net1" not in net.leases()


def test_a_block_of_two_nodes_pods(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    before = net.leases()
    said = hpn(*whereabouts(tmp_path, n33="a", n34="b"), status=1)
    assert said == [
        "10.1.0.34 of wb:net1 ns/b is on another node, and in block 8 like 10.1.0.33; delete the pod of one of them",
        "net: nothing was imported",
    ]
    assert net.leases() == before
    assert whose(store) == {}


def test_leases_go_where_blocks_do_not_come(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    before = net.leases()
    store.faults = every("create", Fault.FORBIDDEN)
    with pytest.raises(BackendRefused):
        hpn(*whereabouts(tmp_path, n33="a"))
    assert net.leases() == before


def test_back(hpn: Hpn, net: Net, store: Memory, tmp_path: Path) -> None:
    hpn(*enter(tmp_path))
    leases, blocks = net.leases(), store.bodies(BLOCK)
    for words in (["--dry-run"], []):
        *ranges, last = hpn("export", "--to", "node", "net", *words)
        assert [json.loads(line) for line in ranges] == [
            {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.7"},
            {"subnet": "fd00:1::/64", "rangeStart": "fd00:1::", "rangeEnd": "fd00:1::7"},
        ]
        assert "hpn ipam release-node node1 net --force" in last
        assert (node_blocks.read(net.dir) is None) == (words == [])
    assert (net.leases(), store.bodies(BLOCK)) == (leases, blocks)
    with pytest.raises(Exception, match="does not exist, so net is this node's own already"):
        hpn("export", "--to", "node", "net")
