"""The checker of histories finds violations (tests/checker/history.py), and counts moves (moves.py)."""

from checker.history import History, lost_blocks
from checker.moves import counted


def test_all_well() -> None:
    it = History()
    it.gave("node1 a", ["10.0.0.1"])
    it.gave("node1 a", ["10.0.0.1"])  # a repeated ADD
    it.gave("node2 a", ["10.0.0.2"])
    it.takes_back("node1 a")
    it.gave("node2 b", ["10.0.0.1"])
    it.died("node2")
    it.gave("node1 c", ["10.0.0.2"])
    assert it.wrong == []
    assert it.held() == {"10.0.0.2": "node1 c"}


def test_two_owners() -> None:
    it = History()
    it.gave("node1 a", ["10.0.0.1"])
    it.gave("node2 b", ["10.0.0.1"])
    assert it.wrong == ["10.0.0.1 is node1 a's, and is given to node2 b"]


def test_another_address_than_before() -> None:
    it = History()
    it.gave("node1 a", ["10.0.0.1"])
    it.gave("node1 a", ["10.0.0.2"])
    assert it.wrong == ["node1 a has 10.0.0.1, and is told of 10.0.0.2"]


def test_a_name_that_moves() -> None:
    it = History()
    it.gave("node1 web-0.c1", ["10.0.0.1"])
    it.takes_back("node1 web-0.c1")
    it.gave("node2 web-0.c2", ["10.0.0.1"])
    it.takes_back("node2 web-0.c2")
    it.gave("node2 web-0.c3", ["10.0.0.2"])
    assert it.wrong == ["node2 web-0.c3 is given 10.0.0.2, and its name had 10.0.0.1"]


def test_lost_blocks() -> None:
    assert lost_blocks({1: "node1", 2: "node2"}, {"node1": [1], "node2": [2], "node3": []}) == []
    assert lost_blocks({1: "node1"}, {"node1": []}) == ["block 1 is node1's, which does not know it"]
    assert lost_blocks({}, {"node1": [1]}) == ["block 1 is not in the store, and node1 has it"]
    assert lost_blocks({1: "node1"}, {"node2": [1]}) == ["block 1 is node1's, and node2 has it"]


def test_how_blocks_changed_hands() -> None:
    changes = [("1", "node1"), ("1", "node1"), ("2", "node1"), ("1", "node2"), ("2", ""), ("2", "node3")]
    assert counted(changes) == {"claimed": 3, "given back": 1, "taken over": 1}
