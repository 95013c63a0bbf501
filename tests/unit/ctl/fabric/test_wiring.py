"""Findings of hpn fabric wiring: each fault is named with its ports, and no fault gives none."""

import re
from random import Random

import pytest
from support.wired import Port, Wired

from ctl.fabric.wiring import findings
from ctl.fabric.wiring.findings import Miswired
from ctl.fabric.wiring.groups import Wire, grouped
from ctl.fabric.wiring.reading import of_slices


def found(wired: Wired) -> list[Miswired]:
    wires = of_slices(wired.slices())
    return list(findings.in_cluster(wires, grouped(wires)))


def told(wired: Wired) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.kind, one.node, one.rails) for one in found(wired)]


@pytest.mark.parametrize(
    "wired",
    [
        Wired(),
        Wired(nodes=1),
        Wired(nodes=2, rails=1),
        Wired(nodes=64),
        Wired(nodes=33),  # a group of one node
        Wired(nodes=1000, size=1),
        Wired(vfs=16),
    ],
)
def test_no_fault_gives_no_finding(wired: Wired) -> None:
    assert found(wired) == []


def test_all_rails_at_one_leaf() -> None:
    """A rack with one switch for all rails has nothing that could be exchanged."""
    wired = Wired(nodes=8, size=4)
    for (node, _), port in wired.at.items():
        port.leaf = f"tor{int(node[4:]) // 4}"
    assert found(wired) == []


def test_exchanged_cables() -> None:
    wired = Wired(nodes=64)
    wired.exchange("node7", 2, 3)
    (one,) = found(wired)
    assert (one.kind, one.node, one.rails) == ("exchanged", "node7", ("2", "3"))
    assert one.text == (
        "node7: rails 2 and 3 are exchanged: rail2 is at pod0-leaf3 Eth8/1, where rail 3 belongs, and rail3 at "
        "pod0-leaf2 Eth8/1, where rail 2 belongs; exchange their cables"
    )


def test_cables_that_went_around() -> None:
    """Three rails in a circle: no two of them have each other's leaf."""
    wired = Wired()
    wired.exchange("node1", 0, 1)
    wired.exchange("node1", 1, 2)
    assert told(wired) == [("misplaced", "node1", (rail,)) for rail in "012"]
    assert found(wired)[0].text == (
        "node1: rail 0 (rail0) is at pod0-leaf1 Eth2/1, and 7 of 8 nodes have this rail at pod0-leaf0; move its cable "
        "there"
    )


def test_a_cable_to_another_pod() -> None:
    wired = Wired(nodes=64)
    wired.at["node7", 2] = Port("pod1-leaf2", "Eth40/1")
    assert told(wired) == [("misplaced", "node7", ("2",))]


def test_two_nodes_that_differ() -> None:
    """Two nodes do not show which of them is right."""
    wired = Wired(nodes=2, rails=2)
    wired.exchange("node1", 0, 1)
    assert told(wired) == [("undecided", "", ("0",)), ("undecided", "", ("1",))]
    assert found(wired)[0].text == (
        "rail 0: no leaf has most of its nodes: pod0-leaf0 (node0), pod0-leaf1 (node1); compare them with the cabling "
        "plan"
    )


def test_a_missing_neighbor() -> None:
    wired = Wired()
    wired.unplug("node3", 5)
    (one,) = found(wired)
    assert (one.kind, one.node, one.rails) == ("missing", "node3", ("5",))
    assert "node3: rail 5 (rail5) has no neighbor, and others have one; check its cable" in one.text


def test_a_node_without_any() -> None:
    wired = Wired()
    wired.unplug("node3")
    (one,) = found(wired)
    assert (one.kind, one.node) == ("silent", "node3")
    assert "no neighbor of its rails (8) is known; set lldp: true in its device file" in one.text


def test_a_rail_that_nobody_announces() -> None:
    """A rail whose switch has no LLDP, on all nodes, is no fault of a node."""
    wired = Wired()
    for number in range(wired.nodes):
        wired.unplug(f"node{number}", 7)
    assert found(wired) == []


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        (
            {"speed": 200},
            "speed",
            "has a speed of 200 Gb/s, and 7 of 8 of the nodes with rail 4 at these leaves have a",
        ),
        ({"leafMaxFrame": 1518}, "max_frame", "has frames of at most 1518 bytes, and 7 of 8"),
        ({"leafVlan": 1}, "vlan", "has VLAN 1, and 7 of 8 of the nodes with rail 4 at these leaves have VLAN 100"),
    ],
)
def test_unequal_ports(changed: dict[str, int], kind: str, text: str) -> None:
    wired = Wired()
    wired.at["node6", 4] = Port(**vars(wired.at["node6", 4]) | changed)
    (one,) = found(wired)
    assert (one.kind, one.node, one.rails) == (kind, "node6", ("4",))
    assert one.text.startswith("node6: rail 4 (rail4) at pod0-leaf4 Eth7/1 ")
    assert text in one.text


