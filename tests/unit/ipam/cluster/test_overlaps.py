"""Two networks of one cluster with the same addresses: the second is refused, unless its configuration permits it."""

from typing import Any

import pytest
from support import sticky_nodes
from support.cluster_nodes import SHARED, SMALL, Cluster, Node
from support.ipam_calls import of

from ipam.cluster import BLOCK, POOL, node_blocks

WIDE = {"subnet": "10.0.0.0/16", "cluster": SHARED}


def refused(node: Node, name: str) -> str:
    code, said = node.refused("ADD", "b", name=name)
    assert code == 7, said
    return said


@pytest.mark.parametrize("ipam", [SMALL, WIDE, {"subnet": "10.0.0.128/25", "cluster": SHARED}])
def test_the_second_network_is_refused(cluster: Cluster, ipam: dict[str, Any]) -> None:
    """On the node of the first, and on another; and it leaves no pool layout."""
    cluster.node("node1").add("a")
    for name in ("node1", "node2"):
        said = refused(cluster.node(name, **ipam), "other")
        assert f"ipam: subnet {ipam['subnet']} of network other overlaps 10.0.0.0/24 of network net" in said
        assert "set ipam.overlaps true" in said
    assert set(cluster.store.bodies(POOL)) == {"net"}
    status = cluster.node("node2", **ipam).call("STATUS", name="other")
    assert (status["code"], "overlaps 10.0.0.0/24 of network net" in status["msg"]) == (7, True), status


def test_a_configuration_permits_it(cluster: Cluster) -> None:
    cluster.node("node1").add("a")
    for ipam in (SMALL, {**SMALL, "sticky": 60, "cluster": {**SHARED, "sticky": "32-63"}}):
        name = f"other{len(ipam)}"
        assert cluster.node("node2", **ipam, overlaps=True).add("b", *of("x"), name=name)
        assert cluster.node("node2", **ipam, overlaps=True).add("c", *of("web-0"), name=name)


def test_a_subnet_that_is_added(cluster: Cluster) -> None:
    """The pods of the first subnet stay, and its configuration goes on."""
    cluster.node("node1").add("a")
    one = cluster.node("node2", subnet="10.5.0.0/24", cluster=SHARED)
    one.add("b", name="other")
    more = cluster.node("node2", ranges=[[{"subnet": "10.5.0.0/24"}], [{"subnet": "10.0.0.0/16"}]], cluster=SHARED)
    assert "subnet 10.0.0.0/16 of network other" in refused(more, "other")
    wider = cluster.node("node2", subnet="10.5.0.0/16", cluster=SHARED)
    assert wider.add("c", name="other")
    assert one.add("d", name="other")
    assert cluster.store.bodies(POOL)["other"]["subnets"] == ["10.5.0.0/16"]


def test_networks_that_stand_go_on(cluster: Cluster, clock: list[float]) -> None:
    """An earlier version gave them the same addresses.  Other nodes join, and a lost pool layout is made again."""
    one, two = cluster.node("node1"), cluster.node("node2")
    one.add("a")
    cluster.node("node2", **SMALL, overlaps=True).add("b", name="other")
    assert two.add("c", name="other")
    assert cluster.node("node3").add("d", name="other")
    del cluster.store.documents[POOL, "other"]
    clock[0] += node_blocks.HEARTBEAT
    assert len({two.add(f"e{n}", name="other") for n in range(20)}) == 20
    assert set(cluster.store.bodies(POOL)) == {"net", "other"}
    one.add("f")


@pytest.mark.parametrize("first", ["net", "other"])
@pytest.mark.parametrize("pod", [of("x"), of("web-0")])
def test_two_that_begin_at_once(cluster: Cluster, first: str, pod: tuple[str, ...]) -> None:
    """Neither found the other's layout.  No address is allocated before one of them is removed."""
    ipam = {"subnet": "10.0.0.0/24", "sticky": 60, "cluster": {**SHARED, "sticky": "32-63"}}
    layout = {"blockSize": 16, "subnets": ["10.0.0.0/24"], "sticky": "32-63"}
    for name in ("net", "other"):
        cluster.store.create(POOL, name, name, {"network": name, **layout})
    second = {"net": "other", "other": "net"}[first]
    for name in (first, second):
        code, said = cluster.node("node1", **ipam).refused("ADD", "a", *pod, name=name)
        assert (code, "remove its pool layout" in said) == (7, True), said
    assert cluster.store.bodies(BLOCK) == {}
    del cluster.store.documents[POOL, second]
    assert cluster.node("node1", **ipam).add("a", *pod, name=first)


@pytest.mark.parametrize("apart", [{"subnet": "10.0.1.0/24"}, {"subnet": "fd00::/64"}])
def test_networks_apart(cluster: Cluster, apart: dict[str, Any]) -> None:
    cluster.node("node1").add("a")
    assert cluster.node("node1", **apart, cluster=SHARED).add("b", name="other")


def test_one_network_of_two_definitions(cluster: Cluster) -> None:
    cluster.node("node1").add("a")
    assert cluster.node("node2", **WIDE).add("b")


def test_a_layout_that_cannot_be_read(cluster: Cluster) -> None:
    cluster.store.create(POOL, "damaged", "damaged", {"network": "damaged"})
    assert cluster.node("node1").add("a")


def test_a_network_with_numbers_only_stands(cluster: Cluster) -> None:
    """An older version permitted another network beside it, and all its pods have names."""
    sticky_nodes.node(cluster, "a").add("c1", *sticky_nodes.WEB)
    cluster.store.create(POOL, "other", "other", {"network": "other", "blockSize": 16, "subnets": ["10.0.0.0/24"]})
    (address,) = sticky_nodes.node(cluster, "b").add("c2", *of("web-1"))
    assert 64 <= sticky_nodes.number(address) <= 79
