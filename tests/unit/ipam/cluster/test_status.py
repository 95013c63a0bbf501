"""STATUS where nodes share addresses: an ADD would succeed, if need be with a newly claimed block."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster_nodes import SMALL, Cluster, Node
from support.documents import Fault, every
from unit.ipam.cluster.test_killed import filled

from ipam.cluster import BLOCK
from ipam.cluster.rules.documents import Block

ROOT = Path(__file__).parents[4]


def take_all(cluster: Cluster) -> None:
    for n in range(16):
        block = Block("net", n, 16, "other", "", f"claim of {n}")
        cluster.store.create(BLOCK, block.name, "net", block.to_json())


@pytest.mark.parametrize("is_new", [True, False])
def test_a_claim_would_be_served(cluster: Cluster, is_new: bool) -> None:
    node = cluster.node("node1") if is_new else filled(cluster)
    cluster.calls()
    before = cluster.store.bodies(BLOCK)
    assert node.call("STATUS") == {}
    assert cluster.calls() == ["read net", *["listed"] * is_new, "listed net"]
    assert cluster.store.bodies(BLOCK) == before


@pytest.mark.parametrize(
    ("fault", "said"), [(Fault.UNREACHABLE, "does not answer"), (Fault.FORBIDDEN, "the store in memory forbids it")]
)
@pytest.mark.parametrize("is_new", [True, False])
def test_no_answer(cluster: Cluster, is_new: bool, fault: Fault, said: str) -> None:
    node = cluster.node("node1") if is_new else filled(cluster)
    cluster.store.faults = every("", fault)
    code, words = node.refused("STATUS")
    assert (code, said in words) == (50, True), words
    assert ("this node has no block yet" if is_new else "addresses are held") in words


def test_all_blocks_are_taken(cluster: Cluster) -> None:
    node: Node = filled(cluster)
    take_all(cluster)
    code, words = node.refused("STATUS")
    assert (code, "own all 16 usable blocks of network net (16 numbers each)" in words) == (50, True), words
    node.call("DEL", "first")
    cluster.calls()
    assert node.call("STATUS") == {}
    assert cluster.calls() == []


def test_in_a_large_network_some_are_looked_at_before_all_are_listed(cluster: Cluster) -> None:
    node = cluster.node("node1", **SMALL | {"subnet": "10.0.0.0/16"})
    for n in range(0, 4096, 2):
        block = Block("net", n, 16, "other", "", f"claim of {n}")
        cluster.store.create(BLOCK, block.name, "net", block.to_json())
    cluster.calls()
    assert node.call("STATUS") == {}
    assert {call.partition(" ")[0] for call in cluster.calls() if call != "listed"} == {"read"}


def test_another_grid(cluster: Cluster) -> None:
    cluster.node("node1").add("a")
    other = cluster.node("node2", **SMALL | {"cluster": {"backend": "etcd", "blockSize": 8}})
    code, words = other.refused("STATUS")
    assert (code, "set blockSize 16" in words) == (7, True), words


def loaded(state: Path, *commands: str, **ipam: object) -> list[str]:
    """Return the modules for shared addresses that a process loaded for these commands."""
    program = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, 'tests')\n"
        "from support.ipam_calls import Net\n"
        f"net = Net(Path({str(state)!r}), json.loads({json.dumps(json.dumps(ipam))}))\n"
        f"for command in {commands!r}: assert 'code' not in net.call(command), command\n"
        "found = [m for m in sys.modules if m.startswith('ipam.cluster') or m in ('ssl', 'http.client')]\n"
        "print(json.dumps(sorted(found)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_what_is_imported_with_room(cluster: Cluster) -> None:
    node = cluster.node("node1")
    node.add("a")
    parts = ("allocate", "node_blocks", "rules", "rules.block_math", "rules.network", "view")
    few = ["ipam.cluster", *(f"ipam.cluster.{part}" for part in parts)]
    assert loaded(node.state, "ADD", "CHECK", "STATUS", **SMALL) == few
    assert loaded(node.state, "CHECK", "DEL", "GC", **SMALL) == []


def test_what_is_imported_without_a_cluster(tmp_path: Path) -> None:
    assert loaded(tmp_path, "ADD", "STATUS", "CHECK", "DEL", "GC", subnet="10.0.0.0/24") == []
