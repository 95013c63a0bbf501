"""ADD in a pool that the nodes of a cluster share: from this node's blocks, or from a newly claimed one."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.cluster_nodes import SHARED, SMALL, Cluster
from support.documents import Fault, at, every
from support.ipam_calls import of

from base.kernel import budget
from base.protocol.result import Ip
from base.protocol.spec import Kept
from ipam import main
from ipam.cluster import BLOCK, POOL
from ipam.cluster.backends import backend
from ipam.cluster.reconcile import claim_block
from ipam.cluster.rules import block_math
from ipam.cluster.rules.documents import Block
from ipam.ranges import Span
from ipam.stores import Owner
from ipam.stores.files.store import FileStore


def index(address: str) -> int:
    return int(address.rpartition(".")[2]) // 16


def test_first_use_claims_a_block(cluster: Cluster) -> None:
    one = cluster.node("node1")
    (given,) = one.add("a")
    assert cluster.calls() == [
        "identity",
        "machine_uid node1",
        "read net",
        "listed net",
        "listed net/sticky",
        "listed",
        "create net",
        "listed net",
        "listed",
        f"create net.{index(given)}",
    ]
    assert cluster.store.bodies(POOL) == {
        "net": {"network": "net", "blockSize": 16, "subnets": ["10.0.0.0/24"], "digest": "01fefb1ed01ae3bd"},
    }
    (body,) = cluster.store.bodies(BLOCK).values()
    assert (body["node"], body["machine"], body["start"]) == ("node1", "uid of node1", 16 * index(given))
    assert (one.mine.giving, one.mine.claim) == ((index(given),), None)


def test_no_store_is_kept_meanwhile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others need not wait for the backend, and no two commands for each other's locks."""

    def opened(*words: Any) -> Any:
        assert not kept.name
        return opening(*words)

    opening = backend.opened
    one = cluster.node("node1", **(SMALL | {"sticky": 60, "cluster": SHARED | {"sticky": "32-47"}}))
    one.enter()
    monkeypatch.setattr(backend, "opened", opened)
    with Kept() as kept:
        for name, more in (("alone", {"cluster": None}), ("net", dict[str, Any]())):
            request = one.request("ADD", "c", *of("web-0"), name=name, ipam=one.ipam | more)
            assert main.ask(replace(request, kept=kept), []) is not None
            assert bool(kept.name) == (name == "alone")


def test_with_room_nobody_is_asked(cluster: Cluster) -> None:
    one = cluster.node("node1")
    first = one.add("a")
    cluster.calls()
    assert {index(*one.add(f"b{n}")) for n in range(10)} == {index(*first)}
    assert one.add("a") == first
    one.call("CHECK", "a")
    one.call("DEL", "a")
    one.gc(("b1", "net1"))
    assert one.call("STATUS") == {}
    assert cluster.calls() == []


def test_without_room_one_call_claims_another(cluster: Cluster) -> None:
    one = cluster.node("node1")
    given = [*one.add("a"), *one.fill()]
    assert cluster.calls()[10:] == [f"create net.{index(given[-1])}"]
    assert len(set(given)) == len(given)
    assert {index(address) for address in given} == set(cluster.owners()) == set(one.mine.giving)


def test_the_last_block_is_taken(cluster: Cluster) -> None:
    one, other = cluster.node("node1"), cluster.node("node2")
    other.add("x")
    while len(cluster.owners()) < 16:
        one.add(f"{len(one.leases())}")
    for n in range(20):
        answer = one.call("ADD", f"y{n}")
        if "code" in answer:
            break
    assert answer["code"] == 103
    assert "2 nodes own all 16 usable blocks of network net (16 numbers each)" in answer["msg"]
    assert len([*one.leases(), *other.leases()]) < 254
    cluster.calls()
    assert other.add("z")
    assert cluster.calls() == []


