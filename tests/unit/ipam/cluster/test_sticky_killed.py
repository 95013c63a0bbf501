"""A name's number moves from node to node, and the process is killed: between any two calls to the backend, or steps on
disk.

No two nodes own the number then, and the next node that claims it gets it.
"""

import shutil
from itertools import count
from pathlib import Path

import drawn
import pytest
from support.cluster_nodes import Cluster, Node
from support.documents import Fault, Killed, Memory, none
from support.ipam_calls import killed_at, of
from support.sticky_nodes import WEB, keep, named, node, number, numbers

from ipam.cluster import node_blocks

KILLS = [Fault.KILLED, Fault.KILLED_AFTER, Fault.LOST, Fault.UNREACHABLE, Fault.CONFLICT]


def at_change(cluster: Cluster, number: int, fault: Fault) -> None:
    """Inject that fault into the change of that number, counted from now."""
    changes = count()

    def faults(_number: int, call: str, _name: str) -> Fault | None:
        return fault if call in ("create", "replace") and next(changes) == number else None

    cluster.store.faults = faults


def all_is_well(cluster: Cluster, *nodes: Node) -> None:
    """No node counts a number as its own that the backend assigns to another."""
    owner, index = named(cluster)["ns/web-0:net1"]
    for one in nodes:
        known = node_blocks.read(one.dir / "sticky")
        for block in known.blocks if known else ():
            assert block.index == index
            assert (one.name == owner) or block.state != node_blocks.HELD


def freed(cluster: Cluster) -> tuple[Node, Node, str]:
    """Return a node that released a number, the next one, and the address."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    one.add("other", *of("other"))
    (address,) = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    keep(one)
    return one, two, address


@pytest.mark.parametrize("fault", KILLS)
@pytest.mark.parametrize("change", range(3))
def test_its_first_number(cluster: Cluster, fault: Fault, change: int) -> None:
    """Changes: the network's layout, the layout of its numbers, and the number."""
    one = node(cluster, "node1")
    at_change(cluster, change, fault)
    try:
        one.reply("ADD", "c1", *WEB)
    except Killed:
        assert fault in (Fault.KILLED, Fault.KILLED_AFTER)
    cluster.store.faults = none
    assert one.add("c1", *WEB)
    all_is_well(cluster, one)
    assert len(named(cluster)) == 1
    assert [block.taken for block in numbers(one).blocks] == [False]


@pytest.mark.parametrize("fault", KILLS)
def test_it_is_given_up(cluster: Cluster, fault: Fault) -> None:
    one, two = node(cluster, "node1"), node(cluster, "node2")
    one.add("other", *of("other"))
    first = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    at_change(cluster, 0, fault)
    try:
        keep(one)
    except Killed:
        assert fault in (Fault.KILLED, Fault.KILLED_AFTER)
    cluster.store.faults = none
    all_is_well(cluster, one)
    reply = two.call("ADD", "c2", *WEB)
    assert "ips" in reply or reply["code"] == 11
    all_is_well(cluster, one, two)
    keep(one)
    assert two.add("c2", *WEB) == first
    all_is_well(cluster, one, two)
    assert one.refused("ADD", "c3", *WEB)[0] == 11


@pytest.mark.parametrize("fault", KILLS)
@pytest.mark.parametrize("back", [True, False], ids=["it comes back", "it stays"])
def test_it_is_had_again(cluster: Cluster, fault: Fault, back: bool) -> None:
    """After a lost answer the node releases it again, if no pod comes."""
    one, two, address = freed(cluster)
    at_change(cluster, 0, fault)
    try:
        two.reply("ADD", "c2", *WEB)
    except Killed:
        assert fault in (Fault.KILLED, Fault.KILLED_AFTER)
    cluster.store.faults = none
    if back:
        two.call("DEL", "c2", *WEB)
        keep(two)
        one.refused("ADD", "c1", *WEB) if named(cluster)["ns/web-0:net1"][0] else one.add("c1", *WEB)
    else:
        assert two.add("c2", *WEB) == (address,)
    all_is_well(cluster, one, two)


def test_an_answer_that_is_under_way(cluster: Cluster) -> None:
    """The release is late: this node claims the number again before it reaches the backend."""
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    late = list[object]()

    def held_up(document: object, body: object, to: Memory = cluster.store) -> None:
        late.extend((document, body))
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.store, "replace", held_up)
        with pytest.raises(Killed):
            keep(one)
    assert one.add("c2", *WEB) == first
    assert cluster.store.replace(*late) is None  # type: ignore[arg-type]
    assert two.refused("ADD", "c3", *WEB)[0] == 11
    assert named(cluster)["ns/web-0:net1"] == ("node1", number(first[0]))


@pytest.mark.parametrize("what", ["had", "given up"])
def test_any_step(cluster: Cluster, tmp_path: Path, what: str) -> None:
    cluster.store.file = tmp_path / "store"
    one, two = node(cluster, "node1"), node(cluster, "node2")
    first = one.add("c1", *WEB)
    one.call("DEL", "c1", *WEB)
    if what == "had":
        keep(one)
    before = tmp_path / "before"
    shutil.copytree(one.state.parent, before, ignore=shutil.ignore_patterns("before"))
    for step in drawn.steps(1):
        for each in (one, two):
            shutil.rmtree(each.state)
            shutil.copytree(before / each.state.name, each.state)
        shutil.copy(before / "store", cluster.store.file)
        killed = killed_at(step, lambda: two.add("c2", *WEB) if what == "had" else keep(one))
        # Only the file holds the child's claim.
        cluster.store = Memory(machines=cluster.store.machines, file=cluster.store.file)
        cluster.store.now()
        keep(one)
        assert two.add("c2", *WEB) == first
        all_is_well(cluster, one, two)
        assert one.refused("ADD", "c3", *WEB)[0] == 11
        if not killed:
            assert step > 20, "too few steps"
            return
