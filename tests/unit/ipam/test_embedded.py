"""IPv6 addresses with the IPv4 address of the same ADD in them, and subnets of the parent, without an interface."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from support.ipam_calls import Net

from base.protocol.errors import AddressHeld, AddressUnavailable, InvalidConfig, PoolExhausted
from ipam import leases
from ipam.config import load
from ipam.models import Parent
from ipam.pool import Pool, Prefix
from ipam.ranges import Span

V4 = {"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.9"}
V6 = {"subnet": "fd00:56::/64", "embedIPv4": True}
OF_PARENT = {"subnet": "parent-ipv6", "embedIPv4": True}


def prefix(subnet: str, own: str, gateway: str | None) -> Prefix:
    return Prefix("rail0", ip_network(subnet), (ip_address(own),), ip_address(gateway) if gateway else None)


FOUND = {
    Parent.IPV4: prefix("10.1.0.0/29", "10.1.0.2", "10.1.0.1"),
    Parent.IPV6: prefix("2001:db8:1::/64", "2001:db8:1::2", "fe80::1"),
}


def pool(found: dict[Parent, Prefix] | None = None, **ipam: Any) -> Pool:
    def find(_conf: Any, named: Any) -> dict[Parent, Prefix]:
        return {place: one for place, one in (found or FOUND).items() if place in named}

    return load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam}, {}, find)


class Held:
    """A view with these addresses held by others."""

    def __init__(self, *held: str, mine: tuple[str, ...] = ()) -> None:
        self.held, self.mine = {ip_address(one) for one in held}, tuple(map(ip_address, mine))
        self.last = self.siblings = ()

    def holder(self, address: Any) -> str:
        return "another pod" if address in self.held else ""

    def first_free(self, span: Span) -> Any:
        numbers = range(span.first, min(span.last, span.first + 99) + 1)
        return next((span.address(n) for n in numbers if span.address(n) not in self.held), None)

    def count(self, span: Span) -> int:
        return sum(one in span for one in self.held)


def chosen(of: Pool, book: Held, *requested: str) -> list[str]:
    return [str(ip.address) for ip in leases.choose(of.sets, tuple(map(ip_address, requested)), book)]


def test_the_ipv4_address_is_the_host_part() -> None:
    assert chosen(pool(ranges=[[V4], [V6]]), Held()) == ["10.0.0.2/24", "fd00:56::a00:2/64"]
    assert chosen(pool(ranges=[[V6], [V4]]), Held()) == ["fd00:56::a00:2/64", "10.0.0.2/24"]
    wide = V6 | {"subnet": "fd00:56::/48"}
    assert chosen(pool(ranges=[[V4], [wide]]), Held()) == ["10.0.0.2/24", "fd00:56::a00:2/48"]
    longest = V6 | {"subnet": "fd00:56::1:0:0/96"}
    assert chosen(pool(ranges=[[V4], [longest]]), Held()) == ["10.0.0.2/24", "fd00:56::1:a00:2/96"]


def test_the_first_of_several() -> None:
    two = [[V4], [V6], [{"subnet": "10.9.0.0/24"}], [V6 | {"subnet": "fd00:57::/64"}]]
    assert chosen(pool(ranges=two), Held()) == [
        "10.0.0.2/24", "fd00:56::a00:2/64", "10.9.0.2/24", "fd00:57::a00:2/64",
    ]  # fmt: skip


def test_what_another_holds_is_skipped() -> None:
    of = pool(ranges=[[V4], [V6]])
    assert chosen(of, Held("fd00:56::a00:2", "fd00:56::a00:3")) == ["10.0.0.4/24", "fd00:56::a00:4/64"]
    with pytest.raises(PoolExhausted):
        chosen(of, Held(*(f"fd00:56::a00:{n}" for n in range(1, 10))))


def test_requested() -> None:
    of = pool(ranges=[[V4], [V6]])
    assert chosen(of, Held(), "10.0.0.7") == ["10.0.0.7/24", "fd00:56::a00:7/64"]
    assert chosen(of, Held(), "fd00:56::a00:7", "10.0.0.7") == ["10.0.0.7/24", "fd00:56::a00:7/64"]
    with pytest.raises(AddressUnavailable) as e:
        chosen(of, Held(), "10.0.0.7", "fd00:56::a00:8")
    assert "embedIPv4 true: this ADD has 10.0.0.7, and requested address fd00:56::a00:8" in e.value.msg
    with pytest.raises(AddressHeld) as held:
        chosen(of, Held("fd00:56::a00:7"), "10.0.0.7")
    assert "fd00:56::a00:7 is held by another pod" in held.value.msg


def test_only_the_ipv6_address_is_requested(tmp_path: Path) -> None:
    """The IPv4 address follows from it."""
    net = Net(tmp_path, {"ranges": [[V4], [V6]]})

    def refused(address: str, cid: str) -> str:
        answer = net.call("ADD", cid, args=f"IP={address}")
        assert answer["code"] == 102, answer
        return str(answer["msg"])

    assert net.add("a", args="IP=fd00:56::a00:7") == ("10.0.0.7", "fd00:56::a00:7")
    assert net.add("a", args="IP=fd00:56::a00:7") == ("10.0.0.7", "fd00:56::a00:7")
    assert net.add("b", args="IP=fd00:56::a00:8,10.0.0.8") == ("10.0.0.8", "fd00:56::a00:8")
    assert "requested address fd00:56::a00:7 is held by net1 of container a" in refused("fd00:56::a00:7", "c")
    assert refused("fd00:56::a00:63", "d") == (
        "requested address 10.0.0.99 (fd00:56::a00:63 has it, by embedIPv4) is outside 10.0.0.1-10.0.0.9, "
        "rangeStart to rangeEnd of ipam.ranges[0][0]; request another"
    )
    assert "10.0.0.1 (fd00:56::a00:1 has it, by embedIPv4) is the gateway" in refused("fd00:56::a00:1", "e")
    assert set(net.leases()) == {"a:net1", "b:net1"}
    net.ipam = {"ranges": [[V4]]}
    assert net.add("f", args="IP=10.0.0.9") == ("10.0.0.9",)
    net.ipam = {"ranges": [[V4], [V6]]}
    assert "requested address 10.0.0.9 (fd00:56::a00:9 has it, by embedIPv4) is held by net1 of container f" in (
        refused("fd00:56::a00:9", "g")
    )


def test_a_gateway_with_an_ipv4_address_in_it() -> None:
    of = pool(ranges=[[V4], [V6 | {"gateway": "fd00:56::a00:2"}]])
    assert chosen(of, Held()) == ["10.0.0.3/24", "fd00:56::a00:3/64"]
    with pytest.raises(AddressUnavailable) as e:
        chosen(of, Held(), "10.0.0.2")
    assert "fd00:56::a00:2 is the gateway of ipam.ranges[1][0]" in e.value.msg


def test_the_attachments_own_stay() -> None:
    mine = ("10.0.0.5", "fd00:56::a00:5")
    assert chosen(pool(ranges=[[V4], [V6]]), Held(*mine, mine=mine)) == ["10.0.0.5/24", "fd00:56::a00:5/64"]


def test_subnets_of_the_parent() -> None:
    of = pool(ranges=[[{"subnet": "parent-ipv4"}], [OF_PARENT]])
    assert chosen(of, Held()) == ["10.1.0.3/29", "2001:db8:1::a01:3/64"]
    assert [str(r.gateway) for s in of.sets for r in s.ranges] == ["10.1.0.1", "fe80::1"]
    assert of.parents == ("rail0", "rail0")
    assert [str(span) for span in of.sets[0].all_spans] == ["10.1.0.3-10.1.0.6"], "neither gateway nor parent"
    with pytest.raises(AddressUnavailable) as e:
        chosen(of, Held(), "10.1.0.2")
    assert "requested address 10.1.0.2 is rail0's own, the parent's" in e.value.msg
    assert pool(ranges=[[V4]]).parents == ("",)


def test_keys_beside_the_parents_subnet() -> None:
    of = pool(ranges=[[{"subnet": "parent-ipv4", "gateway": None}], [{"subnet": "parent-ipv6", "eui64": True}]])
    assert [r.gateway for r in of.sets[0].ranges] == [None]
    assert of.needs_link
    assert str(of.sets[1].ranges[0].subnet) == "2001:db8:1::/64"


def test_each_call_has_its_nodes_subnet() -> None:
    """The same configuration, parsed once, on a node with another subnet, and for no node."""
    ipam: dict[str, Any] = {"subnet": "parent-ipv4", "ranges": [[{"subnet": "fd00:56::/64"}]]}
    other = {Parent.IPV4: prefix("10.2.0.0/24", "10.2.0.1", None)}
    assert [str(pool(**ipam).sets[0].ranges[0].subnet) for _ in range(2)] == ["10.1.0.0/29"] * 2
    assert str(pool(other, **ipam).sets[0].ranges[0].subnet) == "10.2.0.0/24"
    conf = {"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam}
    assert [s.key for s in load(conf, {}).sets] == ["ipam.ranges[0]"]
    assert load(conf | {"ipam": {"subnet": "parent-ipv4"}}, {}).sets == ()


def test_a_link_of_two() -> None:
    """Without a gateway, the pod gets the other address of a /31; else none is left."""
    alone = {Parent.IPV4: prefix("10.1.0.0/31", "10.1.0.1", None)}
    assert chosen(pool(alone, subnet="parent-ipv4"), Held()) == ["10.1.0.0/31"]
    routed = {Parent.IPV4: prefix("10.1.0.0/31", "10.1.0.1", "10.1.0.0")}
    with pytest.raises(InvalidConfig) as e:
        pool(routed, subnet="parent-ipv4")
    for part in ("rail0, the parent, has 10.1.0.1 of 10.1.0.0/31", "the gateway 10.1.0.0", "useInterfaceNetwork"):
        assert part in e.value.msg


def test_in_a_clusters_pool() -> None:
    """The IPv4 address comes from a block, and the address with it in it needs none."""
    of = pool(ranges=[[{"subnet": "10.0.0.0/16"}], [OF_PARENT]], cluster={"backend": "etcd"})
    assert [s.subnets for s in of.sets] == [("10.0.0.0/16",), ()]


@pytest.mark.parametrize(
    ("ipam", "said"),
    [
        ({"ranges": [[V4 | {"embedIPv4": True}]]}, "ipam.ranges[0][0].embedIPv4 true with subnet 10.0.0.0/24"),
        ({"ranges": [[V4], [V6 | {"subnet": "fd00::/97"}]]}, "which is not an IPv6 prefix of at most 96 bits"),
        ({"ranges": [[V6]]}, "ipam.ranges[0][0].embedIPv4 true: no range set has IPv4 addresses"),
        ({"ranges": [[V4], [V6 | {"eui64": True}]]}, "eui64 and embedIPv4, which both determine the address"),
        ({"ranges": [[V4], [V6 | {"rangeEnd": "fd00:56::9"}]]}, "embedIPv4 true: the IPv4 address determines"),
        (
            {"ranges": [[V4], [V6, {"subnet": "fd00:57::/64"}]]},
            "ipam.ranges[1] has 2 ranges on this node, one with embedIPv4",
        ),
        ({"ranges": [[V4], [V6], [V6]]}, "overlaps"),
        ({"embedIPv4": True, "ranges": [[V4]]}, "ipam.embedIPv4: of no effect without ipam.subnet"),
        ({"ranges": [[V4], [V6 | {"embedIPv4": "yes"}]]}, 'embedIPv4 "yes"'),
        ({"rails": [{"pf": "a", **V6}]}, "ipam.rails[0].embedIPv4 true: no range set"),
        (
            {"align": True, "rails": [{"pf": "a", **V4, "ranges": [[V6]]}]},
            "ipam.align: ipam.rails[0].ranges[0] has embedIPv4, but each rail's interface has its own IPv4 address",
        ),
        ({"subnet": "parent"}, "write parent-ipv4 or parent-ipv6"),
        ({"subnet": "parent-ipv4", "exclude": ["10.9.0.1"]}, "is outside ipam.subnet 10.1.0.0/29"),
        ({"subnet": "parent-ipv4", "embedIPv4": True}, "ipam.embedIPv4 true with subnet 10.1.0.0/29"),
        ({"ranges": [[{"subnet": "parent-ipv4"}], [{"subnet": "parent-ipv4"}]]}, "overlaps"),
        ({"rails": [{"pf": "a", "subnet": "parent-ipv4"}]}, "ipam.rails[0].subnet parent-ipv4 in ipam.rails"),
        ({"subnet": "parent-ipv4", "cluster": {"backend": "etcd"}}, "ipam.subnet parent-ipv4 with ipam.cluster"),
        ({"subnet": "10.0.0.0/24", "routes": [{"dst": "parent-ipv4"}]}, "ipam.routes[0].dst"),
    ],
)
def test_refused(ipam: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as e:
        pool(**ipam)
    assert said in e.value.msg


@pytest.mark.parametrize(("held", "kept"), [("", "10.0.0.3"), ("fd00:56::a00:3", "10.0.0.2")])
def test_a_kept_address_whose_other_one_is_another_hosts(held: str, kept: str) -> None:
    """The attachment gets another pair, because its pod could not start with this one."""
    book = Held(*filter(None, [held]), mine=("10.0.0.3",))
    assert chosen(pool(ranges=[[V4], [V6]]), book)[0].partition("/")[0] == kept


def test_no_pod_gets_a_routers_address() -> None:
    """The parent has routes through several routers; the first is the gateway."""

    def of(*routers: str) -> Pool:
        whole = replace(FOUND[Parent.IPV4], routers=tuple(map(ip_address, routers)))
        return pool({Parent.IPV4: whole}, ranges=[[{"subnet": "parent-ipv4"}]])

    some = of("10.1.0.3", "10.1.0.4")
    assert [str(span) for span in some.sets[0].all_spans] == ["10.1.0.5-10.1.0.6"]
    with pytest.raises(AddressUnavailable, match="is a router of rail0, the parent"):
        chosen(some, Held(), "10.1.0.3")
    with pytest.raises(InvalidConfig, match=r"gateway 10\.1\.0\.1 and the routers 10\.1\.0\.3, .* no address is left"):
        of(*(f"10.1.0.{n}" for n in range(3, 7)))
