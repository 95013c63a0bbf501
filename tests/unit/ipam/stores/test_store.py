"""The commands' effects on a network's leases on disk, in order and out of order."""

import json

import pytest
from support.ipam_calls import Net

DUAL = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;X=1"


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path, json.loads(json.dumps(DUAL)))


def of_another_boot(net, cid):
    """Give a lease an older boot id."""
    net.rewrite(cid, boot="another")


def damaged(net, cid):
    net.overwrite(net.line(cid), b"#")


def test_add_again_answers_the_same(net):
    first = net.add()
    before = net.file.stat()
    assert net.add() == first
    assert net.file.stat() == before, "nothing to write"
    assert net.agrees()


def test_add_again_elsewhere_updates_the_record(net):
    first = net.add()
    assert net.add(args=POD) == first
    assert net.body()["pod"] == "ns/p"


def test_add_after_reboot_renews_the_lease(net):
    first = net.add()
    of_another_boot(net, "c")
    assert net.add() == first
    assert net.call("GC") == {}
    assert net.leases() == {"c:net1": first}, "a lease renewed in this boot is not an older boot's"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rangeStart": "10.0.0.9"}, ("10.0.0.9", "fd00::2")),  # out of the range: only that one is new
        ({"exclude": ["10.0.0.2"]}, ("10.0.0.3", "fd00::2")),
        ({"gateway": "10.0.0.2"}, ("10.0.0.1", "fd00::2")),
        ({"subnet": "10.0.0.0/23"}, ("10.0.0.2", "fd00::2")),  # kept, with the new length
    ],
)
def test_add_again_under_another_configuration(net, change, expected):
    net.add()
    net.ipam["ranges"][0][0].update(change)
    assert net.add() == expected
    assert net.leases() == {"c:net1": expected}
    assert net.agrees()


def test_add_again_with_another_request_moves(net):
    net.add()
    assert net.add(args="IP=10.0.0.7") == ("10.0.0.7", "fd00::2")
    assert net.agrees()


def test_prefix_of_a_kept_address_is_the_subnets(net):
    net.add()
    net.ipam["ranges"][0][0]["subnet"] = "10.0.0.0/23"
    assert net.call("ADD")["ips"][0]["address"] == "10.0.0.2/23"
    assert net.body()["addresses"][0] == "10.0.0.2/23"


def test_round_robin_does_not_reuse_at_once(net):
    net.add("a")
    net.call("DEL", "a")
    assert net.add("b") == ("10.0.0.3", "fd00::3")


@pytest.mark.parametrize("subnet", ["10.0.0.0/24", "fd00::/64"])
def test_round_robin_goes_on_after_the_index_is_lost(net, subnet):
    net.ipam = {"subnet": subnet}
    first = net.add("a")
    net.call("DEL", "a")
    header = (net.dir / "index").read_bytes()[:512]
    (net.dir / "index").write_bytes(header[:8] + bytes(16) + header[24:])  # of another boot
    assert net.add("b") != first
    assert net.agrees()


def test_request_held_by_another_names_it(net):
    net.add("a")
    answer = net.call("ADD", "b", args="IP=10.0.0.2")
    assert answer["code"] == 102
    assert "held by net1 of container a, network net" in answer["msg"]
    assert net.agrees()


def test_exhausted_second_set_leaves_nothing_of_the_first(net):
    net.ipam["ranges"][1][0] = {"subnet": "fd00::/128"}
    net.add("a")
    answer = net.call("ADD", "b")
    assert answer["code"] == 103
    assert "ipam.ranges[1] (fd00::/128): all 1 addresses are held" in answer["msg"]
    assert list(net.leases()) == ["a:net1"]
    assert net.agrees()


def test_more_held_than_are_asked_one_by_one(net):
    net.ipam = {"subnet": "10.0.0.0/24"}
    given = [net.add(f"c{i}")[0] for i in range(253)]
    assert len(set(given)) == 253
    (net.dir / "index").unlink()
    assert net.call("ADD", "last")["code"] == 103
    net.call("DEL", "c250")
    assert net.add("last") == (given[250],)


# DEL


def test_delete_is_idempotent(net):
    net.add("a")
    kept = net.add("b")
    for _ in range(2):
        assert net.call("DEL", "a") == {}
        assert net.leases() == {"b:net1": kept}
        assert net.agrees()


def test_delete_of_a_network_never_seen_makes_nothing(net):
    assert net.call("DEL") == {}
    assert net.gc() == {}
    assert not list(net.state.iterdir())


@pytest.mark.parametrize(
    "ipam",
    [
        {"ranges": "nonsense", "foo": 1},  # edited since, and wrong
        {"subnet": "192.168.0.0/24"},  # edited since
        None,
    ],
)
def test_delete_does_not_need_the_ranges(net, ipam, monkeypatch):
    monkeypatch.setenv("HPN_STATE_DIR", f"{net.state}")
    net.add()
    net.ipam = ipam
    assert net.call("DEL") == {}
    assert net.leases() == {}
    assert net.agrees()


# CHECK


def test_check(net):
    answer = net.call("ADD")
    assert net.call("CHECK") == {}
    assert net.call("CHECK", prevResult=answer) == {}


def test_check_of_nothing(net):
    assert net.call("CHECK")["code"] == 107
    assert not list(net.state.iterdir())
    net.add("another")
    assert net.call("CHECK")["code"] == 107


@pytest.mark.parametrize(
    ("ips", "code"),
    [
        ([{"address": "10.0.0.2/24"}, {"address": "fd00::2/64"}, {"address": "1.2.3.4/8"}], 0),  # others' are welcome
        ([{"address": "10.0.0.2/24"}], 107),  # one of ours is not there
        ([], 107),
        ([{"address": "x"}], 7),
    ],
)
def test_check_against_prev_result(net, ips, code):
    net.add()
    assert net.call("CHECK", prevResult={"cniVersion": "1.1.0", "ips": ips}).get("code", 0) == code


# STATUS


def test_status(net):
    net.ipam["ranges"][1][0]["subnet"] = "fd00::/128"
    assert net.call("STATUS") == {}
    net.add()
    answer = net.call("STATUS")
    assert answer["code"] == 50
    assert "ipam.ranges[1]" in answer["msg"]
    net.ipam["ranges"][0][0]["subnet"] = "10.1"
    assert net.call("STATUS")["code"] == 7


def test_status_where_nothing_can_be_written(net):
    assert net.call("STATUS", ipam=net.ipam | {"dataDir": "/proc/hpn"})["code"] == 50


# GC


def test_gc_releases_what_is_not_valid(net):
    held = {cid: net.add(cid) for cid in ("a", "b", "c")}
    assert net.gc(("b", "net1"), ("c", "another-if"), ("unknown", "net1")) == {}
    assert net.leases() == {"b:net1": held["b"]}
    assert net.agrees()


def test_gc_without_a_list_releases_other_boots_only(net):
    net.add("old")
    kept = net.add("new")
    of_another_boot(net, "old")
    assert net.call("GC") == {}
    assert net.leases() == {"new:net1": kept}
    assert net.agrees()


def test_gc_goes_on_after_an_error(net):
    for cid in ("a", "b", "c"):
        net.add(cid)
    damaged(net, "b")
    answer = net.gc()
    assert answer["code"] == 108
    assert net.leases() == {}
    assert net.agrees()
    assert net.gc() == {}