def test_both_families_have_the_same_numbers(cluster: Cluster) -> None:
    ranges = [[{"subnet": "10.0.0.0/16"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.9.0.0/20"}]]
    one = cluster.node("node1", ranges=ranges, cluster=SHARED)
    given = [one.add(f"{n}") for n in range(60)]
    assert len(cluster.owners()) == len(one.mine.giving) == 4
    for v4, v6, small in given:
        third, fourth = map(int, v4.split(".")[2:])
        assert (third * 256 + fourth) // 16 in one.mine.giving
        assert int(v6.rpartition(":")[2], 16) // 16 in one.mine.giving
        assert small.startswith("10.9.")


def test_a_range_that_ends_early_gets_low_blocks(cluster: Cluster) -> None:
    """No block serves both sets here, so each set gets its own."""
    ranges = [
        [{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.31"}],
        [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.64"}],
    ]
    one = cluster.node("node1", ranges=ranges, cluster=SHARED)
    low, high = one.add("a")
    assert index(low) < 2
    assert index(high) >= 4
    assert len(cluster.owners()) == 2


def test_rails_and_align(cluster: Cluster) -> None:
    rails = [{"master": f"eth{n}", "subnet": f"10.{n}.0.0/16"} for n in range(8)]
    nodes = [cluster.node(f"node{n}", rails=rails, align=True, cluster=SHARED) for n in range(3)]
    numbers = list[str]()
    for node in nodes:
        for pod in range(20):
            given = {node.add(f"{pod}", f"net{n}", master=f"eth{n}")[0] for n in range(8)}
            (number,) = {address.split(".", 2)[2] for address in given}
            numbers.append(number)
    assert len(set(numbers)) == 60
    assert len(cluster.owners()) == 6


def test_a_block_size_of_ones_own(cluster: Cluster) -> None:
    one = cluster.node("node1", subnet="10.0.0.0/24", cluster={"backend": "etcd", "blockSize": 1})
    for n in range(5):
        one.add(f"{n}")
    assert len(cluster.owners()) == 5
    assert cluster.store.bodies(POOL)["net"]["blockSize"] == 1


def test_two_without_room_make_one_claim(cluster: Cluster) -> None:
    one = cluster.node("node1")
    one.enter()
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(one.add, [f"{n}" for n in range(12)]))
    assert len(set(given)) == 12
    assert cluster.store.counted()["create"] == 2
    assert len(cluster.owners()) == 1


def test_a_claim_needs_two_reservations(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finds no room and reads all leases to release the dead ones; one takes an address of the claimed block."""
    one, began, reserve = cluster.node("node1"), list[str](), FileStore.reserve

    def counted(store: FileStore, owner: Owner, *about: Any) -> tuple[Ip, ...]:
        began.append(owner.key.container_id)
        return reserve(store, owner, *about)

    monkeypatch.setattr(FileStore, "reserve", counted)
    one.add("first")
    last = len(one.fill()) - 1
    assert [began.count(f"fill{number}") for number in range(last + 1)] == [1] * last + [2]


def given_to_another(cluster: Cluster, indexes: Iterable[int]) -> None:
    for n in indexes:
        taken = Block("net", n, 16, "other", "", f"claim of {n}")
        cluster.store.create(BLOCK, taken.name, "net", taken.to_json())


def test_conflicts_are_passed_over(cluster: Cluster) -> None:
    one = cluster.node("node1")
    (given,) = one.add("a")
    given_to_another(cluster, [(index(given) + n) % 16 for n in (1, 2, 3)])
    cluster.calls()
    one.fill()
    assert [call.partition(" ")[0] for call in cluster.calls()] == ["create"] * 4
    assert cluster.owners()[(index(given) + 4) % 16] == "node1"


def test_after_four_conflicts_all_are_listed(cluster: Cluster) -> None:
    one = cluster.node("node1")
    (given,) = one.add("a")
    free = (index(given) + 9) % 16
    given_to_another(cluster, {*range(16)} - {free, index(given)})
    cluster.calls()
    one.fill()
    assert [call.partition(" ")[0] for call in cluster.calls()] == ["create"] * 4 + ["listed", "create"]
    assert set(one.mine.giving) == {index(given), free}


LARGE = {"subnet": "10.0.0.0/16", "cluster": SHARED}  # 4,096 blocks of 16


def test_in_a_large_network_some_are_tried_before_all_are_listed(cluster: Cluster) -> None:
    given_to_another(cluster, [n for n in range(4096) if n // 8 % 2])
    tried = list[int]()
    for n in range(12):
        one = cluster.node(f"node{n}", **LARGE)
        cluster.calls()
        one.add("a")
        calls = cluster.calls()
        assert calls.count("listed net") == (1 if n else 2)  # its own blocks, and all for a new pool layout
        tried.append(sum(call.startswith("create net.") for call in calls))
    assert max(tried) > 4  # some reached random blocks
    assert len(cluster.owners()) == 2048 + 12


def test_of_a_large_network_all_is_taken(cluster: Cluster) -> None:
    """After some random attempts the node lists all blocks, because only a list shows those of dead nodes."""
    given_to_another(cluster, range(4096))
    one = cluster.node("node1", **LARGE)
    cluster.calls()
    code, said = one.refused("ADD", "a")
    assert (code, "1 nodes own all 4096 usable blocks of network net (16 numbers each)" in said) == (103, True), said
    asked = [call.partition(" ")[0] for call in cluster.calls()]
    assert asked.count("listed") == 6
    assert asked.count("create") == 1 + 4 + 64  # the pool layout, the node's first blocks, and random ones


def test_time_is_left_for_a_list() -> None:
    budget.begin()
    blocks = [Span(block_math.NUMBERS, 0, 4095)]
    tried = claim_block.guesses(blocks)
    assert 0 <= next(tried) < 4096
    budget.spend(budget.REQUEST * 0.6)
    assert list(tried) == []
    budget.begin()
    assert list(claim_block.guesses([Span(block_math.NUMBERS, 5, 67)])) == []  # few enough for one list


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (Fault.UNREACHABLE, 11, "the store in memory does not answer"),
        (Fault.LOST, 11, "the answer of the store in memory is lost"),
        (Fault.FORBIDDEN, 111, "the store in memory forbids it"),
    ],
)
def test_no_answer(cluster: Cluster, fault: Fault, code: int, said: str) -> None:
    one = cluster.node("node1")
    one.add("a")
    cluster.store.faults = every("", fault)
    (refused,) = {one.refused("ADD", f"b{n}")[0] for n in range(30) if "code" in one.call("ADD", f"b{n}")}
    assert refused == code
    assert said in one.refused("ADD", "c")[1]
    assert "addresses are held" in one.refused("ADD", "c")[1]
    # Held addresses stay held, and a released one is allocated again, without the backend.
    one.call("DEL", "a")
    assert one.add("c")


def test_a_lost_answer_is_found_again(cluster: Cluster) -> None:
    one = cluster.node("node1")
    cluster.store.faults = at(9, Fault.LOST)
    assert one.refused("ADD", "a")[0] == 11
    assert one.mine.claim is not None
    assert one.mine.blocks == ()
    (given,) = one.add("a")
    assert list(cluster.owners()) == [index(given)]
    assert not one.mine.blocks[0].taken
    assert one.mine.claim is None


def test_requested_address(cluster: Cluster) -> None:
    one, other = cluster.node("node1"), cluster.node("node2")
    assert one.add("a", runtimeConfig={"ips": ["10.0.0.200"]}) == ("10.0.0.200",)
    assert set(cluster.owners()) == {12}
    cluster.calls()
    assert one.add("b", runtimeConfig={"ips": ["10.0.0.201"]}) == ("10.0.0.201",)
    assert cluster.calls() == []
    code, said = other.refused("ADD", "c", runtimeConfig={"ips": ["10.0.0.202"]})
    assert code == 102
    assert "10.0.0.202 is in block 12 of network net, which node node1 owns; request another, or attach there" in said
    assert other.add("c", runtimeConfig={"ips": ["10.0.0.99"]}) == ("10.0.0.99",)
    assert cluster.owners() == {12: "node1", 6: "node2"}


@pytest.mark.parametrize(
    ("address", "said"),
    [("10.0.0.1", "is the gateway of"), ("10.0.0.77", "is excluded by"), ("10.1.0.1", "is in no range")],
)
def test_requested_and_never_given(cluster: Cluster, address: str, said: str) -> None:
    one = cluster.node("node1", **SMALL, exclude=["10.0.0.77"])
    one.add("a")
    cluster.calls()
    code, words = one.refused("ADD", "b", runtimeConfig={"ips": [address]})
    assert (code, said in words) == (102, True)
    assert cluster.calls() == []


def test_reserved_is_given_on_request_only(cluster: Cluster) -> None:
    one = cluster.node("node1", **SMALL, reserved=["10.0.0.0-10.0.0.223"])
    assert {index(*one.add(f"{n}")) for n in range(20)} == {14, 15}
    assert one.add("r", runtimeConfig={"ips": ["10.0.0.5"]}) == ("10.0.0.5",)
    assert set(cluster.owners()) == {0, 14, 15}


def test_sticky_and_cool_down(cluster: Cluster, clock: list[float]) -> None:
    one = cluster.node("node1", **SMALL, sticky=3600, releaseCooldown=60)
    (given,) = one.add("a", *of("web-0"))
    one.call("DEL", "a")
    assert one.add("b", *of("web-1")) != (given,)
    assert one.add("c", *of("web-0")) == (given,)
    one.call("DEL", "c")
    others = {address for n in range(20) for address in one.add(f"{n}", *of(f"p{n}"))}
    assert given not in others
    assert len(cluster.owners()) == 2
    clock[0] += 3601
    assert one.add("d", *of("web-0"))


def test_dead_leases_go_before_a_claim(cluster: Cluster) -> None:
    one = cluster.node("node1")
    one.add("a")
    owned = one.mine.giving
    while len(one.leases()) < 14:
        one.add(f"{len(one.leases())}")
    one.another_boot("a", "1", "2", "3", "4")
    for n in range(5):
        one.add(f"new{n}")
    assert one.mine.giving == owned
