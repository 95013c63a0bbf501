"""Documents in an etcd, and its gateway's answers.  The server is the standard library's."""

import json

import pytest
from support.documents_contract import Contract
from support.etcd_server import Member, Opened, body, encoded, keys_of, serving

from base.protocol.errors import RecordUnreadable
from ipam.cluster import BLOCK, POOL, Machine
from ipam.cluster.backends import etcd
from ipam.cluster.backends.etcd import Etcd

NOW = 1793613600.0  # by Member.date


@pytest.fixture
def store(member: Member, opened: Opened) -> Etcd:
    return opened(member)


class TestContract(Contract):
    """The contract of every backend."""


def test_keys_are_for_people_too(store: Etcd, member: Member) -> None:
    made = store.create(BLOCK, "net.3", "net", body(3))
    assert made
    assert json.loads(member.value("/hpn/block/net.3")) == body(3)
    assert set(member.keys) == {"/hpn/block/net.3", "/hpn/of/n1/block/net.3"}
    assert store.read(BLOCK, "net.3") == made


def test_the_second_finds_it_taken(store: Etcd) -> None:
    assert store.create(BLOCK, "net.3", "net", body(3, claim="a"))
    assert store.create(BLOCK, "net.3", "net", body(3, claim="b")) is None
    there = store.read(BLOCK, "net.3")
    assert there
    assert there.body["claim"] == "a"


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_answer_to_a_change(store: Etcd, member: Member, lost: int) -> None:
    """The request is sent again, and finds the change of the earlier sending."""
    member.lost = lost
    made = store.create(BLOCK, "net.3", "net", body(3))
    assert made
    assert made == store.read(BLOCK, "net.3")
    member.lost = lost
    changed = store.replace(made, {**made.body, "suspect": 9})
    assert changed
    assert changed == store.read(BLOCK, "net.3")
    assert changed.uid == made.uid
    member.lost = lost
    assert store.remove(changed)
    assert store.read(BLOCK, "net.3") is None
    assert not [key for key in member.keys if "net.3" in key]


def test_a_lost_answer_of_another(store: Etcd, member: Member) -> None:
    """After a lost answer, the document belongs to another node or is a new one: it is not ours."""
    assert store.create(BLOCK, "net.3", "net", body(3, claim="other"))
    member.lost = 1
    assert store.create(BLOCK, "net.3", "net", body(3, claim="ours")) is None


def test_a_change_that_another_was_faster_with(store: Etcd) -> None:
    made = store.create(BLOCK, "net.3", "net", body(3))
    assert made
    changed = store.replace(made, {**made.body, "suspect": 9})
    assert changed
    assert store.replace(made, {**made.body, "suspect": 7}) is None
    assert not store.remove(made)
    assert store.remove(changed)
    assert store.replace(changed, body(3)) is None
    assert not store.remove(changed)


def test_made_again_it_is_another(store: Etcd) -> None:
    first = store.create(BLOCK, "net.3", "net", body(3))
    assert first
    assert store.remove(first)
    second = store.create(BLOCK, "net.3", "net", body(3))
    assert second
    assert second.uid != first.uid
    assert not store.remove(first)


def test_lists_page_by_page(store: Etcd, member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd, "PAGE", 3)
    for index in range(7):
        assert store.create(BLOCK, f"net.{index}", "net", body(index, f"n{index % 2}"))
    assert store.create(BLOCK, "net.b.0", "net.b", body(0, network="net.b"))
    assert store.create(POOL, "net", "net", {"network": "net"})
    member.asked.clear()
    assert [one.name for one in store.listed(BLOCK, "net")] == [f"net.{index}" for index in range(7)]
    assert member.asked == ["/v3/kv/range"] * 3
    assert [one.name for one in store.listed(BLOCK, "net.b")] == ["net.b.0"]
    assert len(store.listed(BLOCK)) == 8
    assert [one.name for one in store.listed(POOL)] == ["net"]


def test_a_node_reads_its_own(store: Etcd, member: Member) -> None:
    """Not all: ten thousand nodes that each list all blocks would fully load the backend."""
    for index in range(6):
        assert store.create(BLOCK, f"net.{index}", "net", body(index, f"n{index % 2}"))
    member.asked.clear()
    own = store.listed(BLOCK, node="n1")
    assert [one.name for one in own] == ["net.1", "net.3", "net.5"]
    assert member.asked == ["/v3/kv/range", "/v3/kv/txn"]
    assert own[0] == store.read(BLOCK, "net.1")
    assert store.listed(BLOCK, "other", "n1") == []
    given = store.replace(own[0], body(1, "n0"))
    assert given
    assert [one.name for one in store.listed(BLOCK, "net", "n0")] == ["net.0", "net.1", "net.2", "net.4"]
    assert [one.name for one in store.listed(BLOCK, node="n1")] == ["net.3", "net.5"]
    assert store.remove(given)
    assert len(store.listed(BLOCK, node="n0")) == 3