def test_routed_ports() -> None:
    """Ports with a VLAN each, as switches number routed ports, are no finding; nor is an unknown number."""
    wired = Wired()
    for number, port in enumerate(wired.at.values()):
        port.leafVlan = 1006 + number
    wired.at["node1", 0].speed = None
    assert found(wired) == []


def test_rails_by_the_names_of_pfs() -> None:
    """Without a number, the PF's name is the rail."""
    names = ["ens1f0", "ens1f1"]
    wires = [Wire(f"node{n}", name, name, f"leaf{name[-1]}", f"Eth{n}") for n in range(5) for name in names]
    wires[0], wires[1] = (
        Wire("node0", "ens1f0", "ens1f0", "leaf1", "Eth9"),
        Wire("node0", "ens1f1", "ens1f1", "leaf0", "Eth8"),
    )
    (one,) = findings.in_cluster(wires, grouped(wires))
    assert one.text.startswith("node0: rails ens1f0 and ens1f1 are exchanged: ens1f0 is at leaf1 Eth9, where")


def test_a_thousand_nodes() -> None:
    """Random faults on 1,000 nodes in 32 groups are found, each of them, and nothing else."""
    random, wired = Random(7), Wired(nodes=1000)
    expected = list[tuple[str, str, tuple[str, ...]]]()
    for number in random.sample(range(960), 60):  # not in the last group, which is small
        node, (one, other) = f"node{number}", sorted(random.sample(range(8), 2))
        match number % 3:
            case 0:
                wired.exchange(node, one, other)
                expected.append(("exchanged", node, (f"{one}", f"{other}")))
            case 1:
                wired.unplug(node, one)
                expected.append(("missing", node, (f"{one}",)))
            case _:
                wired.at[node, one].speed = 100
                expected.append(("speed", node, (f"{one}",)))
    assert sorted(told(wired)) == sorted(expected)
    assert len(grouped(of_slices(wired.slices()))) == 32


def test_this_node_alone() -> None:
    """Numbered rails are compared with each other; another NIC may have any port, and none."""
    rails = [Wire("node1", f"{n}", f"rail{n}", f"leaf{n}", "Eth1", n, 9216, 400) for n in range(4)]
    others = [Wire("node1", "eno1", "eno1"), Wire("node1", "eno2", "eno2", "mgmt", "ge1", 1, 1518, 25)]
    assert list(findings.on_node([*rails, *others])) == []
    slow = Wire("node1", "4", "rail4", "leaf4", "Eth1", 4, 9216, 100)
    made = list(findings.on_node([*rails, slow, Wire("node1", "5", "rail5"), *others]))
    assert [(one.kind, one.rails) for one in made] == [("missing", ("5",)), ("speed", ("4",))]
    assert re.search(r"rail 4 \(rail4\) at leaf4 Eth1 has a speed of 100 Gb/s, and 4 of 5 of this node's", made[1].text)


def test_slices_of_any_form() -> None:
    """Other programs may write slices; of a pool the newest generation counts."""
    wired = Wired(nodes=1, rails=1)
    (one,) = wired.slices()
    newer = {**one, "spec": {**one["spec"], "pool": {"generation": 2}}}
    device = {"attributes": {**one["spec"]["devices"][0]["attributes"], "leaf": {"string": "newer"}}}
    newer["spec"]["devices"] = [device]
    odd = [{}, {"spec": 7}, {"spec": {"devices": 7}}, {"spec": {"devices": [7, {}, {"attributes": []}]}}]
    odd += [{"spec": {"devices": [{"attributes": {"pfPciAddress": {"string": 7}, "linkType": {"string": "ether"}}}]}}]
    for order in ([one, newer], [newer, one]):
        (wire,) = of_slices([*odd, *order])
        assert (wire.node, wire.rail, wire.leaf) == ("node0", "0", "newer")


def test_a_name_that_would_write_findings() -> None:
    """A node writes its own slices, and no other node's findings."""
    wired = Wired(nodes=4, rails=2)
    wired.at["node3", 0] = Port("leaf9\nnode0: rails 0 and 1 are exchanged\x1b[2J", "Eth1\r")
    (one,) = found(wired)
    assert one.text.isprintable()
    assert r"leaf9\nnode0: rails 0 and 1 are exchanged\x1b[2J Eth1\r" in one.text
