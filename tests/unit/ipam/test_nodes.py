"""Ranges of some nodes in one configuration."""

import os
from typing import Any

import pytest

from base.protocol.errors import InvalidConfig
from ipam.config import load
from ipam.pool import Pool

A = {"subnet": "10.1.0.0/31", "gateway": "10.1.0.0", "node": "node-a"}
B = {"subnet": "10.1.0.2/31", "gateway": "10.1.0.2", "node": "Node-B"}
V6 = {"subnet": "fd00:1::/64"}


class Kernel:
    """The node's name, as uname(2) returns it."""

    def __init__(self, nodename: str) -> None:
        self.nodename = nodename


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    def on(name: str, /, **ipam: Any) -> Pool:
        monkeypatch.setattr(os, "uname", lambda: Kernel(name))
        return load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam}, {}, lambda *_: {})

    return on


def spans(of: Pool) -> list[list[str]]:
    return [list(map(str, s.all_spans)) for s in of.sets]


def test_each_node_has_its_own(pool: Any) -> None:
    """Of a /31, the pod gets the address that the gateway, the leaf, has not."""
    ipam = {"ranges": [[A, B], [V6]]}
    assert spans(pool("node-a", **ipam))[0] == ["10.1.0.1"]
    assert spans(pool("NODE-b", **ipam)) == [["10.1.0.3"], ["fd00:1::2-fd00:1::ffff:ffff:ffff:ffff"]]
    assert str(pool("node-a", **ipam).sets[0].ranges[0].gateway) == "10.1.0.0"


def test_beside_a_range_of_all(pool: Any) -> None:
    ipam = {"ranges": [[A, {"subnet": "10.9.0.0/24"}]]}
    assert spans(pool("node-a", **ipam)) == [["10.1.0.1", "10.9.0.2-10.9.0.254"]]
    assert spans(pool("node-c", **ipam)) == [["10.9.0.2-10.9.0.254"]]


def test_another_nodes_gateway(pool: Any) -> None:
    """No pod gets a gateway, even if only another node's range of the subnet names it."""
    mine = {"subnet": "10.0.0.0/24", "node": "node-a", "gateway": "10.0.0.254", "rangeEnd": "10.0.0.99"}
    theirs = {"subnet": "10.0.0.0/24", "node": "node-b", "rangeStart": "10.0.0.100"}
    assert spans(pool("node-a", ranges=[[mine, theirs]])) == [["10.0.0.2-10.0.0.99"]]
    assert spans(pool("node-b", ranges=[[mine, theirs]])) == [["10.0.0.100-10.0.0.253"]]


def test_the_parents_subnet_of_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that lacks the range does not ask for it."""
    monkeypatch.setattr(os, "uname", lambda: Kernel("node-b"))
    asked = list[Any]()
    ipam = {"ranges": [[{"subnet": "parent-ipv4", "node": "node-a"}, {"subnet": "10.9.0.0/24"}]]}
    of = load({"type": "x", "ipam": ipam}, {}, lambda _, named: asked.append(named) or {})
    assert (spans(of), asked) == ([["10.9.0.2-10.9.0.254"]], [])
    monkeypatch.setattr(os, "uname", lambda: Kernel("node-a"))
    load({"type": "x", "ipam": ipam}, {}, lambda _, named: asked.append(dict(named)) or {})
    assert asked == [{"parent-ipv4": "ipam.ranges[0][0].subnet"}]


def test_a_node_without_a_range(pool: Any) -> None:
    with pytest.raises(InvalidConfig) as e:
        pool("node-c", ranges=[[A, B]])
    assert e.value.msg == (
        'ipam.ranges[0] has no range for node node-c, only for node-a, Node-B; add one with "node": "node-c"'
    )


def test_of_no_node() -> None:
    """As hpn doctor reads a definition: what each node has is left out."""
    conf: dict[str, Any] = {"cniVersion": "1.1.0", "name": "net", "type": "x"}
    assert load(conf | {"ipam": {"ranges": [[A, B]]}}, {}).sets == ()
    assert spans(load(conf | {"ipam": {"ranges": [[A], [{"subnet": "10.9.0.0/24"}]]}}, {})) == [["10.9.0.2-10.9.0.254"]]


@pytest.mark.parametrize(
    ("ipam", "said"),
    [
        ({"ranges": [[A, A | {"node": "node-b"}]]}, "overlaps"),
        ({"ranges": [[A, B | {"gateway": "10.9.0.1"}]]}, "ipam.ranges[0][1].gateway 10.9.0.1 is outside"),
        ({"ranges": [[A | {"node": ""}]]}, 'ipam.ranges[0][0].node ""'),
        ({"ranges": [[A | {"node": ["node-a"]}]]}, 'ipam.ranges[0][0].node ["node-a"]'),
        ({"node": "node-a", "ranges": [[A]]}, "ipam.node: of no effect without ipam.subnet"),
        ({"ranges": [[A]], "cluster": {"backend": "etcd"}}, "ipam.ranges[0][0].node with ipam.cluster"),
        ({"rails": [{"pf": "a", **A}]}, "ipam.rails[0].node in ipam.rails"),
    ],
)
def test_refused(pool: Any, ipam: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as e:
        pool("node-a", **ipam)
    assert said in e.value.msg
