"""IPv6 addresses with an IPv4 address of a shared pool in them: unique on all nodes, without a block."""

from support.cluster_nodes import SHARED, Cluster, Node
from support.ipam_calls import of
from support.sticky_nodes import keep

RANGES = [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00:1::/64", "embedIPv4": True}]]


def embedded(ipv4: str) -> str:
    return f"fd00:1::a00:{int(ipv4.rpartition('.')[2]):x}"


def test_unique_on_all_nodes(cluster: Cluster) -> None:
    nodes: list[Node] = [cluster.node(name, ranges=RANGES, cluster=SHARED) for name in ("one", "two")]
    given = [one.add(f"pod{number}") for one in nodes for number in range(20)]
    assert all(ipv6 == embedded(ipv4) for ipv4, ipv6 in given)
    assert len({ipv6 for _, ipv6 in given}) == 40
    assert set(cluster.owners().values()) == {"one", "two"}
    assert nodes[0].call("CHECK", "pod0") == {}
    again = nodes[0].add("pod0")
    assert again == given[0]
    nodes[0].call("DEL", "pod0")
    assert not nodes[0].held() & set(again)


def test_a_name_keeps_both_on_another_node(cluster: Cluster) -> None:
    more = {"ranges": RANGES, "sticky": 60, "cluster": SHARED | {"sticky": "64-79"}}
    one, two = (cluster.node(name, **more) for name in ("one", "two"))
    given = one.add("a", *of("web-0"))
    assert 64 <= int(given[0].rpartition(".")[2]) <= 79
    assert given == (given[0], embedded(given[0]))
    one.call("DEL", "a")
    keep(one)
    assert two.add("b", *of("web-0")) == given
