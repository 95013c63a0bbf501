"""hpn ipam show --cluster, blocks, gc --cluster, release-node and retire, on a cluster's store."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.documents import Fault, Memory, every, none, whose
from support.etcd_server import Member, serving
from support.pages import ROOT

from base.protocol.errors import IoFailure
from ctl.ipam import cluster as command
from ctl.ipam import command as addresses
from ipam.cluster import BLOCK, POOL, Machine, node_blocks
from ipam.cluster.node_blocks import GRACE, HEARTBEAT, NodeBlocks, OwnedBlock
from ipam.cluster.rules.documents import Block, PoolLayout, layout_name

SUBNETS = ("10.1.0.0/24", "fd00:1::/64")
Hpn = Callable[..., str]


@pytest.fixture
def store() -> Memory:
    """A network of 16 blocks of 16 host numbers; node1 owns two blocks, node2 one."""
    it = Memory()
    for name in ("node1", "node2"):
        it.machines[name] = Machine(name, f"uid-{name}", it.clock)
    it.create(POOL, "net", "net", PoolLayout("net", 16, SUBNETS[:1]).to_json())
    for index, node in ((0, "node1"), (5, "node1"), (3, "node2")):
        put(it, Block("net", index, 16, node, f"uid-{node}", "nonce"))
    return it


def put(store: Memory, block: Block) -> None:
    assert store.create(BLOCK, block.name, block.network, block.to_json())


@pytest.fixture
def hpn(store: Memory, tmp_path: Path) -> Hpn:
    """Return a function that runs ``hpn ipam`` on that store."""

    def run(*words: str, status: int = 0) -> str:
        options = addresses.parser().parse_args([*words, "--data-dir", str(tmp_path)])
        said, done = command.of_backend(options, store, command.networks(tmp_path))
        assert done == status, said
        return said

    return run


def document(hpn: Hpn, *words: str, status: int = 0) -> Any:
    return json.loads(hpn(*words, "--json", status=status))


def test_show(hpn: Hpn) -> None:
    assert hpn("show", "--cluster").splitlines() == [
        "net: blocks of 16 host numbers in 10.1.0.0/24",
        "  [######........................] 3 held, 13 free",
        "  NODE   BLOCKS  ADDRESSES                                STATE",
        "  node1  2       10.1.0.0-10.1.0.15, 10.1.0.80-10.1.0.95  held",
        "  node2  1       10.1.0.48-10.1.0.63                      held",
        "",
    ]


def test_show_both_families(hpn: Hpn, store: Memory) -> None:
    """The smaller family limits the count of blocks, because each block has addresses of both families."""
    store.create(POOL, "both", "both", PoolLayout("both", 16, ("10.2.0.0/25", *SUBNETS)).to_json())
    assert hpn("show", "--cluster", "both").splitlines()[1].endswith("] 0 held, 16 free")


def test_show_numbers_for_names(hpn: Hpn, store: Memory) -> None:
    """A network with reserved numbers shows them, and the numbers that names hold."""
    store.create(POOL, "some", "some", PoolLayout("some", 16, SUBNETS[:1], sticky="64-79").to_json())
    name = layout_name("some/sticky")
    store.create(POOL, name, "some/sticky", PoolLayout("some/sticky", 1, SUBNETS[:1]).to_json())
    put(store, Block("some/sticky", 64, 1, "node1", "uid-node1", "nonce", whose="ns/web-0"))
    assert hpn("show", "--cluster", "some/sticky").splitlines()[1].endswith("] 1 held, 15 free")


def test_show_what_overlaps(hpn: Hpn, store: Memory) -> None:
    for name in ("wide", "wide/sticky"):
        store.create(POOL, layout_name(name), name, PoolLayout(name, 16, ("10.1.0.0/16", "fd00::/64")).to_json())
    assert "  overlaps: 10.1.0.0/24 is 10.1.0.0/16 of network wide too" in hpn("show", "--cluster", "net").splitlines()
    there = document(hpn, "show", "--cluster")["networks"]
    wide = "10.1.0.0/16 is 10.1.0.0/24 of network net too"
    assert [one.get("overlaps") for one in there[1:]] == [[wide], None]


def test_show_asks_for_lists_only(hpn: Hpn, store: Memory) -> None:
    """The command requests two lists, however many nodes there are."""
    store.calls.clear()
    hpn("show", "--cluster")
    assert store.counted() == {"listed": 2}


def test_show_json(hpn: Hpn, store: Memory) -> None:
    put(store, Block("other", 1, 8, "node3", "", "nonce", suspect=int(store.clock)))
    shown = document(hpn, "show", "--cluster")
    assert shown["backend"] == "cluster-1"
    net, other = shown["networks"]
    assert (net["network"], net["count"], net["held"], net["suspect"], net["lost"]) == ("net", 16, 3, 0, [])
    assert [block["index"] for block in net["blocks"]] == [0, 3, 5]
    assert (other["count"], other["suspect"], other["subnets"]) == (None, 1, [])
    assert [one["network"] for one in document(hpn, "show", "--cluster", "other")["networks"]] == ["other"]


def test_show_suspects(hpn: Hpn, store: Memory) -> None:
    put(store, Block("net", 9, 16, "node1", "uid-node1", "nonce", suspect=1_800_000_000))
    put(store, Block("net", 10, 16, "node3", "uid-node3", "nonce", suspect=1))
    said = hpn("show", "--cluster")
    assert "5 held, 2 of them suspect, 11 free" in said
    assert "1 of 3 suspect since 2027-01-15 08:00:00Z" in said
    assert said.splitlines()[5].endswith("  suspect")


def test_show_what_is_lost_here(hpn: Hpn, store: Memory, tmp_path: Path) -> None:
    uid = store.documents[BLOCK, "net.0"].uid
    mine = (OwnedBlock(0, uid, "node1"), OwnedBlock(3, "another", "node1"), OwnedBlock(7, "gone", "node1"))
    (tmp_path / "net").mkdir()
    node_blocks.write(
        tmp_path / "net", NodeBlocks("net", "kubernetes", "cluster-1", "node1", "uid-node1", 16, SUBNETS, mine)
    )
    said = hpn("show", "--cluster", status=1)
    assert "  lost: block 3 of this node: node node2 owns it in the backend" in said
    assert "  lost: block 7 of this node: no node owns it in the backend" in said
    assert document(hpn, "show", "--cluster", status=1)["networks"][0]["lost"] == [3, 7]


def test_show_what_cannot_be_read(hpn: Hpn, store: Memory) -> None:
    store.create(BLOCK, "net.6", "net", {"network": "net"})
    assert "  wrong: block net.6 in the cluster's backend" in hpn("show", "--cluster", status=1)


def test_blocks_of_all(hpn: Hpn) -> None:
    assert [line.split() for line in hpn("blocks", "--cluster").splitlines()] == [
        ["BLOCK", "NODE", "ADDRESSES", "STATE", "TAKEN"],
        ["net.0", "node1", "10.1.0.0-10.1.0.15", "held", "-"],
        ["net.3", "node2", "10.1.0.48-10.1.0.63", "held", "-"],
        ["net.5", "node1", "10.1.0.80-10.1.0.95", "held", "-"],
    ]
    (*_, last) = document(hpn, "blocks", "--cluster", "net")["blocks"]
    assert (last["node"], last["addresses"]) == ("node1", ["10.1.0.80-10.1.0.95"])


@pytest.mark.parametrize("command", ["show", "gc"])
def test_no_such_network(hpn: Hpn, command: str) -> None:
    with pytest.raises(Exception, match="no network nets in the cluster's backend"):
        hpn(command, "--cluster", "nets")


def dead(store: Memory, name: str) -> None:
    store.machines[name] = Machine(name, "", store.clock - GRACE - 60)


def test_gc_where_all_live(hpn: Hpn, store: Memory) -> None:
    before = store.bodies(BLOCK)
    assert hpn("gc", "--cluster") == "every node with blocks is alive\n"
    assert store.bodies(BLOCK) == before
    assert store.counted()["machine"] == 2, "each node once"


def test_gc_of_a_dead_node(hpn: Hpn, store: Memory) -> None:
    """The first gc suspects a dead node; gc after the grace removes its blocks."""
    dead(store, "node2")
    said = "block net.3 of node node2: "
    before = store.bodies(BLOCK)
    assert hpn("gc", "--cluster", "--dry-run") == f"{said}its node would be suspected from now on\n"
    assert store.bodies(BLOCK) == before
    assert hpn("gc", "--cluster") == f"{said}its node is suspected from now on\n"
    store.clock += GRACE - 60
    assert hpn("gc", "--cluster") == f"{said}its node is suspected, and the grace is not over\n"
    store.clock += 120
    assert hpn("gc", "--cluster", "--dry-run") == f"{said}would be removed\n"
    assert document(hpn, "gc", "--cluster")["blocks"] == [{"block": "net.3", "node": "node2", "what": "removed"}]
    assert whose(store) == {"net.0": "node1", "net.5": "node1"}


def test_gc_of_a_node_that_answers(hpn: Hpn, store: Memory) -> None:
    """A node that returns within the grace keeps its blocks."""
    dead(store, "node2")
    hpn("gc", "--cluster")
    store.clock += GRACE + 60
    store.machines["node2"] = Machine("node2", "", store.clock - 30)
    assert hpn("gc", "--cluster") == "every node with blocks is alive\n"
    assert len(whose(store)) == 3


def test_gc_of_one_network(hpn: Hpn, store: Memory) -> None:
    dead(store, "node2")
    put(store, Block("other", 0, 16, "node2", "uid-node2", "nonce"))
    assert "block other.0" in (said := hpn("gc", "--cluster", "other"))
    assert "block net.3" not in said


def test_gc_that_is_not_allowed(hpn: Hpn, store: Memory) -> None:
    dead(store, "node2")
    store.faults = every("replace", Fault.FORBIDDEN)
    said = hpn("gc", "--cluster", status=1)
    assert said.startswith("block net.3 of node node2: left: replace net.3: the store in memory forbids it")


def test_gc_beside_another(hpn: Hpn, store: Memory) -> None:
    dead(store, "node2")
    store.faults = every("replace", Fault.CONFLICT)
    said = "block net.3 of node node2: left, because it changed meanwhile: its node lives, or another node was fa"
    assert hpn("gc", "--cluster") == f"{said}ster\n"


def test_release_of_one_network(hpn: Hpn, store: Memory) -> None:
    put(store, Block("other", 0, 16, "node1", "uid-node1", "nonce"))
    words = ("release-node", "node1", "other", "--force")
    assert hpn(*words) == "block other.0 of node node1: removed\n"
    assert list(whose(store).values()).count("node1") == 2
    assert "node node1 has no block of other in the cluster's backend" in hpn(*words, status=1)


def test_release_of_a_node_that_never_told(hpn: Hpn, store: Memory) -> None:
    store.machines["node1"] = Machine("node1", "", store.clock, has_reported=False)
    assert "node1 was never reported alive, because neither hpn node nor" in hpn("release-node", "node1", status=1)


def test_release_of_a_node_that_lives(hpn: Hpn, store: Memory) -> None:
    store.clock += 600
    before = store.bodies(BLOCK)
    said = hpn("release-node", "node1", status=1)
    assert "node node1 was last alive at 2027-01-15 08:00:00Z: its pods may" in said
    assert "nothing is released" in said
    assert document(hpn, "release-node", "node1", status=1)["blocks"] == []
    assert store.bodies(BLOCK) == before


def test_release_of_a_node_that_was_made_anew(hpn: Hpn, store: Memory) -> None:
    """The blocks of the node's earlier machine are removed; those of the present machine stay, because it lives."""
    suspected = int(store.clock) - HEARTBEAT - 1
    put(store, Block("net", 7, 16, "node1", "uid of before", "nonce", suspected))
    put(store, Block("net", 8, 16, "node1", "", "nonce", suspected))  # of an unknown machine
    put(store, Block("net", 9, 16, "node1", "uid of before", "nonce", suspected + 2))  # its owner may still refute
    removed, waits, again, left = hpn("release-node", "node1", status=1).splitlines()
    assert removed == "block net.7 of node node1: removed"
    assert waits == "block net.9 of node node1: its node is suspected, and the grace is not over"
    assert again == "repeat the command 10 minutes after the suspicion, which a living node refutes"
    assert (
        "3 blocks are kept, because the machine that has this name now may use them: node node1 was last alive" in left
    )
    assert {*whose(store)} == {"net.0", "net.3", "net.5", "net.8", "net.9"}
    store.clock += 3
    assert "block net.9 of node node1: removed" in hpn("release-node", "node1")
    assert "nothing is released" in hpn("release-node", "node1", status=1)