def test_a_key_of_somebody_else(store: Etcd, member: Member) -> None:
    member.done("/v3/kv/txn", {"compare": [], "failure": [], "success": [
        {"request_put": {"key": encoded("/hpn/block/net.3"), "value": encoded("hello"), "lease": "0"}}]})  # fmt: skip
    with pytest.raises(RecordUnreadable, match=r"key /hpn/block/net\.3 .* 'etcdctl del /hpn/block/net\.3'"):
        store.read(BLOCK, "net.3")
    assert store.create(BLOCK, "net.3", "net", body(3)) is None


def test_how_long_a_node_is_silent(store: Etcd, member: Member) -> None:
    assert store.machine("n1").last_seen is None
    store.create(BLOCK, "net.3", "net", body(3))
    assert store.machine("n1") == Machine("n1", "", NOW, has_reported=False)  # counts as alive
    assert store.machine("n").last_seen is None
    store.keep_alive("n1", 60)
    assert store.machine("n1") == Machine("n1", "", NOW)
    member.date = "Mon, 02 Nov 2026 11:00:00 GMT"
    store.keep_alive("n1", 60)
    assert store.machine("n1").last_seen == NOW + 3600
    (lease,) = member.leases
    member.expire(lease)
    assert store.machine("n1").last_seen == NOW
    store.keep_alive("n1", 60)
    assert store.machine("n1").last_seen == NOW + 3600


def test_a_name_that_another_machine_has_now(store: Etcd, member: Member, opened: Opened) -> None:
    """Each report names the machine; a machine that finds another's report makes one of its own."""
    store.create(BLOCK, "net.3", "net", body(3))
    store.keep_alive("n1", 60)  # as older versions report, and hosts without a machine-id
    assert store.machine("n1").uid == ""
    first, second = opened(member), opened(member)
    first.keep_alive("n1", 60, "m-1")
    assert store.machine("n1").uid == "m-1"
    assert store.silent([("n1", "m-1"), ("n1", "m-0"), ("n1", "")]) == {("n1", "m-0")}
    second.keep_alive("n1", 60, "m-2")
    assert store.machine("n1").uid == "m-2"
    again = opened(member)
    member.asked.clear()
    again.keep_alive("n1", 60, "m-2")
    assert member.asked == ["/v3/kv/range", "/v3/lease/keepalive"]


def test_who_is_silent(store: Etcd, member: Member) -> None:
    """Among more nodes than fit into one answer: those that were reported alive and no longer are."""
    store.create(BLOCK, "net.3", "net", body(3))
    names = [f"n{number}" for number in range(1, 6)]
    for name in names[1:]:
        store.keep_alive(name, 60)
    member.expire(list(member.leases)[2])
    member.bodies.clear()
    assert store.silent([*((name, f"uid of {name}") for name in names), ("never", "")]) == {("n4", "uid of n4")}
    # The key of a node's first report is permanent, so only those of owners without a report are read.
    asked = [key for body in member.bodies for key in keys_of(body) if "/nodes/" in key]
    assert asked == ["/hpn/nodes/n1", "/hpn/nodes/n4", "/hpn/nodes/never"]
    assert store.silent([("n2", "")]) == set()


def test_a_lease_is_kept(store: Etcd, member: Member, opened: Opened) -> None:
    """By the same process, and by another one, unless the lease is shorter than the new time."""
    store.keep_alive("n1", 60)
    member.asked.clear()
    store.keep_alive("n1", 60)
    opened(member).keep_alive("n1", 60)
    assert member.asked == ["/v3/lease/keepalive", "/v3/kv/range", "/v3/lease/keepalive"]
    assert len(member.leases) == 1
    opened(member).keep_alive("n1", 90)
    assert list(member.leases.values()) == [60, 90]
    assert member.keys["/hpn/alive/n1"]["lease"] == list(member.leases)[1]


def test_which_cluster_it_is(store: Etcd, member: Member, opened: Opened) -> None:
    identity = store.identity()
    assert identity == opened(member).identity()
    with serving(Member()) as other:
        assert opened(other).identity() != identity
    # Its backup was restored in another cluster.
    with serving(Member(keys=member.keys, revision=member.revision, cluster="7")) as restored:
        assert opened(restored).identity() == identity


def test_the_clock(store: Etcd, member: Member) -> None:
    assert store.now() == NOW
    member.date = "Mon, 02 Nov 2026 11:00:00 GMT"
    assert store.now() == NOW
    store.read(BLOCK, "net.3")
    assert store.now() == NOW + 3600