def test_release_of_a_machine_that_nobody_suspects(hpn: Hpn, store: Memory) -> None:
    """The command itself suspects it, and removes its blocks ten minutes later."""
    put(store, Block("net", 7, 16, "node1", "uid of before", "nonce"))
    found = document(hpn, "release-node", "node1", status=1)
    assert (found["spared"], found["blocks"]) == (2, [{"block": "net.7", "node": "node1", "what": "suspect"}])
    store.clock += HEARTBEAT
    store.machines["node1"] = replace(store.machines["node1"], last_seen=store.clock)
    assert document(hpn, "release-node", "node1", status=1)["blocks"][0]["what"] == "waiting"
    store.clock += 3
    assert document(hpn, "release-node", "node1")["blocks"][0]["what"] == "removed"


def test_gc_of_a_name_that_another_machine_has_now(hpn: Hpn, store: Memory) -> None:
    put(store, Block("net", 7, 16, "node1", "uid of before", "nonce"))
    said = "block net.7 of node node1: "
    assert hpn("gc", "--cluster") == f"{said}its node is suspected from now on\n"
    store.clock += GRACE + 2
    for name, one in store.machines.items():
        store.machines[name] = replace(one, last_seen=store.clock)
    assert hpn("gc", "--cluster") == f"{said}removed\n"


def test_gc_of_a_suspicion_that_a_report_refutes(hpn: Hpn, store: Memory) -> None:
    put(store, Block("net", 7, 16, "node1", "uid-node1", "nonce", int(store.clock)))
    hpn("gc", "--cluster", "--dry-run")
    assert store.bodies(BLOCK)["net.7"]["suspect"]
    assert hpn("gc", "--cluster") == "every node with blocks is alive\n"
    assert not store.bodies(BLOCK)["net.7"]["suspect"]


@pytest.mark.parametrize("forced", [False, True])
def test_release_of_a_dead_node(hpn: Hpn, store: Memory, forced: bool) -> None:
    if not forced:
        dead(store, "node1")
    put(store, Block("other", 0, 16, "node1", "uid-node1", "nonce"))
    words = ("release-node", "node1", *(["--force"] if forced else []))
    assert hpn(*words).splitlines() == [
        f"block {name} of node node1: removed" for name in ("net.0", "net.5", "other.0")
    ]
    assert whose(store) == {"net.3": "node2"}
    assert "node node1 has no block in the cluster's backend" in hpn(*words, status=1)


def test_release_of_what_changes_meanwhile(hpn: Hpn, store: Memory) -> None:
    store.faults = lambda _number, call, name: Fault.CONFLICT if (call, name) == ("remove", "net.0") else None
    said = hpn("release-node", "node1", "--force", status=1)
    assert "block net.0 of node node1: left: it changed meanwhile" in said
    assert "block net.5 of node node1: removed" in said


@pytest.fixture
def etcd() -> Iterator[Member]:
    with serving(Member()) as it:
        yield it


# Reads another node's file than the machine's; a command's connections end with its process.
PROGRAM = """
import sys
from base.state import policy
from ctl.main import main
policy.FILE = sys.argv.pop(1)
sys.exit(main(sys.argv))
"""


def test_the_store_of_the_nodes_file(etcd: Member, tmp_path: Path) -> None:
    """The program finds the store in the node's file, connects to it, and shows its answers."""
    file = tmp_path / "hpn.json"
    file.write_text(json.dumps({"backends": {"etcd": {"endpoints": [etcd.url]}, "nodeName": "node1"}}))

    def run(*words: str) -> tuple[int, str]:
        argv = [sys.executable, "-c", PROGRAM, file, "ipam", "show", "--cluster", "--data-dir", tmp_path, *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
        return done.returncode, done.stdout + done.stderr

    assert run("--backend", "etcd") == (0, "no network has a pool in the cluster's backend\n")
    assert etcd.asked
    status, said = run("--kubeconfig", f"{tmp_path}/none", "--backend", "etcd")
    assert (status, "--kubeconfig has no effect with --backend etcd" in said) == (1, True)
    status, said = run("--kubeconfig", f"{tmp_path}/none")
    assert (status, f"there is no kubeconfig at {tmp_path}/none" in said) == (1, True)
    etcd.answers += [(400, {"code": 3, "message": "wrong"})]
    status, said = run("--backend", "etcd")
    assert (status, said.startswith("hpn ipam: "), "Traceback" in said) == (1, True, False)


def test_a_node_of_no_name() -> None:
    with pytest.raises(SystemExit):
        addresses.parser().parse_args(["release-node", ""])


def test_retire(hpn: Hpn, store: Memory) -> None:
    """Another network with a similar name stays, and so does everything while it is unknown whether a pod is there."""
    store.create(POOL, "net2", "net2", PoolLayout("net2", 16, ("10.2.0.0/24",)).to_json())
    put(store, Block("net2", 1, 16, "node1", "uid-node1", "nonce"))
    put(store, Block("net/sticky", 70, 1, "node2", "", "nonce", whose="default/web-0:hpn0"))
    numbers = PoolLayout("net/sticky", 1, SUBNETS)  # as the first ADD with a number writes it
    store.create(POOL, layout_name("net/sticky"), "net/sticky", numbers.to_json())
    before = dict(store.documents)
    assert hpn("retire", "net", status=1) == (
        "it is unknown whether a pod has an address of the network; name --kubeconfig, or add --force; nothing is "
        "removed\n"
    )
    assert store.documents == before
    said = hpn("retire", "net", "--force").splitlines()
    assert said[0] == "block net.0 of node node1: removed"
    assert (len(said), said[-1]) == (5, "network net: its pool layout is removed")
    assert {name for _, name in store.documents} == {"net2", "net2.1"}
    with pytest.raises(IoFailure, match="no network net in"):
        hpn("retire", "net", "--force")


def test_retire_of_what_changes_meanwhile(hpn: Hpn, store: Memory) -> None:
    """The layout goes only after all blocks: without it a node would begin a layout of its own beside them."""
    store.faults = lambda _number, call, name: Fault.CONFLICT if (call, name) == ("remove", "net.0") else None
    found = document(hpn, "retire", "net", "--force", status=1)
    assert (found["layout"], [one["what"] for one in found["blocks"]]) == (True, ["failed", "removed", "removed"])
    store.faults = none
    assert document(hpn, "retire", "net", "--force")["layout"] is False
    assert store.documents == {}
